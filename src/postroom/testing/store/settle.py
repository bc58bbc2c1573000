"""The contract of outcomes (rules H1, L5, R2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from postroom.model import history
from postroom.record import State
from postroom.settlement import DeadOutcome, FailedOutcome
from postroom.store import Store
from postroom.testing.store.tools import (
    FAR,
    Add,
    Another,
    Hand,
    event,
    names,
    until,
)


class SettlingContract:
    """The outcomes of events."""

    @pytest.mark.req("S2.4", "S1.9")
    async def test_done_is_kept_for_people(self, store: Store, add: Add) -> None:
        await add(event("e", "k"))
        hand = await Hand(store).take()
        await hand.settle(done=await hand.read())
        record = await store.get("e")
        assert record is not None
        assert record.state == State.DONE
        assert await hand.read() == []

    @pytest.mark.req("S3.2")
    async def test_done_is_deleted_at_once_where_that_is_wanted(
        self, store: Store, add: Add
    ) -> None:
        await add(event("e", "k"))
        hand = await Hand(store).take()
        await hand.settle(done=await hand.read(), keep_done=False)
        assert await store.get("e") is None

    @pytest.mark.req("S2.1", "S2.4", "S4.1")
    async def test_a_failure_is_written_and_waits(self, store: Store, add: Add) -> None:
        await add(event("e", "k"))
        hand = await Hand(store).take()
        await hand.settle(failed=[FailedOutcome(await hand.only("e"), 3, 1_000.0, "no route")])
        record = await store.get("e")
        assert record is not None
        assert (record.state, record.attempts, record.last_error) == ("failed", 3, "no route")
        assert record.next_attempt_us is not None
        assert abs(record.next_attempt_us - record.created_us - 1_000_000_000) < 300_000_000
        assert await hand.read() == []
        _, due_seconds, _ = await store.stage("main", range(64), 100)
        assert due_seconds is not None
        assert 900 < due_seconds <= 1_000

    @pytest.mark.req("S2.4")
    async def test_a_failure_comes_back_when_it_is_due(self, store: Store, add: Add) -> None:
        await add(event("e", "k"))
        hand = await Hand(store).take()
        await hand.fail(await hand.only("e"), delay=0.05)
        await until(hand.stage)
        again = await hand.only("e")
        assert (again.state, again.attempts, again.last_error) == ("failed", 1, "boom")

    @pytest.mark.req("S2.4")
    @pytest.mark.promise("G7")
    async def test_a_dead_event_keeps_everything(self, store: Store, add: Add) -> None:
        await add(event("e", "k", headers={"a": "b"}))
        hand = await Hand(store).take()
        before = await hand.only("e")
        await hand.settle(dead=[DeadOutcome(before, 5, "never")])
        after = await store.get("e")
        assert after == before._replace(state="dead", attempts=5, last_error="never")
        assert await hand.read() == []
        assert await store.prune(-FAR, 100) == 0

    @pytest.mark.req("S2.3")
    @pytest.mark.promise("H1")
    async def test_a_start_is_counted_before_the_work(
        self, store: Store, add: Add, another: Another
    ) -> None:
        await add(event("e", "k"), event("not started", "k"))
        hand = await Hand(store).take()
        await hand.settle(starts=[await hand.only("e")])
        other = await another()
        started, waiting = await other.get("e"), await other.get("not started")
        assert started is not None
        assert waiting is not None
        assert (started.state, started.attempts) == ("processing", 1)
        assert (waiting.state, waiting.attempts) == ("pending", 0)

    @pytest.mark.req("S2.3", "S3.5")
    @pytest.mark.promise("G2", "R2")
    async def test_what_a_dead_relay_left_processing_is_read_again(
        self, store: Store, add: Add, another: Another
    ) -> None:
        await add(event("e", "k"))
        anna = await Hand(store).take(lease_seconds=FAR)
        await anna.settle(starts=[await anna.only("e")])
        await store.release("main", "anna", anna.held)
        bert = await Hand(await another(), "bert").take()
        (record,) = await bert.read()
        assert (record.id, record.state, record.attempts) == ("e", "processing", 1)

    @pytest.mark.promise("H1")
    async def test_what_was_returned_is_not_charged(self, store: Store, add: Add) -> None:
        await add(event("e", "k"))
        hand = await Hand(store).take()
        record = await hand.only("e")
        await hand.settle(starts=[record])
        await hand.settle(returned=[record])
        again = await hand.only("e")
        assert (again.state, again.attempts) == ("pending", 0)
        await hand.settle(returned=[again])
        assert await hand.only("e") == again

    @pytest.mark.promise("H1", "L5")
    async def test_a_start_that_is_written_twice_counts_once(self, store: Store, add: Add) -> None:
        await add(event("e", "k"))
        hand = await Hand(store).take()
        starts = [await hand.only("e")]
        await hand.settle(starts=starts)
        hand.held = await store.retake("main", "anna", hand.held, FAR)
        await hand.settle(starts=starts)
        assert (await hand.only("e")).attempts == 1

    @pytest.mark.promise("L5")
    async def test_a_settlement_repeated_after_a_lost_reply_is_harmless(
        self, store: Store, add: Add
    ) -> None:
        await add(*(event(name, name) for name in ("done", "failed", "dead")))
        await add(event("follower", "failed"))
        hand = await Hand(store).take()
        records = {r.id: r for r in await hand.read()}
        outcomes = {
            "done": [records["done"]],
            "failed": [FailedOutcome(records["failed"], 1, FAR, "boom")],
            "dead": [DeadOutcome(records["dead"], 1, "boom")],
        }
        await hand.settle(**outcomes)
        hand.held = await store.retake("main", "anna", hand.held, FAR)
        await hand.settle(**outcomes)
        assert {name: (await self.state_of(store, name)) for name in records} == {
            "done": ("done", 0),
            "failed": ("failed", 1),
            "dead": ("dead", 1),
            "follower": ("pending", 0),
        }
        (follower,) = await hand.read()
        assert follower.barrier == records["failed"].seq

    async def state_of(self, store: Store, name: str) -> tuple[str, int]:
        record = await store.get(name)
        assert record is not None
        return record.state, record.attempts

    @pytest.mark.promise("L5")
    async def test_what_is_over_stays_as_it_is(self, store: Store, add: Add) -> None:
        await add(event("done", "a"), event("dead", "b"))
        hand = await Hand(store).take()
        done, dead = await hand.only("done"), await hand.only("dead")
        await hand.settle(done=[done], dead=[DeadOutcome(dead, 1, "boom")])
        before = [await store.get("done"), await store.get("dead")]
        await hand.settle(done=[dead], dead=[DeadOutcome(done, 9, "late")])
        await hand.settle(done=[dead], keep_done=False)
        await hand.settle(failed=[FailedOutcome(r, 9, 0.0, "late") for r in (done, dead)])
        await hand.settle(starts=[done, dead], returned=[done, dead], parked=[done, dead])
        assert [await store.get("done"), await store.get("dead")] == before
        assert (await store.stats()).blocked_keys == 0

    async def test_an_empty_settlement_tells_the_held_lanes(self, store: Store) -> None:
        hand = await Hand(store).take([4, 5])
        assert await hand.settle() == {4, 5}

    async def test_the_stores_clock_decides_what_has_expired(self, store: Store, add: Add) -> None:
        now = datetime.now(UTC)
        await add(
            event("over", "a", deliver_by=now - timedelta(days=1)),
            event("behind", "a"),
            event("early", "b", deliver_by=now + timedelta(days=1)),
            event("never", "c"),
            event("alone", deliver_by=now - timedelta(days=1)),
        )
        hand = await Hand(store).take()
        records = {record.id: record for record in await hand.read()}
        assert records["over"].expires_at is not None
        proposed = [records[name] for name in ("over", "early", "never", "alone")]
        settlement = hand.settlement(expired=proposed)
        assert await store.settle(settlement) == set(hand.held)
        assert {record.id for record in settlement.kept} == {"early", "never"}
        assert settlement.missing == []
        assert sorted(names(await hand.read())) == ["behind", "early", "never"]
        found = {name: await store.get(name) for name in records}
        assert {name: (r.state, r.attempts) for name, r in found.items() if r is not None} == {
            "over": ("expired", 0), "behind": ("pending", 0), "early": ("pending", 0),
            "never": ("pending", 0), "alone": ("expired", 0),
        }  # fmt: skip
        again = hand.settlement(expired=[records["over"]])  # its reply was lost
        await store.settle(again)
        assert (again.kept, again.missing) == ([], [])
        assert (await store.stats()).counts["expired"] == 2
        for name in ("over", "alone"):
            details = await store.details(name)
            assert details is not None
            *_, told = history.read(details.history).entries
            assert (told["what"], told["by"]) == ("expired", "anna")
            assert told["error"].startswith("not sent before 20")

    async def test_an_event_expires_only_behind_the_fence(self, store: Store, add: Add) -> None:
        await add(event("over", "a", deliver_by=datetime.now(UTC) - timedelta(days=1)))
        hand = await Hand(store).take()
        [record] = await hand.read()
        late = hand.settlement(expired=[record])
        late.leases = {lane: token - 1 for lane, token in late.leases.items()}
        assert await store.settle(late) == set()
        assert names(await hand.read()) == ["over"]

    async def test_a_blocked_key_goes_on_when_its_head_expires(
        self, store: Store, add: Add
    ) -> None:
        soon = datetime.now(UTC) - timedelta(seconds=1)
        await add(event("head", "k", deliver_by=soon), event("next", "k"))
        hand = await Hand(store).take()
        await hand.fail(await hand.only("head"), delay=0.0)
        await hand.work(failing=["head"])
        await until(hand.stage)
        head = await hand.only("head")
        await hand.settle(expired=[head])
        assert names(await hand.read()) == ["next"]

    async def test_expired_events_are_pruned_and_kept_ones_are_not(
        self, store: Store, add: Add
    ) -> None:
        await add(event("over", "a", deliver_by=datetime.now(UTC) - timedelta(days=1)), event("b"))
        hand = await Hand(store).take()
        await hand.settle(expired=[await hand.only("over")])
        assert await store.prune(FAR, 100) == 0
        assert await store.prune(-FAR, 100) == 1
        assert await store.get("over") is None
        assert names(await hand.read()) == ["b"]
