"""The contract of a write-side adapter for delayed events: cancel and reschedule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from postroom.event import Event
from postroom.testing.transaction_tools import TransactionBench


def _in(hours: int) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(hours=hours)


async def _states(bench: TransactionBench) -> dict[str, tuple[str, str]]:
    return {row["id"]: (row["state"], row["stage"]) for row in await bench.rows()}


class WaitingContract:
    """Events that wait for their first attempt are cancelled and rescheduled in the transaction."""

    @pytest.mark.promise("G1", "W1", "W7")
    async def test_a_cancelled_event_ends_with_the_commit(self, bench: TransactionBench) -> None:
        tx = await bench.begin()
        await bench.add(tx, Event("t", id="é-1", available_at=_in(1)), Event("t", id="ready"))
        await bench.commit(tx)
        for end in (bench.rollback, bench.commit):
            tx = await bench.begin()
            await bench.order(tx, "A")
            assert await bench.cancel(tx, "é-1") is True
            assert await bench.cancel(tx, "é-1") is False
            assert await bench.cancel(tx, "ready") is False  # a relay may have read it
            assert await bench.cancel(tx, "unknown") is False
            waits = {"é-1": ("pending", "waiting"), "ready": ("pending", "ready")}
            assert await _states(bench) == waits
            await end(tx)
        assert await _states(bench) == {"é-1": ("cancelled", "over"), "ready": ("pending", "ready")}
        assert await bench.orders() == ["A"]
        (row,) = [row for row in await bench.rows() if row["id"] == "é-1"]
        assert row["settled_at"] is not None
        assert row["next_attempt_at"] is None

    @pytest.mark.promise("G1", "W1", "W7")
    async def test_a_new_time_takes_effect_with_the_commit(self, bench: TransactionBench) -> None:
        tx = await bench.begin()
        first, second = _in(2), _in(3)
        await bench.add(
            tx,
            Event("t", id="e-1", available_at=first, deliver_by=_in(4)),
            Event("t", id="e-2", available_at=second),
            Event("t", id="ready"),
        )
        await bench.commit(tx)
        before = await bench.rows()
        tx = await bench.begin()
        assert await bench.reschedule(tx, "e-1", second) is True
        await bench.rollback(tx)
        assert await bench.rows() == before
        tx = await bench.begin()
        assert await bench.reschedule(tx, "e-1", second) is True
        assert await bench.reschedule(tx, "e-1", second) is True  # also if nothing changes
        assert await bench.reschedule(tx, "e-1", _in(5)) is False  # it would expire before
        assert await bench.reschedule(tx, "ready", second) is False
        assert await bench.reschedule(tx, "unknown", second) is False
        await bench.commit(tx)
        one, two, ready = await bench.rows()
        assert (one["state"], one["stage"]) == ("pending", "waiting")
        assert one["available_at"] == one["next_attempt_at"] == two["next_attempt_at"]
        assert ready == before[2]

    @pytest.mark.promise("R6")
    async def test_a_time_in_the_past_leaves_the_event_to_the_stager(
        self, bench: TransactionBench
    ) -> None:
        tx = await bench.begin()
        await bench.add(tx, Event("t", id="e-1", available_at=_in(1)))
        assert await bench.reschedule(tx, "e-1", _in(-1)) is True
        await bench.commit(tx)
        assert await _states(bench) == {"e-1": ("pending", "waiting")}
        tx = await bench.begin()
        assert await bench.cancel(tx, "e-1") is True  # it was never ready
        await bench.commit(tx)
        assert await _states(bench) == {"e-1": ("cancelled", "over")}
