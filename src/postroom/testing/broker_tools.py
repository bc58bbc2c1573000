"""Tools for tests of destinations: a reporter, records, arrivals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from postroom.broker import CONFIRMED, Outcome, Verdict
from postroom.model.codec import JSON
from postroom.record import Record, State, key_hash, lane_of

PATIENCE_SECONDS = 90.0  # ends a hang; generous for a busy machine
"""How long a test waits for an expected event. No test waits for something not to happen."""


HOSTILE = (
    "'; DROP TABLE postroom_outbox; --",
    'double " quote',
    "back\\slash",
    "percent %s %(x)s 100%",
    "dollar $1 ${HOME}",
    "emoji 🦊 and ž and 中文",
    "trailing space ",
    " leading space",
    "Case",
    "case",
    "a/b#c?d&e=f*",
    "é",
    "e\u0301",
    "x" * 255,
)


Test = TypeVar("Test", bound=Callable[..., Any])


def needs(*abilities: str) -> Callable[[Test], Test]:
    """Mark a test that needs destinations with these abilities."""

    def mark(test: Test) -> Test:
        test.__dict__["needs"] = frozenset(abilities)
        return test

    return mark


class Arrival(NamedTuple):
    """A message found at the destination."""

    id: str
    type: str
    topic: str
    key: str | None
    payload: bytes


class Held(Protocol):
    """A delayed record."""

    @property
    def reached(self) -> asyncio.Event:
        """Set when the record has reached the point where it is held."""

    def release(self) -> None: ...


class RecordingReporter:
    """A reporter that records its calls, in order."""

    def __init__(self) -> None:
        self.outbox_id = "the-outbox"
        self.keeps_receipts = False
        self.reports: list[tuple[Record, Outcome]] = []
        self.begun: list[str] = []
        self.lost: set[str] = set()
        """Ids whose lane is lost: `begin` returns False."""
        self._heard = asyncio.Event()

    def confirm(self, records: Sequence[Record], receipts: Sequence[str] = ()) -> None:
        assert not receipts or len(receipts) == len(records)
        for record, receipt in zip(records, receipts or [""] * len(records), strict=True):
            self.report(record, CONFIRMED._replace(receipt=receipt))

    def report(self, record: Record, outcome: Outcome) -> None:
        self.reports.append((record, outcome))
        self._heard.set()

    async def begin(self, record: Record) -> bool:
        if record.id in self.lost:
            return False
        self.begun.append(record.id)
        return True

    def may_go_on(self, record: Record) -> bool:
        return record.id not in self.lost

    # -- questions ----------------------------------------------------------------------------
    def outcome(self, record: Record) -> Outcome:
        """Return the only outcome of a record; fails if it has none or several."""
        found = [o for r, o in self.reports if r.id == record.id]
        assert len(found) == 1, f"{record.id} has {len(found)} outcomes: {found}"
        return found[0]

    def verdict(self, record: Record) -> Verdict:
        return self.outcome(record).verdict

    def ids(self, verdict: Verdict) -> list[str]:
        """Return the ids with this verdict in the order of their reports."""
        return [r.id for r, o in self.reports if o.verdict is verdict]

    async def heard(self, records: Sequence[Record]) -> None:
        """Wait until all of these have an outcome."""
        wanted = {record.id for record in records}
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not wanted <= {r.id for r, _ in self.reports}:
                self._heard.clear()
                await self._heard.wait()


def make_record(seq: int = 1, **given: Any) -> Record:
    """Create a record as a store would return it, with plain defaults."""
    event_id = given.get("id", f"event-{seq}")
    key = given.get("key")
    hashed = key_hash(given.get("aggregate_type"), key, event_id)
    facts: dict[str, Any] = {
        "seq": seq,
        "id": event_id,
        "stream": "main",
        "lane": lane_of(hashed),
        "key_hash": hashed,
        "type": "order.created",
        "topic": "contract",
        "key": key,
        "aggregate_type": None,
        "aggregate_id": None,
        "payload": b'{"n":%d}' % seq,
        "content_type": JSON,
        "headers_json": None,
        "correlation_id": None,
        "causation_json": None,
        "schema_version": 1,
        "kseq": None,
        "causation_id": None,
        "options_json": None,
        "expires_us": None,
        "occurred_us": 1_700_000_000_000_000,
        "created_us": 1_700_000_000_000_000,
        "state": State.PENDING.value,
        "attempts": 0,
    }
    return Record(**(facts | given))
