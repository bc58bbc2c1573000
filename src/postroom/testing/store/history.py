"""The contract of histories: failed attempts and operators' commands, recorded with the event."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.model import history
from postroom.model.clock import host_microseconds
from postroom.model.history import Entry
from postroom.record import Record
from postroom.settlement import DeadOutcome, FailedOutcome
from postroom.store import Store
from postroom.testing.store.tools import FAR, Add, Hand, event, needs, until

_HOSTILE = 'a "quoted" \\ error %s {x} \x00 \ud800 é漢🙂 :name $set password=hunter2'


def _failed(record: Record, number: int, error: str = "boom", delay: float = 0.0) -> FailedOutcome:
    entry = Entry(number, "relay-1", "failed", number, error, f"frames of {error}")
    return FailedOutcome(record, number, delay, error, entry)


async def _history(store: Store, name: str) -> history.History:
    details = await store.details(name)
    assert details is not None
    return history.read(details.history)


async def _entries(store: Store, name: str) -> list[dict[str, Any]]:
    return list((await _history(store, name)).entries)


def _told(entries: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(one["what"], one.get("attempt"), one.get("error")) for one in entries]


class HistoryContract:
    """The record of an event that did not succeed at once."""

    @pytest.mark.req("S1.9")
    async def test_failed_attempts_are_recorded_and_bounded(self, store: Store, add: Add) -> None:
        await add(event("e", "k"), event("good"))
        hand = await Hand(store).take()
        await hand.settle(done=[await hand.only("good")])
        assert await _history(store, "good") == ((), 0)
        for number in range(1, 12):
            record = await hand.only("e")
            await hand.settle(failed=[_failed(record, number, f"error {number}")])
            await until(hand.stage)
        entry = Entry(12, "relay-2", "rejected", 12, "never")
        await hand.settle(dead=[DeadOutcome(await hand.only("e"), 12, "never", entry)])
        found = await _history(store, "e")
        assert [one["attempt"] for one in found.entries] == [1, 2, 3, 8, 9, 10, 11, 12]
        assert found.dropped == 4
        assert found.entries[0] == {
            "at": 1, "by": "relay-1", "what": "failed", "attempt": 1, "error": "error 1",
            "traceback": "frames of error 1",
        }  # fmt: skip
        assert found.entries[-1] == {
            "at": 12, "by": "relay-2", "what": "rejected", "attempt": 12, "error": "never",
        }  # fmt: skip

    @pytest.mark.req("S1.9", "S3.6")
    async def test_a_repeated_settle_records_an_attempt_once(self, store: Store, add: Add) -> None:
        await add(event("e"), event("f"))
        hand = await Hand(store).take()
        first = _failed(await hand.only("e"), 1, "one", FAR)
        buried = DeadOutcome(await hand.only("f"), 1, "no", Entry(1, "r", "rejected", 1, "no"))
        for _ in range(3):
            await hand.settle(failed=[first], dead=[buried])
        assert _told(await _entries(store, "e")) == [("failed", 1, "one")]
        assert _told(await _entries(store, "f")) == [("rejected", 1, "no")]

    @pytest.mark.req("S1.9")
    async def test_a_hostile_error_costs_nothing_else(self, store: Store, add: Add) -> None:
        names = [f"e{n}" for n in range(5)]
        await add(*(event(name, name) for name in names))
        hand = await Hand(store).take()
        records = {record.id: record for record in await hand.read()}
        failed = [_failed(records[name], 1, "boom", FAR) for name in names]
        failed[2] = _failed(records["e2"], 1, _HOSTILE * 200, FAR)
        await hand.settle(failed=failed)
        for name in ("e0", "e1", "e3", "e4"):
            assert _told(await _entries(store, name)) == [("failed", 1, "boom")]
        (entry,) = await _entries(store, "e2")
        assert entry["error"].startswith(
            'a "quoted" \\ error %s {x} \\0 ? é漢🙂 :name $set password=*'
        )
        assert "hunter2" not in entry["error"]
        failing = await store.get("e2")
        assert failing is not None
        assert failing.last_error is not None
        assert failing.last_error.startswith('a "quoted"')
        assert "hunter2" not in failing.last_error
        await store.bury(["e0"], "postgresql://anna:hunter2@host/db", by="anna")
        (about,) = await store.audit_log(1)
        buried = await store.get("e0")
        assert buried is not None
        assert buried.last_error == "postgresql://anna:***@host/db"
        assert "hunter2" not in about.about
        details = await store.details("e2")
        assert details is not None
        assert len(details.history or "") <= history.MAX_BYTES

    @pytest.mark.req("S1.9")
    async def test_what_operators_do_is_recorded(self, store: Store, add: Add) -> None:
        await add(event("e", "k"), event("behind", "k"))
        hand = await Hand(store).take()
        before = host_microseconds()
        await hand.settle(failed=[_failed(await hand.only("e"), 1, "boom", FAR)])
        await store.bury(["e"], "by hand", by="anna")
        expected: list[tuple[Any, ...]] = [("failed", 1, "boom"), ("bury", None, "by hand")]
        assert _told(await _entries(store, "e")) == expected
        await store.replay(["e"], by="otto")
        expected += [("replay", None, None)]
        assert _told(await _entries(store, "e")) == expected
        await hand.take()
        entry = Entry(2, "relay-1", "rejected", 1, "again")
        await hand.settle(dead=[DeadOutcome(await hand.only("e"), 1, "again", entry)])
        expected += [("rejected", 1, "again")]
        found = await _entries(store, "e")
        assert _told(found) == expected
        assert [one.get("by") for one in found] == ["relay-1", "anna", "otto", "relay-1"]
        assert abs(found[1]["at"] - before) < 600_000_000

    @pytest.mark.req("S1.9")
    async def test_a_copy_starts_without_a_history(self, store: Store, add: Add) -> None:
        await add(event("e"))
        hand = await Hand(store).take()
        await hand.settle(failed=[_failed(await hand.only("e"), 1, "boom", FAR)])
        await store.bury(["e"], "by hand")
        await store.replay(["e"], new_id=True)
        await hand.take()
        (copy,) = await hand.read()
        assert copy.id != "e"
        assert await _history(store, copy.id) == ((), 0)
        assert _told(await _entries(store, "e")) == [
            ("failed", 1, "boom"), ("bury", None, "by hand"),
        ]  # fmt: skip

    @needs("transactions")
    @pytest.mark.req("S1.9")
    async def test_the_history_of_a_skipped_event_stays_with_it(
        self, store: Store, add: Add
    ) -> None:
        await add(event("e", "k"), strict=True)
        hand = await Hand(store).take()
        await hand.settle(failed=[_failed(await hand.only("e"), 1, "boom", FAR)])
        await store.skip("e", "not needed", by="anna")
        skipped: list[tuple[Any, ...]] = [("failed", 1, "boom"), ("skip", None, "not needed")]
        assert _told(await _entries(store, "e")) == skipped
        assert await _history(store, "skip:e") == ((), 0)
        await store.replay(["e"], by="anna")
        assert _told(await _entries(store, "e")) == [*skipped, ("replay", None, None)]

    @pytest.mark.req("S1.9")
    async def test_a_given_history_replaces_the_entry(self, store: Store, add: Add) -> None:
        await add(event("e"), event("f"))
        given = history.append(None, Entry(7, "consumer", "failed", 3, "boom"))
        assert await store.bury(["e", "f", "none"], "3 attempts", history=given) == 2
        for name in ("e", "f"):
            assert _told(await _entries(store, name)) == [("failed", 3, "boom")]
