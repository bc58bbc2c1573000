"""The contract of a Store: an odd row among leases, members, blocks or inbox rows affects only
itself.

A store whose rows others can write inherits `StrayContract` besides `StoreContract`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.inbox import Inbox
from postroom.store import Member, Store
from postroom.testing.store.tools import (
    ALL,
    FAR,
    Add,
    Hand,
    Write,
    event,
    keys_of_lane,
    patience,
    until,
)
from postroom.testing.store.unreadable_rows import Spoil
from postroom.testing.transaction_tools import Note
from postroom.transactions import acceptances

Meddle = Callable[[Any], Awaitable[None]]
"""Changes something directly, bypassing every check."""

_FIRST = 20  # the lane of the first odd lease: neighbours on both sides


class StrayContract:
    """Rows of a relay's own tables that were written manually, by another program, or are damaged.

    Each entry is written by the fixture `meddle` (or `spoil`, where noted):

    odd_members   one more member of the stream main
    odd_leases    a change of the lease of `{lane}` of the stream main
    odd_blocks    one more block of the stream main, which no relay wrote
    odd_done      by `spoil`: a change of an event that is done → whether it can still be pruned
    odd_streams   by `spoil`: a change of the stream of an event
    odd_notes     one more old inbox row of the consumer `payments`
    refused       values that the database refuses, and its error
    """

    odd_members: ClassVar[Sequence[Any]] = ()
    odd_leases: ClassVar[Sequence[Any]] = ()
    odd_blocks: ClassVar[Sequence[Any]] = ()
    odd_done: ClassVar[Mapping[str, bool]] = {}
    odd_streams: ClassVar[Sequence[str]] = ()
    odd_notes: ClassVar[Sequence[Any]] = ()
    refused: ClassVar[Sequence[Any]] = ()
    refusals: ClassVar[tuple[type[Exception], ...]] = ()

    @pytest.fixture
    def meddle(self) -> Meddle:
        raise NotImplementedError("give a fixture `meddle`: runs one of the entries above")

    @pytest.fixture
    def try_to(self) -> Meddle:
        raise NotImplementedError("give a fixture `try_to`: runs one with every check in place")

    @pytest.mark.promise("G7", "F1")
    async def test_an_odd_member_costs_nobody_a_beat(
        self, store: Store, add: Add, meddle: Meddle
    ) -> None:
        await store.heartbeat("main", Member("zoe", True), FAR, {})
        for odd in self.odd_members:
            await meddle(odd)
        membership = await store.heartbeat("main", Member("anna", True, "a"), FAR, {})
        assert {"anna", "zoe"} <= {member.owner for member in membership.members}
        for member in (*membership.members, *(await store.leases("main")).members):
            assert [type(value) for value in member] == [str, bool, str]
        assert set(await store.take("main", "anna", ALL, FAR)) == set(ALL)
        await store.leave("main", "anna")
        await store.leave("main", "zoe")
        await self._all_are_sent(store, add, meddle, self.odd_members, set(ALL))

    @pytest.mark.promise("G7", "F1", "L1")
    async def test_an_odd_lease_costs_its_lane_at_most(
        self, store: Store, add: Add, meddle: Meddle
    ) -> None:
        await store.heartbeat("main", Member("anna", True), FAR, {})
        odd = {_FIRST + n: _of_lane(lease, _FIRST + n) for n, lease in enumerate(self.odd_leases)}
        for lease in odd.values():
            await meddle(lease)
        sound = set(ALL) - set(odd)
        membership = await store.heartbeat("main", Member("anna", True), FAR, {})
        assert sorted(lease.lane for lease in membership.leases) == list(ALL)
        held = await store.take("main", "anna", ALL, FAR)
        assert sound <= set(held)
        for lease in odd.values():
            await meddle(lease)
        membership = await store.heartbeat("main", Member("anna", True), FAR, held)
        assert sound <= membership.renewed
        assert sorted(lease.lane for lease in membership.leases) == list(ALL)
        again = await store.retake("main", "anna", {lane: held[lane] for lane in sound}, FAR)
        assert sound == set(again)
        await store.release("main", "anna", again)
        await store.leave("main", "anna")
        await self._all_are_sent(store, add, meddle, list(odd.values()), sound)

    async def _all_are_sent(
        self, store: Store, add: Add, meddle: Meddle, odd: Sequence[Any], lanes: set[int]
    ) -> None:
        """A relay serves these lanes, also when all of this happens while it runs."""
        keys = {lane: keys_of_lane(lane, 1)[0] for lane in lanes}
        broker = MemoryBroker()

        async def sent(turn: str) -> bool:
            wanted = {f"{turn}{lane}" for lane in lanes}
            return wanted <= {message.record.id for message in broker.messages}

        await add(*(event(f"a{lane}", key) for lane, key in keys.items()))
        async with Relay(store, broker, poll_seconds=0.02, lease_seconds=1.0):
            await until(lambda: sent("a"))
            for one in odd:
                await meddle(one)
            await add(*(event(f"b{lane}", key) for lane, key in keys.items()))
            await until(lambda: sent("b"))

    @pytest.mark.promise("G7", "F1", "B4")
    async def test_an_odd_block_costs_no_other_its_mending(
        self, store: Store, add: Add, meddle: Meddle
    ) -> None:
        await add(event("first", "k"), event("1", "k"), event("last", "q"), event("2", "q"))
        hand = await Hand(store).take()
        heads = [await hand.only("first"), await hand.only("last")]
        for head in heads:
            await hand.fail(head)
        await hand.settle(parked=[r for r in await hand.read() if r.id in ("1", "2")])
        # from an earlier read: both keys are left with a broken block
        await hand.settle(done=heads)
        for odd in self.odd_blocks:
            await meddle(odd)
        assert await hand.read() == []
        async with patience():
            while await store.repair_blocks("main", "anna", hand.held, 1):
                pass
        ready = [(r.id, r.barrier) for r in await hand.read() if r.flaw is None]
        assert ready == [("1", None), ("2", None)]
        await add(*(event(f"e{lane}", keys_of_lane(lane, 1)[0]) for lane in ALL))
        read = {record.id: record for record in await hand.read()}
        assert len(read) == len(ALL) + 2
        assert [record.id for record in read.values() if record.flaw is not None] == []
        assert await hand.settle(done=list(read.values())) == set(ALL)
        assert (await store.stats()).counts["done"] == len(ALL) + 4

    @pytest.mark.promise("G7", "F1")
    async def test_an_odd_event_that_is_done_keeps_no_other_from_being_pruned(
        self, store: Store, add: Add, spoil: Spoil
    ) -> None:
        names = [f"e{n}" for n in range(len(self.odd_done))]
        await add(event("first"), *(event(name) for name in names), event("last"))
        hand = await Hand(store).take()
        await hand.settle(done=await hand.read())
        for name, odd in zip(names, self.odd_done, strict=True):
            await spoil(name, odd)
        pruned = sum(self.odd_done.values()) + 2

        async def gone() -> bool:
            while await store.prune(0.0, 1):
                pass
            return (await store.stats()).counts["done"] <= len(self.odd_done) + 2 - pruned

        await until(gone)
        assert await store.look_up(["first", "last"]) == {}

    @pytest.mark.promise("G7", "F1")
    async def test_an_odd_stream_costs_no_other_stream(
        self, store: Store, add: Add, spoil: Spoil
    ) -> None:
        names = [f"e{n}" for n in range(len(self.odd_streams))]
        await add(event("done"), *(event(name) for name in names))
        hand = await Hand(store).take()
        await hand.settle(done=[await hand.only("done")])
        await store.leave("main", "anna")
        for name, odd in zip(names, self.odd_streams, strict=True):
            await spoil(name, odd)
        await add(event("last"))
        async with patience():
            found = await store.streams()
            assert "main" in found
            assert all(isinstance(name, str) for name in found)
            assert (await store.stats()).counts["pending"] >= 1
            for stream in found:
                await store.stats(stream)
                await store.leases(stream)
        await until(lambda: store.prune(0.0, 100))
        async with Relay(store, MemoryBroker(), poll_seconds=0.02) as relay:

            async def sent() -> bool:
                return relay.counts.done == 1

            await until(sent)

    @pytest.mark.promise("G7", "F1")
    @pytest.mark.parametrize("step", [1, 1_000])
    async def test_an_odd_note_is_no_reason_to_remember_the_others(
        self,
        store: Store,
        write: Write,
        meddle: Meddle,
        monkeypatch: pytest.MonkeyPatch,
        step: int,
    ) -> None:
        monkeypatch.setattr(acceptances, "STEP", step)
        for odd in self.odd_notes:
            await meddle(odd)
        for name in ("m-1", "m-2", "m-3"):
            async with write(store) as tx:
                assert await Inbox("payments").accept(tx, Note(name))
        async with patience():
            await store.forget_accepted("payments", -60.0, ())
        for name in ("m-1", "m-2", "m-3"):
            async with write(store) as tx:
                assert await Inbox("payments").accept(tx, Note(name)), "it was forgotten"

    async def test_what_no_relay_writes_is_refused(self, try_to: Meddle) -> None:
        for statement in self.refused:
            try:
                await try_to(_of_lane(statement, 7))
            except self.refusals:
                continue
            pytest.fail(f"it was not refused: {statement}")


def _of_lane(statement: Any, lane: int) -> Any:
    """Return the entry for this lane: text or, for some stores, a function."""
    if isinstance(statement, str):
        return statement.replace("{lane}", str(lane))
    return statement(lane) if callable(statement) else statement
