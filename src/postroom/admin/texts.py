"""Texts for operators: counts, durations, instants, and hostile text as one harmless line."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from postroom.model.clock import from_microseconds
from postroom.model.secrets import mask

_NO_DATES = {2**63 - 1: "infinity", -(2**63): "-infinity"}  # as PostgreSQL has them


def many(number: int, noun: str) -> str:
    """Return `1 event` or `2,000 events`."""
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"


def one_line(text: str) -> str:
    """Return text as one line, with control characters escaped and passwords masked."""
    words = mask(" ".join(text.split()))
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in words)


def cut(text: str, columns: int) -> str:
    """Return text as one printable line, truncated to a number of columns."""
    shown = one_line(text)
    return shown if len(shown) <= columns else shown[: columns - 1] + "…"


def iso(at: datetime | None) -> str | None:
    """Return a datetime as text in UTC."""
    return None if at is None else at.isoformat().replace("+00:00", "Z")


def instant(microseconds: Any) -> str | None:
    """Return microseconds since 1970 as text in UTC; values that are not dates stay as stored."""
    if microseconds is None:
        return None
    try:
        return iso(from_microseconds(microseconds))
    except (OverflowError, TypeError):
        return _NO_DATES.get(microseconds, f"not a date: {microseconds!r}")


def duration(seconds: float) -> str:
    """Return seconds as readable text, such as `3 min 20 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} days {hours % 24} h"
