"""The events of one key that are in flight together."""

from __future__ import annotations

from postroom.broker import Outcome
from postroom.model.clock import host_microseconds
from postroom.record import Record, State


class KeyRun:
    """The events of one key that are in flight, in order."""

    # Class attributes until something happens to the run: nearly every event has a run.
    seen = 0  # its progress at the last check
    next = 0  # index of the first record without an outcome
    early: dict[int, Outcome] | None = None  # outcomes that arrived before their turn
    failed: tuple[Record, Outcome] | None = None
    alone = False  # a suspect: it is sent alone
    sent = True  # passed to the destination
    closed = False  # all outcomes are known; waits for its settle
    lost = False  # the lane is lost: outcomes no longer count
    aside = False  # its outcome cannot be written for now

    def __init__(self, record: Record, since: float) -> None:
        self.records = [record]
        self.lane = record.lane
        self.since = since  # admitted then, or has made progress since

    @property
    def is_open(self) -> bool:
        """Whether an outcome is still missing."""
        return not self.closed

    @property
    def unanswered(self) -> int:
        """The number of its records without an outcome."""
        return len(self.records) - self.next

    @classmethod
    def of_suspect(cls, record: Record, since: float) -> KeyRun:
        run = cls(record, since)
        run.alone, run.sent = True, False
        return run


def is_over(record: Record) -> bool:
    """Return whether its time to be sent is over by this host's clock. The store decides.

    A handler that has begun is not interrupted.
    """
    by = record.expires_us
    return by is not None and by <= host_microseconds() and record.state != State.PROCESSING
