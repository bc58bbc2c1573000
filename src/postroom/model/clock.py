"""A clock for local deadlines, and conversions between datetimes and microseconds.

The store's clock alone decides whether a lease is valid. The local clock can only make a relay stop
*earlier*; it must not stop while the machine is suspended, hence CLOCK_BOOTTIME.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

MIN_MICROSECONDS = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
MAX_MICROSECONDS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The range of a datetime: the years 1 to 9999."""


class Clock(Protocol):
    """The clock of the engine's local deadlines."""

    def monotonic(self) -> float:
        """Return seconds that never decrease and do not stop while the machine is suspended."""


class SystemClock:
    """The clock of this machine."""

    def monotonic(self) -> float:
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()


def to_microseconds(instant: datetime) -> int:
    """Return the whole microseconds since 1970 of an aware datetime."""
    return (instant - _EPOCH) // _MICROSECOND


def from_microseconds(microseconds: int) -> datetime:
    """Return the aware UTC datetime of microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=microseconds)


def host_microseconds() -> int:
    """Return the time of this host's clock in microseconds since 1970."""
    return time.time_ns() // 1000


def instant_text(microseconds: int) -> str:
    """Return microseconds since 1970 as operators read them: 2026-05-01T12:00:00Z."""
    return from_microseconds(microseconds).isoformat().replace("+00:00", "Z")
