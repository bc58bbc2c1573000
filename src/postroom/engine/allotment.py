"""Which worker serves which lane, and which lanes are served apart, without input or output.

A read leaves out the keys that are in flight, and the store walks past every event of theirs.
Behind a key with 200,000 events such a read takes a hundred times as long, and all other lanes of
the group wait for it. So a lane whose reads are slow because of such a key is served by a worker of
its own: the walk costs the other keys of that lane, and nobody else.

A lane changes hands only between two reads of the worker that has it, with nothing of it in flight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from postroom.record import Record
from postroom.store import Read

SLOW_SECONDS = 0.02
_REST = 9  # times as long as a slow read took, no other one of a lane that drains
_DEEP_ROWS = 16  # fewer rows of one key are no backlog
_lane = attrgetter("lane")
_place = attrgetter("lane", "key_hash")


class Allotment:
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
        self._look_at = 0.0

    def learn(
        self, question: Read, found: Sequence[Record], *, more: bool, took: float, now: float
    ) -> None:
        """Note what a read brought, whether there was more, and how many seconds it took."""
        excluded, deep = frozenset(question.exclude), self._deep
        hidden = {lane for lane, key in deep.items() if key in excluded}.intersection(
            question.lanes
        )
        for lane in question.lanes:
            if lane not in hidden:  # the backlog of a key that was left out cannot be seen
                deep.pop(lane, None)
        if more:
            rows = Counter(map(_lane, found))
            for (lane, key), of_key in Counter(map(_place, found)).items():
                full = rows[lane] >= question.per_lane
                if full and of_key >= _DEEP_ROWS and of_key * 4 >= rows[lane] * 3:
                    deep.setdefault(lane, key)
        if self._is_apart:
            self._leave({lane for lane in question.lanes if lane not in deep}, now, SLOW_SECONDS)
            self._leaving -= deep.keys()
        elif took >= SLOW_SECONDS:
            self._leave(hidden, now, took)

    def _leave(self, lanes: set[int], now: float, took: float) -> None:
        if lanes:
            self._leaving |= lanes
            self._look_at = now + _REST * took

    def part(
        self, lanes: Sequence[int], is_idle: Callable[[int], bool], now: float
    ) -> tuple[list[int], list[int]]:
        """Divide the worker's lanes into those to read and those to hand over at once.

        A lane that is to leave and has something in flight drains: it is read only now and then.
        Never would be wrong: if that key hangs, the others of its lane must go on (P1).
        """
        self._leaving &= set(lanes)
        moving = [lane for lane in self._leaving if is_idle(lane)]
        self._leaving.difference_update(moving)
        for lane in moving:
            self._deep.pop(lane, None)
        draining = self._leaving if now < self._look_at else set[int]()
        return [n for n in lanes if n not in draining and n not in moving], moving

    @property
    def look_at(self) -> float | None:
        """When lanes that drain are to be read again, if there are any."""
        return self._look_at if self._leaving else None
