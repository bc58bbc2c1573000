"""The contract of operator commands, and of waking and handlers (L7, B6, H3)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from postroom.errors import NotFoundError
from postroom.event import Event
from postroom.model.clock import host_microseconds
from postroom.outbox import Outbox
from postroom.record import State
from postroom.settlement import FailedOutcome
from postroom.store import Filter, Store
from postroom.testing.store.tools import (
    ALL,
    FAR,
    Add,
    Another,
    Hand,
    event,
    names,
    needs,
    patience,
    until,
)


class LookingContract:
    """Counting and finding."""

    async def test_what_is_not_there_is_none(self, store: Store) -> None:
        assert await store.get("nothing") is None
        assert await store.find(Filter()) == []
        assert await store.streams() == []
        assert await store.look_up([]) == {}
        assert await store.look_up(["nothing"]) == {}

    async def test_the_keys_of_what_is_unfinished(self, store: Store, add: Add) -> None:
        later = datetime.now(UTC) + timedelta(hours=1)
        await add(*(event(name, name) for name in ("a", "b", "c", "d")), event("d-2", "d"))
        await add(event("elsewhere", stream="other"), event("late", "e", available_at=later))
        hand = await Hand(store).take()
        r = {record.id: record for record in await hand.read()}
        await hand.settle(done=[r["a"]], starts=[r["c"]])
        await hand.bury(r["b"])
        await hand.fail(r["d"], delay=FAR)
        await hand.settle(parked=[await hand.only("d-2")])
        late = await store.get("late")
        assert late is not None
        wanted = [r["c"].key_hash, r["d"].key_hash, r["d"].key_hash, late.key_hash]
        assert sorted(await store.open_keys("main", 9)) == sorted(wanted)
        assert len(await store.open_keys("main", 3)) == 3
        assert await store.open_keys("nothing", 9) == []

    async def test_events_are_looked_up_by_their_ids(self, store: Store, add: Add) -> None:
        await add(event("a", "a"), event("b", "b"), event("c", "c", stream="other"))
        await store.bury(["b"], "gone")
        assert await store.look_up(["b", "a", "c", "x", "a"]) == {
            "a": ("main", "pending"),
            "b": ("main", "dead"),
            "c": ("other", "pending"),
        }

    @pytest.mark.req("S2.7", "S4.9")
    async def test_stats_count_by_state(self, store: Store, add: Add) -> None:
        await add(*(event(name, name) for name in ("a", "b", "c", "d", "e", "f")))
        await add(event("behind d", "d"), event("elsewhere", stream="other"))
        hand = await Hand(store).take()
        r = {record.id: record for record in await hand.read()}
        await hand.settle(done=[r["a"], r["b"]], starts=[r["c"]])
        await hand.fail(r["d"], delay=FAR)
        await hand.bury(r["e"])
        await hand.settle(parked=[await hand.only("behind d")])
        stats = await store.stats("main")
        assert stats.counts == {
            "pending": 2, "processing": 1, "done": 2, "failed": 1, "dead": 1,
            "expired": 0, "cancelled": 0,
        }  # fmt: skip
        assert stats.blocked_keys == 1
        other = await store.stats("other")
        assert (other.counts["pending"], sum(other.counts.values()), other.blocked_keys) == (
            1,
            1,
            0,
        )
        everything = await store.stats()
        assert everything.counts["pending"] == 3
        assert everything.counts["done"] == 2
        assert everything.blocked_keys == 1

    @pytest.mark.req("S2.7")
    async def test_the_lag_is_the_age_of_the_oldest_that_could_go(
        self, store: Store, add: Add
    ) -> None:
        assert (await store.stats("main")).lag_seconds == 0
        await add(event("e", "k"))
        hand = await Hand(store).take()

        async def lags() -> bool:
            return (await store.stats("main")).lag_seconds >= 0.02

        await until(lags)
        await hand.fail(await hand.only("e"), delay=FAR)
        assert (await store.stats("main")).lag_seconds == 0

    @pytest.mark.req("S1.9")
    async def test_find_filters_and_goes_page_by_page(self, store: Store, add: Add) -> None:
        await add(
            Event("order.created", id="1", key="k", topic="orders"),
            Event("order.paid", id="2", key="k", topic="money"),
            Event("order.created", id="3", key="m", topic="orders"),
            Event("order.created", id="4", key="k", topic="orders", stream="other"),
        )
        assert names(await store.find(Filter())) == ["1", "2", "3", "4"]
        assert names(await store.find(Filter(stream="main"))) == ["1", "2", "3"]
        assert names(await store.find(Filter(type="order.created"))) == ["1", "3", "4"]
        assert names(await store.find(Filter(topic="money"))) == ["2"]
        assert names(await store.find(Filter(key="k", stream="other"))) == ["4"]
        page = await store.find(Filter(limit=3))
        assert names(page) == ["1", "2", "3"]
        assert names(await store.find(Filter(after_seq=page[-1].seq, limit=3))) == ["4"]

    @pytest.mark.req("S1.9")
    async def test_find_by_state(self, store: Store, add: Add) -> None:
        await add(*(event(name, name) for name in ("1", "2", "3", "4", "5", "6")))
        hand = await Hand(store).take()
        r = {record.id: record for record in await hand.read()}
        await hand.settle(done=[r["2"]], starts=[r["3"]])
        await hand.fail(r["4"])
        await hand.bury(r["5"])
        await hand.bury(r["6"])
        found = {state: names(await store.find(Filter(state=state))) for state in State}
        assert found == {
            State.PENDING: ["1"],
            State.DONE: ["2"],
            State.PROCESSING: ["3"],
            State.FAILED: ["4"],
            State.DEAD: ["5", "6"],
            State.EXPIRED: [],
            State.CANCELLED: [],
        }
        dead = Filter(state=State.DEAD, stream="main", after_seq=r["5"].seq)
        assert names(await store.find(dead)) == ["6"]

    async def test_streams_are_those_with_events_or_leases(self, store: Store, add: Add) -> None:
        await add(event("a", stream="b-ready"), event("b", stream="c-dead"), event("c", stream="d"))
        later = datetime.now(UTC) + timedelta(hours=1)
        await add(event("later", stream="e-waiting", available_at=later))
        await store.take("a-leased", "anna", [1], FAR)
        await store.bury(["b"], "dead")
        hand = await Hand(store, stream="d").take()
        await hand.fail(await hand.only("c"), delay=FAR)
        assert await store.streams() == ["a-leased", "b-ready", "c-dead", "d", "e-waiting"]

    @pytest.mark.req("S3.2")
    async def test_prune_deletes_old_done_events_only_and_in_steps(
        self, store: Store, add: Add
    ) -> None:
        await add(*(event(f"e{n}", f"k{n}") for n in range(8)))
        hand = await Hand(store).take()
        r = {record.id: record for record in await hand.read()}
        for n in range(5):
            await hand.settle(done=[r[f"e{n}"]])
        await hand.bury(r["e5"])
        await hand.fail(r["e6"])
        assert await store.prune(FAR, 100) == 0
        assert await store.prune(-1.0, 2) == 2
        assert names(await store.find(Filter())) == ["e2", "e3", "e4", "e5", "e6", "e7"]
        assert await store.prune(-1.0, 100) == 3
        assert await store.prune(-1.0, 100) == 0
        assert names(await store.find(Filter())) == ["e5", "e6", "e7"]


class OperatorContract:
    """Replay, bury and skip, on events that may be in flight."""

    @pytest.mark.promise("G7")
    async def test_bury_makes_dead_letters_that_keep_everything(
        self, store: Store, add: Add
    ) -> None:
        await add(event("a", "k", headers={"h": "v"}), event("b", "m"), event("done", "n"))
        hand = await Hand(store).take()
        await hand.settle(done=[await hand.only("done")])
        before = await store.get("a")
        assert before is not None
        assert await store.bury(["a", "done", "no such"], "by hand") == 1
        assert await store.get("a") == before._replace(state="dead", last_error="by hand")
        assert names(await hand.read()) == ["b"]

    @pytest.mark.promise("B4", "L7")
    async def test_burying_a_head_frees_its_key(self, store: Store, add: Add) -> None:
        await add(*(event(name, "k") for name in ("head", "1", "2")))
        hand = await Hand(store).take()
        await hand.fail(await hand.only("head"), delay=FAR)
        await hand.settle(parked=await hand.read())
        assert await store.bury(["head"], "by hand") == 1
        assert [(r.id, r.barrier) for r in await hand.read()] == [("1", None), ("2", None)]

    @pytest.mark.promise("B4", "L7")
    async def test_burying_a_parked_follower_leaves_the_block(self, store: Store, add: Add) -> None:
        await add(*(event(name, "k") for name in ("head", "1", "2")))
        hand = await Hand(store).take()
        await hand.fail(await hand.only("head"))
        await hand.settle(parked=await hand.read())
        assert await store.bury(["1"], "by hand") == 1
        assert await hand.read() == []
        await hand.take()
        assert await hand.work() == ["head"]
        assert names(await hand.read()) == ["2"]

    @pytest.mark.req("S2.4")
    @pytest.mark.promise("G7")
    async def test_replay_sends_dead_and_done_events_again_in_order(
        self, store: Store, add: Add
    ) -> None:
        await add(*(event(name, "k") for name in ("1", "2", "3", "4")))
        hand = await Hand(store).take()
        one, two, three, _ = await hand.read()
        await hand.settle(done=[one])
        await hand.bury(two)
        await hand.bury(three)
        assert await store.replay(["3", "4", "1", "2", "no such"]) == 3
        again = await hand.read()
        assert names(again) == ["1", "2", "3", "4"]
        assert {(r.state, r.attempts) for r in again} == {("pending", 0)}
        assert again[1].payload == two.payload
        await hand.take()
        assert await hand.work() == ["1", "2", "3", "4"]

    @pytest.mark.promise("I6")
    async def test_replay_under_new_ids_makes_copies(self, store: Store, add: Add) -> None:
        await add(
            Event("t", b"\x00\xff", id="old", key="k", headers={"a": "b"}, correlation_id="c")
        )
        hand = await Hand(store).take()
        old = await hand.only("old")
        await hand.settle(done=[old])

        async def is_older() -> bool:  # by more than the resolution of any store
            return host_microseconds() > old.created_us + 5_000

        await until(is_older)
        before = host_microseconds()
        assert await store.replay(["old"], new_id=True) == 1
        (copy,) = await hand.read()
        assert copy.id != "old"
        assert copy.seq > old.seq
        assert copy.created_us >= before - 1_000
        assert copy == old._replace(id=copy.id, seq=copy.seq, created_us=copy.created_us)
        kept = await store.get("old")
        assert kept is not None
        assert kept.state == State.DONE

    @needs("transactions")
    @pytest.mark.promise("B6")
    async def test_skip_puts_a_marker_in_the_place_of_the_event(
        self, store: Store, add: Add
    ) -> None:
        headed = Event(
            "t", {"name": "1"}, id="1", key="k", headers={"tenant": "north"}, schema_version=3
        )
        await add(headed, *(event(name, "k") for name in ("2", "3")), strict=True)
        hand = await Hand(store).take()
        first = await hand.only("1")
        await hand.fail(first, delay=FAR)
        await store.skip("1", "cannot be")
        marker, *others = await hand.read()
        assert (marker.type, marker.kseq, marker.seq) == ("postroom.skipped", 1, first.seq)
        assert (marker.schema_version, marker.occurred_us > first.occurred_us) == (1, True)
        assert marker.data == {"skipped": "1", "reason": "cannot be"}
        assert marker.headers == {"tenant": "north"}  # so that it takes the event's position
        assert (marker.key, marker.topic, marker.key_hash) == (
            first.key,
            first.topic,
            first.key_hash,
        )
        assert (marker.state, marker.attempts) == ("pending", 0)
        assert [(r.id, r.kseq) for r in others] == [("2", 2), ("3", 3)]
        grave = await store.get("1")
        assert grave is not None
        assert (grave.state, grave.last_error, grave.payload) == (
            "dead",
            "cannot be",
            first.payload,
        )
        await hand.take()
        sent = [*await hand.work(), *await hand.work(), *await hand.work()]
        assert sent == [marker.id, "2", "3"]

    @needs("transactions")
    @pytest.mark.promise("B6")
    async def test_a_skipped_event_gets_a_new_number_when_it_is_replayed(
        self, store: Store, add: Add
    ) -> None:
        await add(event("1", "k"), event("2", "k"), strict=True)
        hand = await Hand(store).take()
        await store.skip("1", "not now")
        await hand.take()
        await hand.settle(done=await hand.read(), keep_done=False)
        assert await store.replay(["1"]) == 1
        (again,) = await hand.read()
        assert (again.id, again.kseq, again.data) == ("1", 3, {"name": "1"})
        await add(event("next", "k"), strict=True)
        assert [(r.id, r.kseq) for r in await hand.read()] == [("1", 3), ("next", 4)]
        await store.skip("1", "nor now")  # a second time: its marker's usual id may be taken
        assert [(r.type, r.kseq) for r in await hand.read()] == [
            ("postroom.skipped", 3),
            ("tested", 4),
        ]

    @needs("transactions")
    @pytest.mark.promise("B6")
    async def test_a_strict_copy_gets_a_new_number(self, store: Store, add: Add) -> None:
        await add(event("1", "k"), event("2", "k"), strict=True)
        hand = await Hand(store).take()
        await hand.settle(done=await hand.read())
        await store.replay(["1"], new_id=True)
        assert [r.kseq for r in await hand.read()] == [3]

    async def test_only_an_unfinished_event_can_be_skipped(self, store: Store, add: Add) -> None:
        await add(event("1", "k"))
        hand = await Hand(store).take()
        await hand.settle(done=await hand.read())
        for name in ("1", "no such"):
            with pytest.raises(NotFoundError, match=name):
                await store.skip(name, "why")

    @needs("transactions")
    @pytest.mark.promise("B6")
    async def test_two_long_ids_of_one_beginning_can_both_be_skipped(
        self, store: Store, add: Add
    ) -> None:
        long_ids = ["ž" * 49 + "a", "ž" * 49 + "b"]
        await add(*(Event("t", id=name, key="k") for name in long_ids), strict=True)
        for name in long_ids:
            await store.skip(name, "why")
        markers = await Hand(store).read()
        assert [r.kseq for r in markers] == [1, 2]
        assert max(len(r.id.encode()) for r in markers) <= 100

    @pytest.mark.promise("L7", "G5")
    @pytest.mark.parametrize("verb", ["bury", "skip"])
    async def test_operators_take_the_lane_from_its_owner(
        self, store: Store, add: Add, verb: str
    ) -> None:
        await add(event("e", "k"), event("other", "not k"))
        hand = await Hand(store).take()
        in_flight = await hand.only("e")
        if verb == "bury":
            await store.bury(["e"], "by hand")
        else:
            await store.skip("e", "by hand")
        before = await store.find(Filter())
        outcomes = [FailedOutcome(in_flight, 1, 0.0, "late")]
        assert await hand.settle(failed=outcomes) == set(ALL) - {in_flight.lane}
        assert await hand.settle(done=[in_flight]) == set(ALL) - {in_flight.lane}
        assert await store.find(Filter()) == before
        assert sorted(await store.take("main", "bert", ALL, FAR)) == [in_flight.lane]

    @pytest.mark.promise("L7", "G3")
    async def test_a_replay_leaves_the_lanes_to_their_owners(self, store: Store, add: Add) -> None:
        """E-5: finished events are not in flight, and their neighbours need not be sent again."""
        await add(event("over", "k"), event("dead", "d"), event("in flight", "k"))
        hand = await Hand(store).take()
        await hand.settle(done=[await hand.only("over")])
        await hand.bury(await hand.only("dead"))
        in_flight = await hand.only("in flight")
        assert await store.replay(["over", "dead"]) == 2
        assert await hand.settle(done=[in_flight]) == set(ALL)
        assert sorted(names(await hand.read())) == ["dead", "over"]
        assert await hand.settle(done=await hand.read()) == set(ALL)
        assert await store.take("main", "bert", ALL, FAR) == {}

    @pytest.mark.promise("L5", "L7")
    async def test_a_settle_in_doubt_does_not_undo_a_replay(self, store: Store, add: Add) -> None:
        """Its reply was lost, and before it is repeated an operator replays the event."""
        await add(event("over", "k"), event("other", "not k"))
        hand = await Hand(store).take()
        lane = (await hand.only("over")).lane
        await hand.settle(done=await hand.read())
        await store.replay(["over"])
        again = await store.retake("main", "anna", hand.held, FAR, 60.0)
        assert set(again) == set(ALL) - {lane}
        assert set(await store.retake("main", "anna", {lane: hand.held[lane]}, FAR)) <= {lane}


class _Refused(Exception):
    """Raised by a handler."""


class HandlerContract:
    """Transactions for handlers, and waking."""

    @pytest.mark.req("S5.7")
    @pytest.mark.promise("G6", "H3")
    async def test_a_handlers_transaction_commits_at_its_end(self, store: Store) -> None:
        async with store.transaction() as tx:
            await Outbox().add(tx, event("one"))
            await Outbox().add(tx, event("two"))
        assert sorted(names(await Hand(store).read())) == ["one", "two"]

    @pytest.mark.req("S5.7")
    @pytest.mark.promise("G6", "H3")
    async def test_a_handlers_transaction_rolls_back_on_an_error(self, store: Store) -> None:
        with suppress(_Refused):
            async with store.transaction() as tx:
                await Outbox().add(tx, event("lost"))
                raise _Refused
        async with store.transaction() as tx:
            await Outbox().add(tx, event("kept"))
        assert names(await Hand(store).read()) == ["kept"]

    @pytest.mark.promise("H3")
    async def test_several_handlers_can_ask_for_a_transaction_at_once(self, store: Store) -> None:
        async def handle(number: int) -> None:
            async with store.transaction() as tx:
                await Outbox().add(tx, event(f"e{number}"))

        async with patience():
            await asyncio.gather(*(handle(n) for n in range(20)))
        assert len(await Hand(store).read()) == 20

    @needs("notify")
    async def test_a_commit_elsewhere_ends_the_wait(
        self, store: Store, another: Another, write: object
    ) -> None:
        other = await another()
        async with patience():
            while await store.wait_for_change(0.0):
                pass
            waiting = asyncio.ensure_future(store.wait_for_change(FAR))
            await asyncio.sleep(0)
            async with other.transaction() as tx:
                await Outbox().add(tx, event("news"))
            assert await waiting is True

    @needs("notify")
    async def test_without_a_commit_the_wait_ends_by_itself(self, store: Store) -> None:
        async with patience():
            while await store.wait_for_change(0.0):
                pass
            assert await store.wait_for_change(0.05) is False

    @needs("notify")
    async def test_a_cancelled_wait_leaves_the_store_usable(self, store: Store) -> None:
        waiting = asyncio.ensure_future(store.wait_for_change(FAR))
        await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        assert await store.streams() == []
