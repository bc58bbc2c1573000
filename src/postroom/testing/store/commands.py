"""The contract of operators' commands (L7, B6)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from postroom.commands import Edit
from postroom.errors import NotFoundError
from postroom.event import Event
from postroom.lookup import Filter
from postroom.model.clock import host_microseconds
from postroom.record import State
from postroom.settlement import FailedOutcome
from postroom.store import Store
from postroom.testing.store.tools import (
    ALL,
    FAR,
    Add,
    Hand,
    event,
    names,
    needs,
    until,
)


class CommandContract:
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

    async def test_a_message_that_is_stored_only_to_be_buried_has_its_attempts(
        self, store: Store, add: Add
    ) -> None:
        later = datetime.now(UTC) + timedelta(days=365)
        await add(event("message", available_at=later), event("other", available_at=later))
        assert await store.bury(["message"], "no", history="{}", attempts=5) == 1
        assert await store.bury(["other"], "by hand") == 1
        message, other = [await store.get(name) for name in ("message", "other")]
        assert message is not None
        assert other is not None
        assert (message.state, message.attempts, message.last_error) == ("dead", 5, "no")
        assert (other.state, other.attempts, other.last_error) == ("dead", 0, "by hand")
        details = [await store.details(name) for name in ("message", "other")]
        assert [d is not None and d.available_us is not None for d in details] == [False, True]
        assert await store.replay(["message"]) == 1
        again = await store.get("message")
        assert again is not None
        assert (again.state, again.attempts) == ("pending", 0)

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
            Event(
                "t", b"\x00\xff", id="old", key="k", headers={"a": "b"}, correlation_id="c",
                partition=3,
            )
        )  # fmt: skip
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

    @pytest.mark.promise("G7", "L7")
    async def test_an_event_that_an_operator_sends_again_has_no_deliver_by(
        self, store: Store, add: Add
    ) -> None:
        """The time may have passed: the operator has decided that it is sent all the same."""
        passed = datetime.now(UTC) - timedelta(days=1)
        buried = ("edited", "copied", "replayed")
        await add(*(event(n, n, deliver_by=passed, partition=3) for n in (*buried, "skipped")))
        await store.bury(buried, "poison")
        await store.edit("edited", Edit(b"{}"))
        assert await store.replay(["copied"], new_id=True) == 1
        assert await store.replay(["replayed"]) == 1
        await store.skip("skipped", "not wanted")
        sent = await (await Hand(store).take()).read()
        assert {record.key: (record.expires_at, record.options) for record in sent} == {
            "edited": (None, {"partition": 3}),
            "copied": (None, {"partition": 3}),
            "replayed": (None, {"partition": 3}),
            "skipped": (None, {}),  # the marker of the event
        }

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


class WholeContract:
    """A head with its followers: all of them or none."""

    @pytest.mark.promise("L7", "G4")
    async def test_a_head_is_buried_and_replayed_with_its_followers(
        self, store: Store, add: Add
    ) -> None:
        ids = ["head", "one", "two"]
        await add(*(event(name, "k") for name in ids))
        hand = await Hand(store).take()
        await hand.fail(await hand.only("head"), delay=FAR)
        await hand.settle(parked=await hand.read())
        assert await store.bury(["two", "head", "one"], "broken", by="olga", whole=True) == 3
        await add(event("later", "k"))
        hand = await Hand(store).take()
        assert await hand.work() == ["later"]  # the key is free
        assert (await store.stats()).blocked_keys == 0
        assert await store.replay(["two", "one", "head"], by="olga") == 3
        await add(event("last", "k"))
        assert await hand.work() == [*ids, "last"]

    @pytest.mark.promise("G4")
    async def test_all_of_the_named_events_are_changed_or_none(
        self, store: Store, add: Add
    ) -> None:
        await add(event("head", "k"), event("follower", "k"), event("sent"), event("dead"))
        hand = await Hand(store).take()
        await hand.settle(done=[await hand.only("sent")])
        await hand.bury(await hand.only("dead"))
        before = {record.id: record for record in await store.find(Filter())}
        for other in ("sent", "unknown"):
            with pytest.raises(NotFoundError, match=f"event '{other}' changed meanwhile"):
                await store.bury(["head", other, "follower"], "broken", by="olga", whole=True)
        assert {record.id: record for record in await store.find(Filter())} == before
        assert await store.audit_log(10) == []
        assert await store.bury(["head", "head"], "broken", whole=True) == 1
