"""Assigns lanes to workers, and slow lanes to a separate worker, without input or output.

A read leaves out the keys in flight, and the store walks past all of their events. Behind a key
with 200,000 events such a read takes a hundred times as long, and all other lanes of the group wait
for it. A lane whose reads are slow because of such a key is therefore served by a separate worker:
the walk costs only the other keys of that lane. While the key is in flight, that worker spends at
most a tenth of its time walking past it, since the database serves others, too.

A lane moves only between two reads of its worker, with nothing of it in flight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter

from postroom.record import Record
from postroom.store import ReadRequest

SLOW_SECONDS = 0.02
_REST = 9  # times the duration of a slow read, before the lane is read again past its busy key
_DEEP_ROWS = 16  # fewer rows of one key are not a backlog
_lane = attrgetter("lane")
_place = attrgetter("lane", "key_hash")


class LaneGroups:
    """The lanes of each worker: `groups` by number, and one more for separated lanes."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._apart: set[int] = set()

    @property
    def workers(self) -> int:
        return self._groups + 1

    def worker_of(self, lane: int) -> int:
        """Return the index of the worker that serves the lane now."""
        return self._groups if lane in self._apart else lane % self._groups

    def of(self, worker: int, lanes: Iterable[int]) -> list[int]:
        """Return the lanes that this worker serves, out of these."""
        return [lane for lane in lanes if self.worker_of(lane) == worker]

    def move(self, lane: int) -> None:
        """Move the lane to the other worker that may serve it."""
        self._apart ^= {lane}


class Depths:
    """Learns from one worker's reads which lanes hold a deep backlog of one key.

    is_apart    the worker serves separated lanes, and returns those that no longer need it;
                other workers separate the lanes that make their reads slow
    """

    def __init__(self, *, is_apart: bool) -> None:
        self._is_apart = is_apart
        self._deep: dict[int, bytes] = {}
        self._leaving: set[int] = set()
        self._resting: set[int] = set()
        self._look_at = 0.0

    def learn(
        self, request: ReadRequest, found: Sequence[Record], *, more: bool, took: float, now: float
    ) -> None:
        """Record what a read returned, whether there was more, and how many seconds it took."""
        excluded, deep = frozenset(request.exclude), self._deep
        hidden = {lane for lane, key in deep.items() if key in excluded}.intersection(request.lanes)
        for lane in request.lanes:
            if lane not in hidden:  # the backlog of a key that was left out is not visible
                deep.pop(lane, None)
        if more:
            rows = Counter(map(_lane, found))
            for (lane, key), of_key in Counter(map(_place, found)).items():
                # The heads of other lanes come first: a deep lane may return a few less.
                full = rows[lane] >= request.per_lane or len(found) >= request.rows
                if full and of_key >= _DEEP_ROWS and of_key * 4 >= rows[lane] * 3:
                    deep.setdefault(lane, key)
        if self._is_apart:
            self._leave({lane for lane in request.lanes if lane not in deep}, now, SLOW_SECONDS)
            self._leaving -= deep.keys()
            if hidden and took >= SLOW_SECONDS:
                self._look_at = now + _REST * took
        elif took >= SLOW_SECONDS:
            self._leave(hidden, now, took)

    def _leave(self, lanes: set[int], now: float, took: float) -> None:
        if lanes:
            self._leaving |= lanes
            self._look_at = now + _REST * took

    def part(
        self,
        lanes: Sequence[int],
        is_idle: Callable[[int], bool],
        now: float,
        exclude: Collection[bytes] = (),
    ) -> tuple[list[int], list[int]]:
        """Divide the worker's lanes into those to read and those to hand over at once.

        A lane that should move and has something in flight is drained: it is read only
        occasionally. Not reading it at all would be wrong: if that key is stuck, the others of its
        lane must go on (P1). The same holds for a separated lane while its deep key is among those
        left out.
        """
        self._leaving &= set(lanes)
        moving = [lane for lane in self._leaving if is_idle(lane)]
        self._leaving.difference_update(moving)
        for lane in moving:
            self._deep.pop(lane, None)
        waiting = self._leaving if now < self._look_at else set[int]()
        self._resting = set()
        if self._is_apart and now < self._look_at and self._deep:
            busy = frozenset(exclude)
            self._resting = {lane for lane in lanes if self._deep.get(lane) in busy}
            waiting = waiting | self._resting
        return [n for n in lanes if n not in waiting and n not in moving], moving

    @property
    def look_at(self) -> float | None:
        """When drained or resting lanes are to be read again, if there are any."""
        return self._look_at if self._leaving or self._resting else None
