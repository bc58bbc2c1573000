"""Which worker serves which lane, and which lanes are served apart, without input or output.

A read leaves out the keys that are in flight, and the store walks past every event of theirs.
Behind a key with 200,000 events such a read takes a hundred times as long, and all other lanes of
the group wait for it. So a lane whose reads are slow because of such a key is served by a worker of
its own: the walk costs the other keys of that lane, and nobody else. While the key is in flight
that worker walks past it for a tenth of the time at most, since the database serves others, too.

A lane changes hands only between two reads of the worker that has it, with nothing of it in flight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter

from postroom.record import Record
from postroom.store import ReadRequest

SLOW_SECONDS = 0.02
_REST = 9  # times as long as a slow read took, no other one of that lane past its busy key
_DEEP_ROWS = 16  # fewer rows of one key are no backlog
_lane = attrgetter("lane")
_place = attrgetter("lane", "key_hash")


class LaneGroups:
    """The lanes of each worker: `groups` by their number, and one more for lanes set apart."""

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
        """Return those of the lanes that this worker serves."""
        return [lane for lane in lanes if self.worker_of(lane) == worker]

    def move(self, lane: int) -> None:
        """Hand the lane to the other worker that may serve it."""
        self._apart ^= {lane}


class Depths:
    """What one worker learns from its reads: which lanes hold a deep backlog of one key.

    is_apart    the worker serves lanes that were set apart, and gives back those that need it no
                more; the others set apart what makes their reads slow
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
        """Note what a read brought, whether there was more, and how many seconds it took."""
        excluded, deep = frozenset(request.exclude), self._deep
        hidden = {lane for lane, key in deep.items() if key in excluded}.intersection(request.lanes)
        for lane in request.lanes:
            if lane not in hidden:  # the backlog of a key that was left out cannot be seen
                deep.pop(lane, None)
        if more:
            rows = Counter(map(_lane, found))
            for (lane, key), of_key in Counter(map(_place, found)).items():
                # The heads of other lanes come first: a deep lane may bring a few less.
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

        A lane that is to leave and has something in flight drains: it is read only now and then.
        Never would be wrong: if that key hangs, the others of its lane must go on (P1). The same
        holds for a lane that is served apart while its deep key is among those to leave out.
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
        """When lanes that drain or rest are to be read again, if there are any."""
        return self._look_at if self._leaving or self._resting else None
