"""Time: a clock for local deadlines, and the conversions between instants and microseconds.

Whether a lease is valid is decided by the store's clock alone. The local clock only says when to
stop *earlier*; it must go on while the machine sleeps, hence CLOCK_BOOTTIME.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

MIN_MICROSECONDS = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
MAX_MICROSECONDS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The instants that a datetime can hold: the years 1 to 9999."""


class Clock(Protocol):
    """What the engine asks for the time of its local deadlines."""

    def monotonic(self) -> float:
        """Seconds that never go back and do not stop while the machine is suspended."""


class SystemClock:
    """The clock of this machine."""

    def monotonic(self) -> float:
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()


def to_microseconds(instant: datetime) -> int:
    """Whole microseconds since 1970 of an aware instant."""
    return (instant - _EPOCH) // _MICROSECOND


def from_microseconds(microseconds: int) -> datetime:
    """The aware UTC instant of so many microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=microseconds)


def host_microseconds() -> int:
    """Now, on this host's clock, in microseconds since 1970."""
    return time.time_ns() // 1000
