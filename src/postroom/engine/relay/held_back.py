"""Events that are not sent for now wait in the store, without an attempt.

The store holds them like failed events, which keeps the order of their keys. Their last error
begins with the reason why they wait, followed by the error that they had before.
"""

from __future__ import annotations

from postroom.record import Record
from postroom.settlement import FailedOutcome

PAUSED, LIMITED = "paused", "at its limit"
_BEFORE = ". Last error: "


def held_back(record: Record, seconds: float, why: str) -> FailedOutcome:
    """Return the outcome of an event that waits that long because its topic is `why`."""
    before = error_before(record)
    error = f"{held_mark(record.topic)}{why}" + (f"{_BEFORE}{before}" if before else "")
    return FailedOutcome(record, record.attempts, seconds, error, held=True)


def held_mark(topic: str) -> str:
    """Return how the last error of the held events of a topic begins."""
    return f"not sent: the topic {topic} is "


def is_held(record: Record) -> bool:
    """Return whether the event was held back when it was last written."""
    return record.last_error is not None and record.last_error.startswith(held_mark(record.topic))


def error_before(record: Record) -> str | None:
    """Return the last error of an event, without the reason why it was held back."""
    if not is_held(record):
        return record.last_error
    reason = (record.last_error or "").removeprefix(held_mark(record.topic))
    return reason.partition(_BEFORE)[2] or None
