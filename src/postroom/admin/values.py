"""Values as operators write them: durations, instants, rates."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from postroom.model.clock import to_microseconds

_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|m|min|h|d|w)?")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_MOST_SECONDS = 100 * 366 * 86_400


def span(text: str) -> float:
    """Parse `90`, `90s`, `15m`, `12h`, `7d` or `2w` to seconds. Raises ValueError."""
    found = _SPAN.fullmatch(text.strip())
    if found is None or (value := float(found[1]) * _UNITS[found[2] or "s"]) > _MOST_SECONDS:
        raise ValueError("a duration such as 90s, 15m, 12h or 7d (at most 100 years)")
    return value


def instant(text: str) -> int:
    """Parse `2026-05-01`, `2026-05-01T12:00Z`, or a duration before now, to microseconds."""
    try:
        return to_microseconds(datetime.now(UTC) - timedelta(seconds=span(text)))
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("a time such as 2026-05-01T12:00Z, or 2h for two hours ago") from None
    return to_microseconds(at if at.tzinfo else at.replace(tzinfo=UTC))


def per_second(text: str) -> float:
    """Read a rate such as `50/s`, or `50`."""
    try:
        rate = float(text.removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise ValueError("a rate such as 50/s")
    return rate
