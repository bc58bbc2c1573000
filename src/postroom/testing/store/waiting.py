"""The contract of delayed events that are cancelled or rescheduled, and the stager beside them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from postroom.event import Event
from postroom.lookup import Filter
from postroom.model import history
from postroom.model.clock import host_microseconds
from postroom.outbox import Outbox
from postroom.store import Store
from postroom.testing.store.tools import (
    ALL,
    FAR,
    Add,
    Hand,
    Write,
    event,
    names,
    needs,
    patience,
)

_LATER = datetime.now(UTC) + timedelta(days=1)
_PAST = datetime(2020, 1, 1, tzinfo=UTC)
_PAST_US = 1_577_836_800_000_000


def _later(name: str, key: str | None = None, **fields: Any) -> Event:
    return event(name, key, available_at=_LATER, **fields)


async def _all(store: Store) -> dict[str, str]:
    return {record.id: record.state for record in await store.find(Filter())}


class WaitingContract:
    """Only events that no relay can have read are cancelled and rescheduled."""

    @pytest.mark.promise("G1", "W7")
    async def test_a_cancelled_event_is_never_sent(
        self, store: Store, add: Add, write: Write
    ) -> None:
        await add(_later("gone", "k"), _later("kept", "k"), event("other", "k"))
        async with write(store) as tx:
            assert await Outbox().cancel(tx, "gone")
            assert await Outbox().reschedule(tx, "kept", _PAST)
        hand = await Hand(store).take()
        assert await hand.stage() == 1
        assert names(await hand.read()) == ["kept", "other"]
        assert await _all(store) == {"gone": "cancelled", "kept": "pending", "other": "pending"}
        assert (await store.stage("main", ALL, 10)).next_due_seconds is None
        await hand.settle(done=await hand.read())
        assert await store.prune(-FAR, 10) == 3

    @needs("transactions", "concurrent_writers")
    @pytest.mark.promise("G5", "W7")
    @pytest.mark.parametrize("end", ["commit", "rollback"])
    async def test_the_stager_leaves_an_event_that_is_being_cancelled(
        self, store: Store, add: Add, write: Write, end: str
    ) -> None:
        await add(*(_later(f"e{n}") for n in range(5)))
        await store.reschedule([f"e{n}" for n in range(5)], _PAST_US)
        hand = await Hand(store).take()
        try:
            async with write(store) as tx:
                assert await Outbox().cancel(tx, "e2")
                async with patience():
                    staged = await store.stage("main", ALL, 100)  # does not wait for the lock
                assert (staged.moved, staged.ready) == (4, True)
                async with patience():
                    assert await hand.stage() == 0
                if end == "rollback":
                    raise InterruptedError
        except InterruptedError:
            pass
        assert await hand.stage() == (end == "rollback")
        sent = {record.id for record in await hand.read()}
        assert sent == {"e0", "e1", "e3", "e4"} | ({"e2"} if end == "rollback" else set())

    @pytest.mark.promise("G5", "W7")
    async def test_an_event_that_was_ready_once_is_too_late(
        self, store: Store, add: Add, write: Write
    ) -> None:
        await add(_later("staged"), _later("sent"), event("failed"), event("dead"))
        await add(event("head", "k"), event("parked", "k"), event("running", "r"))
        assert await store.reschedule(["staged", "sent"], _PAST_US) == 2
        hand = await Hand(store).take()
        assert await hand.stage() == 2
        await hand.settle(done=[await hand.only("sent")], starts=[await hand.only("running")])
        for name in ("failed", "head"):
            await hand.fail(await hand.only(name), delay=FAR)
        await hand.bury(await hand.only("dead"))
        await hand.settle(parked=[await hand.only("parked")])
        before = {record.id: record for record in await store.find(Filter())}
        everything = [*before, "unknown"]
        async with write(store) as tx:
            for name in everything:
                assert not await Outbox().cancel(tx, name)
                assert not await Outbox().reschedule(tx, name, _LATER)
        assert await store.cancel(everything, "why", by="anna") == 0
        assert await store.reschedule(everything, host_microseconds(), by="anna") == 0
        assert {record.id: record for record in await store.find(Filter())} == before
        assert await store.audit_log(10) == []

    @needs("transactions", "concurrent_writers")
    @pytest.mark.promise("G5", "W7")
    async def test_cancel_and_stager_never_both_win(
        self, store: Store, add: Add, write: Write
    ) -> None:
        events = [f"e{n}" for n in range(12)]
        await add(*(_later(name) for name in events))
        await store.reschedule(events, _PAST_US)
        hand = await Hand(store).take()

        async def cancel(name: str) -> bool:
            try:
                async with write(store) as tx:
                    return await Outbox().cancel(tx, name)
            except Exception:
                return False

        *cancelled, _ = await asyncio.gather(*(cancel(name) for name in events[:6]), hand.stage())
        async with patience():
            while await hand.stage():
                pass
        ready = {record.id for record in await hand.read()}
        gone = {name for name, done in zip(events, cancelled, strict=False) if done}
        assert ready == set(events) - gone
        states = await _all(store)
        assert {name for name, state in states.items() if state == "cancelled"} == gone

    async def test_operators_cancel_and_reschedule_with_an_audit_entry(
        self, store: Store, add: Add
    ) -> None:
        await add(_later("a"), _later("b"), _later("c", deliver_by=_LATER + timedelta(hours=1)))
        hour = int(_LATER.timestamp()) * 1_000_000 + 3_600_000_000
        assert await store.reschedule(["a", "a", "c"], hour + 1_000_000, by="bert") == 1
        assert await store.cancel(["a", "b", "none", "b"], "no longer wanted", by="anna") == 2
        assert await store.cancel([], by="anna") == 0
        assert await _all(store) == {"a": "cancelled", "b": "cancelled", "c": "pending"}
        cancelled, rescheduled = await store.audit_log(10)
        assert cancelled[:4] == ("anna", "cancel", 2, "a, b: no longer wanted")
        assert rescheduled[:3] == ("bert", "reschedule", 1)
        assert rescheduled.about.startswith("a: 20")
        details = await store.details("a")
        assert details is not None
        assert details.stage == "over"
        told = history.read(details.history).entries
        assert [(one["what"], one["by"]) for one in told] == [
            ("reschedule", "bert"), ("cancel", "anna"),
        ]  # fmt: skip

    async def test_retry_now_by_an_operator_is_in_the_history(self, store: Store, add: Add) -> None:
        await add(event("a"), event("b"))
        hand = await Hand(store).take()
        for name in ("a", "b"):
            await hand.fail(await hand.only(name), delay=FAR)
        assert await store.retry_now(["a"], by="anna") == 1
        assert await store.retry_now(["b"]) == 1  # by the relay itself, after a pause
        found = [await store.details(name) for name in ("a", "b")]
        told = [history.read(one and one.history).entries for one in found]
        assert [[(one["what"], one["by"]) for one in each] for each in told] == [
            [("retry-now", "anna")], [],
        ]  # fmt: skip
        assert await hand.stage() == 2
