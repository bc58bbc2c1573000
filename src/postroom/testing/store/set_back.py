"""The contract of identity: a settle identifies an event by its number, id, stream and lane.

After a failover to a replica that lagged, a restored backup or a crash that lost committed
transactions, a number may belong to another event than the one that was read under it.
"""

from __future__ import annotations

from typing import Any

import pytest

from postroom.record import Record
from postroom.settlement import DeadOutcome, FailedOutcome, Settlement
from postroom.store import Store
from postroom.testing.store.tools import ALL, FAR, Add, Hand, event, keys_of_lane, names

KINDS = ("done", "deleted", "failed", "dead", "starts", "returned", "parked")


def outcome(kind: str, record: Record) -> dict[str, Any]:
    """Return the arguments of a settlement with this outcome of a record."""
    match kind:
        case "deleted":
            return {"done": [record], "keep_done": False}
        case "failed":
            return {"failed": [FailedOutcome(record, 3, FAR, "boom")]}
        case "dead":
            return {"dead": [DeadOutcome(record, 3, "boom")]}
        case _:
            return {kind: [record]}


class NamingContract:
    """Which events a settle changes, and which it leaves alone."""

    async def untouched(self, store: Store, before: Record, settlement: Settlement) -> None:
        """Settle, and compare: the event is as it was, and no key is blocked."""
        await store.settle(settlement)
        assert await store.get(before.id) == before._replace(barrier=None)
        assert (await store.stats()).blocked_keys == 0

    # E-1
    @pytest.mark.promise("G2", "L8")
    @pytest.mark.parametrize("kind", KINDS)
    async def test_another_event_under_the_same_number_is_left_alone(
        self, store: Store, add: Add, kind: str
    ) -> None:
        await add(event("stranger", "k"), event("neighbour", "n"))
        hand = await Hand(store).take()
        stranger = await hand.only("stranger")
        if kind == "returned":
            await hand.settle(starts=[stranger])
            stranger = await hand.only("stranger")
        lost = stranger._replace(id="lost")
        settlement = hand.settlement(**outcome(kind, lost))
        settlement.done.append(await hand.only("neighbour"))
        await self.untouched(store, stranger, settlement)
        assert names(await hand.read()) == ["stranger"]
        expected = [] if kind == "parked" else ["lost"]
        assert [missing.record.id for missing in settlement.missing] == expected

    @pytest.mark.promise("G2", "L8")
    @pytest.mark.parametrize("kind", KINDS)
    async def test_an_event_that_was_written_again_under_another_number_is_left_alone(
        self, store: Store, add: Add, kind: str
    ) -> None:
        await add(event("again", "k"))
        hand = await Hand(store).take()
        again = await hand.only("again")
        if kind == "returned":
            await hand.settle(starts=[again])
            again = await hand.only("again")
        before = again._replace(seq=again.seq - (1 << 64 if again.seq >> 64 else 1))
        await self.untouched(store, again, hand.settlement(**outcome(kind, before)))

    @pytest.mark.promise("G2", "G5", "L8")
    @pytest.mark.parametrize("kind", KINDS)
    async def test_the_lane_of_the_row_must_be_held_too(
        self, store: Store, add: Add, kind: str
    ) -> None:
        (key,) = keys_of_lane(7, 1)
        await add(event("e", key))
        hand = await Hand(store).take()
        record = await hand.only("e")
        if kind == "returned":
            await hand.settle(starts=[record])
            record = await hand.only("e")
        await store.release("main", "anna", {7: hand.held.pop(7)})
        await self.untouched(
            store, record, hand.settlement(**outcome(kind, record._replace(lane=8)))
        )

    @pytest.mark.promise("G2", "R5")
    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_settle_of_one_stream_changes_no_other(
        self, store: Store, add: Add, kind: str
    ) -> None:
        await add(event("e", "k"))
        hand = await Hand(store).take()
        record = await hand.only("e")
        if kind == "returned":
            await hand.settle(starts=[record])
            record = await hand.only("e")
        other = await Hand(store, stream="other").take()
        settlement = other.settlement(**outcome(kind, record._replace(stream="other")))
        await self.untouched(store, record, settlement)

    @pytest.mark.promise("G2", "G7")
    async def test_a_lost_event_in_the_middle_costs_nothing_but_itself(
        self, store: Store, add: Add
    ) -> None:
        await add(*(event(f"e{n}", f"k{n}") for n in range(9)))
        hand = await Hand(store).take()
        records = sorted(await hand.read(), key=lambda record: record.id)
        done, failed, dead = records[:3], records[3:6], records[6:]
        lost = {record.id: record._replace(id=f"lost {record.id}") for record in records}
        settlement = hand.settlement(
            done=[done[0], lost["e1"], done[2]],
            failed=[FailedOutcome(r, 1, FAR, "boom") for r in (failed[0], lost["e4"], failed[2])],
            dead=[DeadOutcome(r, 1, "boom") for r in (dead[0], lost["e7"], dead[2])],
        )
        assert await store.settle(settlement) == set(ALL)
        states = [record.state for n in range(9) if (record := await store.get(f"e{n}"))]
        assert states == [
            "done", "pending", "done", "failed", "pending", "failed", "dead", "pending", "dead",
        ]  # fmt: skip
        assert {m.record.id for m in settlement.missing} == {"lost e1", "lost e4", "lost e7"}
        assert (await store.stats()).blocked_keys == 2

    @pytest.mark.promise("G2")
    @pytest.mark.parametrize("keep_done", [True, False])
    async def test_two_events_that_had_the_same_number_are_told_apart(
        self, store: Store, add: Add, keep_done: bool
    ) -> None:
        await add(event("b", "k"), event("c", "l"))
        hand = await Hand(store).take()
        there, other = await hand.only("b"), await hand.only("c")
        lost = [there._replace(id=name, lane=other.lane) for name in ("a", "z")]
        settlement = hand.settlement(done=[lost[0], there, lost[1], other], keep_done=keep_done)
        await store.settle(settlement)
        assert await hand.read() == []
        assert {m.record.id for m in settlement.missing} == {"a", "z"}

    @pytest.mark.promise("L5")
    async def test_what_a_repeated_settle_finds_over_is_not_missing(
        self, store: Store, add: Add
    ) -> None:
        await add(event("done", "a"), event("dead", "b"), event("failed", "c"), event("run", "d"))
        hand = await Hand(store).take()
        settlement = hand.settlement(
            done=[await hand.only("done")],
            dead=[DeadOutcome(await hand.only("dead"), 1, "boom")],
            failed=[FailedOutcome(await hand.only("failed"), 1, FAR, "boom")],
            starts=[await hand.only("run")],
        )
        for _ in range(2):
            assert await store.settle(settlement) == set(ALL)
            assert settlement.missing == []

    @pytest.mark.promise("L2")
    async def test_what_lies_in_a_lost_lane_is_not_missing(self, store: Store, add: Add) -> None:
        (key,) = keys_of_lane(7, 1)
        await add(event("e", key))
        hand = await Hand(store).take()
        lost = (await hand.only("e"))._replace(id="lost")
        await store.release("main", "anna", {7: hand.held[7]})
        settlement = hand.settlement(done=[lost])
        assert await store.settle(settlement) == set(ALL) - {7}
        assert settlement.missing == []
