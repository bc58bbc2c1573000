"""Decides how much a worker reads at a time, and when it pauses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil
from operator import attrgetter

from postroom.record import LANES, Record

_lane = attrgetter("lane")


_EVERYTHING = 1 << 62


_DEPTH = 1.25  # times its fair share is fetched from each lane


class BatchSize:
    """The size of reads: grows with a backlog, fair over the lanes that have work (R4, D1)."""

    def __init__(self, smallest: int, largest: int) -> None:
        self._smallest = smallest
        self._largest = largest
        self.rows = smallest
        self._busy_lanes = 1
        self._first = 0

    def ask(self, lanes: Sequence[int], rows: int) -> tuple[list[int], int]:
        """Return the lanes in a rotated order, and the maximum number of rows per lane.

        Each lane may return more than its fair share, since the oldest go first and lanes are not
        equally full; but not everything, since every candidate row is fetched.
        """
        self._first = (self._first + 7) % LANES
        ordered = sorted(lanes, key=lambda lane: (lane - self._first) % LANES)
        fair = ceil(rows / min(self._busy_lanes, len(ordered)))
        return ordered, min(rows, ceil(fair * _DEPTH))

    def learn(self, found: Sequence[Record], rows: int, per_lane: int) -> bool:
        """Adapt to the result of a read; True if there was more than it was allowed to return."""
        by_lane = Counter(map(_lane, found))
        capped = sum(n >= per_lane for n in by_lane.values())
        full = len(found) >= rows
        self._busy_lanes = max(1, len(by_lane) if full else capped)
        if full and rows >= self.rows:
            self.rows = min(self._largest, self.rows * 2)
        elif len(found) < self.rows // 2 and not capped:
            self.rows = max(self._smallest, self.rows // 2)
        return full or capped > 0


class ReadPacer:
    """Keeps a worker from reading too often for few events.

    Handlers finish one by one, and each outcome would cause a read that finds the next event of one
    key. While others are in flight, reads that return little take at most a fifth of the time.
    """

    def __init__(self) -> None:
        self._few = _EVERYTHING
        self.until = 0.0

    def learn(self, found: int, rows: int, in_flight: int, took: float, now: float) -> None:
        """Record what a read returned, and what is in flight now."""
        self._few = in_flight // 2 if found * 4 < rows else _EVERYTHING
        self.until = now + 4 * took

    def holds(self, in_flight: int, now: float) -> bool:
        """Return whether to wait `until` then, because less than half of those have finished."""
        return in_flight > self._few and now < self.until
