"""Decides which of many log lines about one cause are written: the first, then ever fewer.

A cause is written when it begins, again after a pause, and then after pauses that are six times as
long, up to ten minutes, with the number of lines that were left out. Without input or output; the
caller passes the time.
"""

from __future__ import annotations

from collections.abc import Hashable

QUIET_SECONDS = 10.0
_FACTOR, _LONGEST_SECONDS = 6, 600.0
STEADY_SECONDS = 60.0  # after as long without a failure, the next one begins a new cause
_MOST_ERRORS = 5  # different errors of one cause that are written at once
_MOST_CAUSES = 1_000


class Cause:
    """One cause of log lines; `burst` lines are written before the pauses begin."""

    def __init__(self, now: float, quiet_seconds: float, burst: int = 1) -> None:
        self.began_at = self.seen_at = self.tell_at = now
        self.errors: set[str] = set()
        self.failures = self.left_out = 0
        self.is_told = False  # since it was over the last time
        self._quiet = quiet_seconds
        self._burst = burst

    def is_over(self, now: float) -> bool:
        """Return whether another failure, now, begins a new cause."""
        return now - self.seen_at > (_LONGEST_SECONDS if self.is_told else STEADY_SECONDS)

    def happened(self, error: str, now: float) -> int | None:
        """Count a failure; returns how many lines were left out before it, or None: no line."""
        self.failures += 1
        self.seen_at = now
        is_new = error not in self.errors and len(self.errors) < _MOST_ERRORS
        if not is_new and self.failures > self._burst and now < self.tell_at:
            self.left_out += 1
            return None
        if now >= self.tell_at:
            self.tell_at = now + self._quiet
            self._quiet = min(self._quiet * _FACTOR, _LONGEST_SECONDS)
        if len(self.errors) < _MOST_ERRORS:
            self.errors.add(error)
        left_out, self.left_out, self.is_told = self.left_out, 0, True
        return left_out


class Causes:
    """Causes by name. One that was not seen for a minute begins anew."""

    def __init__(self, quiet_seconds: float, burst: int = 1) -> None:
        self._quiet_seconds = quiet_seconds
        self._burst = burst
        self._known: dict[Hashable, Cause] = {}  # the least recent first

    def happened(self, name: Hashable, error: str, now: float) -> int | None:
        """Count a failure; returns how many lines were left out before it, or None: no line."""
        found = self._known.pop(name, None)
        if found is None or now - found.seen_at > STEADY_SECONDS:
            found = Cause(now, self._quiet_seconds, self._burst)
        self._known[name] = found
        while len(self._known) > _MOST_CAUSES:
            del self._known[next(iter(self._known))]
        return found.happened(error, now)
