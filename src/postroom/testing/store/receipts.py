"""The contract of receipts: where its destination put an event, stored with its done row."""

from __future__ import annotations

import pytest

from postroom.inbox import Inbox
from postroom.model import receipts
from postroom.model.clock import host_microseconds
from postroom.record import State
from postroom.settlement import FailedOutcome
from postroom.store import Store
from postroom.testing.store.tools import FAR, Add, Hand, Write, event, keys_of_lane

_QUOTES = receipts.make(
    "kafka", topic='a "quoted" \\ topic \n %s :x $set {1,2} é漢🙂\x00', offset=7
)
_LONG = receipts.make("rabbitmq", exchange="é" * 255, routing_key="x" * 255)


async def _receipt(store: Store, name: str) -> str | None:
    details = await store.details(name)
    assert details is not None
    return details.receipt


class ReceiptContract:
    """Receipts of done events."""

    @pytest.mark.req("S1.9")
    async def test_each_done_event_keeps_its_own_receipt(self, store: Store, add: Add) -> None:
        names = ["last", "e'1", "e-2", "none", "e/3", "first"]  # neither order is the other
        await add(*(event(name, name) for name in names))
        hand = await Hand(store).take()
        done = {record.id: record for record in await hand.read()}
        given = {
            "last": '{"by":"r","to":"kafka","topic":"t","partition":0,"offset":9}',
            "e'1": _QUOTES, "e-2": _LONG, "e/3": '{"by":"r"}', "first": "{}", "stranger": "{}",
        }  # fmt: skip
        order = [done[name] for name in ("e/3", "none", "first", "e-2", "last", "e'1")]
        await hand.settle(done=order, receipts=given)
        for name in names:
            assert await _receipt(store, name) == given.get(name)
        assert _LONG.isascii()
        assert len(_LONG) <= receipts.MAX_BYTES

    @pytest.mark.req("S1.9")
    async def test_beside_other_outcomes_too(self, store: Store, add: Add) -> None:
        await add(event("a", "a"), event("b", "b"), event("c", "c"), event("follower", "b"))
        hand = await Hand(store).take()
        records = {record.id: record for record in await hand.read()}
        failed = [FailedOutcome(records["b"], 1, FAR, "boom")]
        given = {name: receipts.make("kafka", topic=name) for name in ("a", "b", "c")}
        done = [records["c"], records["a"]]
        await hand.settle(done=done, failed=failed, receipts=given)
        found = {name: await _receipt(store, name) for name in records}
        assert found == {**given, "b": None, "follower": None}

    @pytest.mark.req("S1.9")
    @pytest.mark.promise("L5", "G5")
    async def test_only_the_holder_of_the_lane_writes_one_and_only_once(
        self, store: Store, add: Add
    ) -> None:
        await add(event("e", "k"), event("f", "other"))
        hand = await Hand(store).take()
        e, f = await hand.only("e"), await hand.only("f")
        late = hand.settlement(done=[e], receipts={"e": '{"by":"late"}'})
        late.leases = {lane: token - 1 for lane, token in late.leases.items()}
        assert await store.settle(late) == set()
        assert await _receipt(store, "e") is None
        await hand.settle(done=[e], receipts={"e": '{"by":"first"}'})
        await hand.settle(done=[e, f], receipts={"e": '{"by":"second"}', "f": '{"by":"f"}'})
        assert await _receipt(store, "e") == '{"by":"first"}'
        assert await _receipt(store, "f") == '{"by":"f"}'

    @pytest.mark.req("S1.9")
    async def test_a_replayed_event_loses_its_receipt(self, store: Store, add: Add) -> None:
        await add(event("e", "k"), event("copied"))
        hand = await Hand(store).take()
        given = {"e": '{"by":"first"}', "copied": '{"by":"other"}'}
        await hand.settle(done=await hand.read(), receipts=given)
        await store.replay(["e"])
        await store.replay(["copied"], new_id=True)
        assert await _receipt(store, "e") is None
        await hand.take()
        again = {record.id: record for record in await hand.read()}
        (copy,) = again.keys() - {"e"}
        assert await _receipt(store, copy) is None
        await hand.settle(done=[again["e"]], receipts={"e": '{"by":"second"}'})
        assert await _receipt(store, "e") == '{"by":"second"}'

    @pytest.mark.req("S1.9")
    async def test_many_of_one_lane_keep_their_own(self, store: Store, add: Add) -> None:
        keys = keys_of_lane(7, 140)
        await add(*(event(f"e{n}", key) for n, key in enumerate(keys)))
        hand = await Hand(store).take()
        done = await hand.read()
        given = {
            r.id: receipts.make("kafka", topic="t", offset=n) for n, r in enumerate(reversed(done))
        }
        await hand.settle(done=done, receipts=given)
        assert {r.id: await _receipt(store, r.id) for r in done[::23]} == {
            r.id: given[r.id] for r in done[::23]
        }

    @pytest.mark.req("S1.9", "S3.2")
    async def test_a_deleted_event_leaves_no_receipt(self, store: Store, add: Add) -> None:
        await add(event("e"), event("f", "k"))
        hand = await Hand(store).take()
        done = await hand.read()
        settlement = hand.settlement(done=done, receipts={"e": "{}"}, keep_done=False)
        assert await store.settle(settlement) == set(hand.held)
        assert settlement.missing == []
        assert await store.details("e") is None
        assert (await store.stats()).counts.get(State.DONE, 0) == 0

    @pytest.mark.req("S1.9", "S3.1")
    async def test_the_inbox_tells_which_consumers_have_a_message(
        self, store: Store, write: Write
    ) -> None:
        before = host_microseconds()
        for consumer, name in [("a", "e"), ("b/x", "e"), ("b/x", "other"), ("z", "f"), ("z", "e'")]:
            async with write(store) as tx:
                assert await Inbox(consumer).accept(tx, event(name))
        found = await store.acceptances(["e", "f", "none"])
        assert {(one.consumer, one.id, one.done) for one in found} == {
            ("a", "e", True), ("b/x", "e", True), ("z", "f", True),
        }  # fmt: skip
        assert all(abs((one.at_us or 0) - before) < 600_000_000 for one in found)
        assert [one.consumer for one in await store.acceptances(["e'"])] == ["z"]
        assert await store.acceptances([]) == []
        assert await store.acceptances(["none"]) == []
