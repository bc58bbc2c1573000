"""The contract of operations: stored, run by one owner at a time, in steps that are fenced."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from postroom.commands import AuditEntry
from postroom.lookup import Filter
from postroom.model.clock import host_microseconds
from postroom.operation import Change, NewOperation, Operation, OperationState, Step
from postroom.record import State
from postroom.store import Store
from postroom.testing.store.tools import Add, Another, Hand, SetBack, event, needs, until

NEW = NewOperation("replay", '{"filter": {}}', "same", 3, "state=dead")


async def dead(store: Store, add: Add, *ids: str, key: str | None = None) -> Hand:
    """Add events, and let each die; returns the relay that holds all lanes."""
    await add(*(event(name, key or name) for name in ids))
    hand = await Hand(store).take()
    for name in ids:
        await hand.bury(await hand.only(name))
    return hand


async def later(than_us: int) -> None:
    """Wait until the clock is past an instant, in the coarsest unit of a store."""

    async def is_past() -> bool:
        return host_microseconds() // 1_000 > than_us // 1_000

    await until(is_past)


async def states(store: Store) -> dict[str, str]:
    return {record.id: record.state for record in await store.find(Filter())}


async def held(store: Store, owner: str = "anna", new: NewOperation = NEW) -> Operation:
    """Start an operation after now, and take it."""
    await later(host_microseconds())
    started, is_new = await store.start_operation(new, by="olga")
    assert is_new
    taken = await store.take_operation(started.id, owner)
    assert taken is not None
    return taken


def at(text: str) -> Step:
    return Step(lambda _: text)


class OperationContract:
    """Operations as they are stored, and their steps."""

    async def test_an_operation_is_seen_by_every_process(
        self, store: Store, another: Another
    ) -> None:
        started, is_new = await store.start_operation(NEW, by="olga")
        assert is_new
        (seen,) = await (await another()).operations()
        assert seen == started == await store.operation(started.id)
        assert (seen.kind, seen.request, seen.state) == ("replay", NEW.request, "running")
        assert (seen.who, seen.total, seen.handled, seen.failed) == ("olga", 3, 0, 0)
        assert (seen.position, seen.error, seen.owner, seen.until_us) == (None,) * 4
        assert seen.free
        assert abs(seen.created_us - host_microseconds()) < 600_000_000
        assert await store.operation("unknown") is None

    async def test_an_operation_that_is_started_twice_runs_once(
        self, store: Store, another: Another
    ) -> None:
        stores = [store, await another()]
        started = await asyncio.gather(
            *(stores[n % 2].start_operation(NEW, by="olga") for n in range(6))
        )
        assert sorted(is_new for _, is_new in started) == [False] * 5 + [True]
        assert len({one.id for one, _ in started}) == 1
        first = started[0][0]
        other, is_new = await store.start_operation(NEW._replace(fingerprint="other"), by="olga")
        assert is_new
        assert await store.change_operation(first.id, Change.CANCEL, by="olga")
        again, is_new = await store.start_operation(NEW, by="olga")
        assert is_new
        assert {one.id for one in await store.operations(unfinished=True)} == {other.id, again.id}
        assert len(await store.operations()) == 3
        assert len(await store.operations(limit=2)) == 2
        assert [e.what for e in await store.audit_log(10)].count("operation-start") == 3

    async def test_one_process_at_a_time_owns_an_operation(
        self, store: Store, another: Another
    ) -> None:
        one, other = await held(store, "anna"), await another()
        assert (one.owner, one.free) == ("anna", False)
        assert await other.take_operation(one.id, "bert") is None
        again = await store.take_operation(one.id, "anna")  # after an unknown outcome
        assert again is not None
        assert again.token > one.token
        assert await store.advance_operation(one, at("stale")) is None
        assert await store.advance_operation(again, at("new")._replace(lease_seconds=-1)) == ()
        (seen,) = await other.operations(unfinished=True)
        assert (seen.position, seen.free) == ("new", True)
        taken = await other.take_operation(one.id, "bert")
        assert taken is not None
        assert taken.position == "new"
        assert await store.advance_operation(taken, Step(release=True)) == ()
        (seen,) = await other.operations()
        assert (seen.position, seen.owner, seen.free) == ("new", None, True)

    async def test_an_owner_in_the_future_is_no_owner(
        self, store: Store, set_back: SetBack
    ) -> None:
        one = await held(store)
        await set_back(3_600.0)
        (seen,) = await store.operations(unfinished=True)
        assert seen.free
        assert await store.take_operation(one.id, "bert") is not None
        assert await store.advance_operation(one, at("stale")) is None

    @pytest.mark.promise("G2")
    async def test_a_step_replays_events_and_moves_the_position(
        self, store: Store, add: Add, another: Another
    ) -> None:
        hand = await dead(store, add, "a", "b", "c", key="k")
        one = await held(store)
        told: list[Sequence[str]] = []

        def position(sent: Sequence[str]) -> str:
            told.append(tuple(sent))
            return "two"

        step = Step(position, ["c", "a", "unknown"])
        assert await store.advance_operation(one, step) == ("a", "c")
        assert told[-1] == ("a", "c")
        assert await states(store) == {"a": "pending", "b": "dead", "c": "pending"}
        seen = await (await another()).operation(one.id)
        assert seen is not None
        assert (seen.position, seen.handled, seen.state) == ("two", 2, "running")
        assert seen.owner == "anna"
        assert await hand.work() == ["a", "c"]  # in their order; the relay keeps its lanes
        entry = (await store.audit_log(1))[0]
        assert entry[:4] == ("olga", "replay", 2, "a, c")

    @pytest.mark.promise("G2")
    async def test_a_stale_owner_changes_nothing(
        self, store: Store, add: Add, another: Another
    ) -> None:
        await dead(store, add, "a", "b")
        other = await another()
        for change in (None, Change.PAUSE, Change.CANCEL):
            fresh = NEW._replace(fingerprint=f"after {change}")
            one = await held(store, "anna", fresh)
            if change is None:
                assert await store.advance_operation(one, Step(lease_seconds=-1)) == ()
                assert await other.take_operation(one.id, "bert") is not None
            else:
                assert await other.change_operation(one.id, change, by="olga")
            before = await other.operation(one.id)
            for to in (OperationState.RUNNING, OperationState.DONE, OperationState.STOPPED):
                stale = Step(lambda _: "stale", ["a"], to=to, error="stale", failed=1)
                assert await store.advance_operation(one, stale) is None
            assert await other.operation(one.id) == before
        assert await states(store) == {"a": "dead", "b": "dead"}

    async def test_a_pause_and_its_end_depose_the_owner(self, store: Store, add: Add) -> None:
        await dead(store, add, "a")
        one = await held(store)
        assert await store.change_operation(one.id, Change.PAUSE, by="bert")
        assert await store.take_operation(one.id, "anna") is None
        assert await store.change_operation(one.id, Change.RESUME, by="bert")
        assert await store.advance_operation(one, Step(lambda _: "stale", ["a"])) is None
        assert await states(store) == {"a": "dead"}

    async def test_only_events_that_were_finished_before_the_start_are_replayed(
        self, store: Store, add: Add
    ) -> None:
        hand = await dead(store, add, "died", "again", "sent")
        await store.replay(["sent"])
        await hand.settle(done=[await hand.only("sent")])
        await add(event("open"), event("dies later"))
        one = await held(store)
        await later(one.created_us)
        await store.replay(["again"])
        await hand.bury(await hand.only("again"))
        await hand.bury(await hand.only("dies later"))
        step = Step(lambda _: "x", ["died", "again", "dies later", "sent", "open"])
        assert await store.advance_operation(one, step) == ("died",)
        assert await store.advance_operation(one, step) == ()
        assert await store.advance_operation(one, step._replace(of_state="done")) == ("sent",)
        assert (await states(store))["dies later"] == State.DEAD

    async def test_a_clock_that_was_set_back_after_the_deaths_hides_no_event(
        self, store: Store, add: Add, set_back: SetBack
    ) -> None:
        await dead(store, add, "a")
        await set_back(3_600.0)
        one = await held(store)
        assert await store.advance_operation(one, Step(lambda _: "x", ["a"])) == ("a",)

    async def test_copies_are_reported_with_their_new_ids(self, store: Store, add: Add) -> None:
        await dead(store, add, "a", "b")
        one = await held(store)
        sent = await store.advance_operation(one, Step(" ".join, ["a", "b"], new_id=True))
        assert sent is not None
        assert len(set(sent) - {"a", "b"}) == 2
        found = await states(store)
        assert {found[name] for name in sent} == {"pending"}
        assert found["a"] == found["b"] == "dead"
        seen = await store.operation(one.id)
        assert seen is not None
        assert seen.position == " ".join(sent)

    @needs("transactions")
    @pytest.mark.promise("G2")
    async def test_a_step_that_fails_changes_neither_events_nor_position(
        self, store: Store, add: Add
    ) -> None:
        await dead(store, add, "a")
        one = await held(store)

        def broken(_: Sequence[str]) -> str:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await store.advance_operation(one, Step(broken, ["a"], failed=7))
        assert await states(store) == {"a": "dead"}
        seen = await store.operation(one.id)
        assert seen is not None
        assert (seen.position, seen.handled, seen.failed) == (None, 0, 0)
        assert await store.advance_operation(one, Step(lambda _: "x", ["a"])) == ("a",)

    async def test_operators_pause_resume_and_cancel(self, store: Store) -> None:
        one = await held(store)
        changes = [
            (Change.RESUME, False, "running"), (Change.PAUSE, True, "paused"),
            (Change.PAUSE, False, "paused"), (Change.RESUME, True, "running"),
            (Change.PAUSE, True, "paused"), (Change.CANCEL, True, "cancelled"),
            (Change.CANCEL, False, "cancelled"), (Change.RESUME, False, "cancelled"),
        ]  # fmt: skip
        for change, changed, state in changes:
            assert await store.change_operation(one.id, change, by="bert") == changed
            seen = await store.operation(one.id)
            assert seen is not None
            assert seen.state == state
        assert not await store.change_operation("unknown", Change.CANCEL, by="bert")
        assert [entry[:4] for entry in (await store.audit_log(10))[::-1]] == [
            ("olga", "operation-start", 3, f"{one.id}: replay state=dead"),
            ("bert", "operation-pause", 1, one.id),
            ("bert", "operation-resume", 1, one.id),
            ("bert", "operation-pause", 1, one.id),
            ("bert", "operation-cancel", 1, one.id),
        ]

    async def test_a_stopped_operation_can_be_resumed_and_a_finished_one_cannot(
        self, store: Store
    ) -> None:
        one = await held(store)
        stop = Step(lambda _: "half", failed=2, to=OperationState.STOPPED, error="boom")
        assert await store.advance_operation(one, stop) == ()
        seen = await store.operation(one.id)
        assert seen is not None
        assert (seen.state, seen.error, seen.failed, seen.owner) == ("stopped", "boom", 2, None)
        assert await store.take_operation(one.id, "anna") is None
        assert not (await store.start_operation(NEW, by="olga"))[1]
        assert await store.change_operation(one.id, Change.RESUME, by="bert")
        again = await store.take_operation(one.id, "anna")
        assert again is not None
        assert (again.error, again.position, again.failed) == (None, "half", 2)
        assert await store.advance_operation(again, Step(to=OperationState.DONE)) == ()
        (seen,) = await store.operations()
        assert (seen.state, seen.position, seen.free) == ("done", "half", False)
        assert await store.operations(unfinished=True) == []
        for change in Change:
            assert not await store.change_operation(one.id, change, by="bert")
        log = [entry._replace(at_us=0) for entry in await store.audit_log(10)]
        assert AuditEntry("olga", "operation-stop", 1, f"{one.id}: boom") in log
        assert AuditEntry("olga", "operation-done", 1, one.id) in log

    async def test_the_audit_entry_of_the_end_counts_the_events_of_all_steps(
        self, store: Store, add: Add
    ) -> None:
        await dead(store, add, "a", "b", "c")
        one = await held(store)
        for name in ("a", "b"):
            assert await store.advance_operation(one, Step(lambda _: "x", [name])) == (name,)
        last = Step(lambda _: "x", ["c"], to=OperationState.DONE)
        assert await store.advance_operation(one, last) == ("c",)
        (entry,) = [e for e in await store.audit_log(9) if e.what == "operation-done"]
        assert entry[:4] == ("olga", "operation-done", 3, one.id)

    async def test_a_running_operation_is_not_hidden_by_newer_ones_that_do_not_run(
        self, store: Store
    ) -> None:
        first, _ = await store.start_operation(NEW, by="olga")
        await later(first.created_us)
        for n in range(3):
            other, _ = await store.start_operation(NEW._replace(fingerprint=str(n)), by="olga")
            assert await store.change_operation(other.id, Change.PAUSE, by="olga")
        assert first.id in {one.id for one in await store.operations(unfinished=True, limit=2)}
        assert first.id not in {one.id for one in await store.operations(limit=2)}

    async def test_operations_that_ended_long_ago_are_deleted_the_oldest_first(
        self, store: Store
    ) -> None:
        ended: list[str] = []
        for n in range(3):
            one = await held(store, new=NEW._replace(fingerprint=str(n)))
            assert await store.advance_operation(one, Step(to=OperationState.DONE)) == ()
            ended.append(one.id)
        unfinished: list[str] = []
        for change in (Change.CANCEL, Change.PAUSE, None):
            one, _ = await store.start_operation(NEW._replace(fingerprint=f"{change}"), by="olga")
            (ended if change == Change.CANCEL else unfinished).append(one.id)
            if change is not None:
                assert await store.change_operation(one.id, change, by="olga")
        stopped = await held(store, new=NEW._replace(fingerprint="stopped"))
        assert await store.advance_operation(stopped, Step(to=OperationState.STOPPED)) == ()
        unfinished.append(stopped.id)
        await later(host_microseconds())
        assert await store.prune_operations(3_600, 10) == 0
        assert await store.prune_operations(0, 2) == 2
        left = {one.id for one in await store.operations()}
        assert left == {*ended[2:], *unfinished}
        assert await store.prune_operations(0, 10) == 2
        assert {one.id for one in await store.operations()} == set(unfinished)

    async def test_hostile_texts(self, store: Store) -> None:
        text = 'é\'; DROP TABLE x; -- $$NOW {{}} \\ "quoted" ' + "x" * 9_000
        new = NewOperation("replay", text, "f", None, text)
        one = await held(store, "$owner'", new)
        step = Step(lambda _: text, to=OperationState.STOPPED, error=text + "\x00")
        assert await store.advance_operation(one, step) == ()
        (seen,) = await store.operations()
        assert (seen.request, seen.position, seen.total) == (text, text, None)
        assert seen.error is not None
        assert seen.error[:20] == text[:20]
