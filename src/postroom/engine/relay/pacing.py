"""How much a worker reads at a time, and when it pauses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil
from operator import attrgetter

from postroom.record import LANES, Record

_lane = attrgetter("lane")


_EVERYTHING = 1 << 62


_DEPTH = 1.25  # times its fair part is looked at in each lane


class BatchSize:
    """How much to ask for: grows with a backlog, fair over the lanes that have work (R4, D1)."""

    def __init__(self, smallest: int, largest: int) -> None:
        self._smallest = smallest
        self._largest = largest
        self.rows = smallest
        self._busy_lanes = 1
        self._first = 0

    def ask(self, lanes: Sequence[int], rows: int) -> tuple[list[int], int]:
        """Return the lanes in a rotated order, and how many rows to take of each at most.

        Each lane may bring more than its fair part, since the oldest go first and lanes are not
        equally full; but not all, since every candidate is looked at.
        """
        self._first = (self._first + 7) % LANES
        ordered = sorted(lanes, key=lambda lane: (lane - self._first) % LANES)
        fair = ceil(rows / min(self._busy_lanes, len(ordered)))
        return ordered, min(rows, ceil(fair * _DEPTH))

    def learn(self, found: Sequence[Record], rows: int, per_lane: int) -> bool:
        """Adapt to what a read found; True if there was more than it was allowed to bring."""
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
    """Keeps a worker from asking the store again and again for little.

    Handlers end one by one, and each outcome would lead to a read that finds the next event of one
    key. While others are on their way, reads that bring little take a fifth of the time at most.
    """

    def __init__(self) -> None:
        self._few = _EVERYTHING
        self.until = 0.0

    def learn(self, found: int, rows: int, in_flight: int, took: float, now: float) -> None:
        """Note what a read brought, and what is on its way now."""
        self._few = in_flight // 2 if found * 4 < rows else _EVERYTHING
        self.until = now + 4 * took

    def holds(self, in_flight: int, now: float) -> bool:
        """Say whether to wait `until` then, since not even half of those have come to an end."""
        return in_flight > self._few and now < self.until
