"""Where reads may start: a proven floor under each lane (rule R6).

While an old transaction is open anywhere in the database, entries of settled events stay at the
head of the index, and every read walks past them. A lane's floor is a number below which it has no
ready event and never will have one, so that reads may start there:

- A number from the sequence belongs to a writer that locked the table first. Once all
  transactions that held that lock when `last_value` was read have ended, every number up to it is
  committed or gone.
- Events that return to `ready` later are moved by the lane's owner through the same Store, which
  lowers the floor; or by an operator command, which raises the token: a new token starts without
  a floor.
- A floor is valid only while no number can have been taken back since its proof began: after a
  failover, a crash, TRUNCATE … RESTART IDENTITY or setval a sequence may be behind. The server
  decides that with each read (postroom_floors), since behind a pooler a crash may go unnoticed.
- With a cache in the sequence a session holds numbers without holding a lock: then there are no
  floors.

None of these queries runs unless reads have become slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

from postroom.errors import StoreRetryableError
from postroom.store import ReadRequest
from postroom.stores.postgres.database import Database
from postroom.stores.postgres.statements import numbers

SLOW_SECONDS = 0.02
SLOW_READS = 5  # in a row; a busy machine has a slow one now and then
PAUSE_SECONDS = 0.25


@dataclass(slots=True)
class _Lane:
    owner: str
    token: int
    floor: int = 0
    fixed: bool = False  # unknown which events came back: no floor until it is taken again


class _Proof(NamedTuple):
    """A proof in progress: once none of these writers is left, everything up to the number
    is decided.
    """

    number: int
    epoch: tuple[int, int]
    writers: frozenset[str]


class Floors:
    """The floors of the lanes that were taken through one Store."""

    def __init__(
        self,
        slow_seconds: float = SLOW_SECONDS,
        slow_reads: int = SLOW_READS,
        pause: float = PAUSE_SECONDS,
    ) -> None:
        self._slow_seconds = slow_seconds
        self._slow_reads = slow_reads
        self._pause = pause
        self._slow = 0  # reads in a row
        self._streams: dict[str, dict[int, _Lane]] = {}
        self._proof: _Proof | None = None
        self._next_look = 0.0
        self._looking = False
        self._moving = 0  # changes in progress that may return events
        self._moves = 0  # how many have come back
        self._epoch: tuple[int, int] | None = None  # None: there are no floors

    @property
    def epoch(self) -> str | None:
        """Where and when the floors' proof began, as an array; None: there are none."""
        return None if self._epoch is None else numbers(self._epoch)

    def forget(self) -> None:
        """Drop all floors: numbers may have gone back."""
        self._epoch = None
        for lanes in self._streams.values():
            for lane in lanes.values():
                lane.floor = 0

    def taken(self, stream: str, owner: str, tokens: Mapping[int, int]) -> None:
        """These lanes were taken: nothing is known of them."""
        lanes = self._streams.setdefault(stream, {})
        lanes.update({lane: _Lane(owner, token) for lane, token in tokens.items()})

    def holders(
        self, stream: str, lanes: Sequence[int]
    ) -> tuple[list[str | None], list[int | None]]:
        """Return the owner and token of each lane taken through this Store."""
        known = self._streams.get(stream, {})
        found = [known.get(lane) for lane in lanes]
        return (
            [None if lane is None else lane.owner for lane in found],
            [None if lane is None else lane.token for lane in found],
        )

    def of(self, stream: str, lanes: Sequence[int]) -> str | None:
        """Return the floors of these lanes as an array, or None if there are none."""
        if self._epoch is None:
            return None
        known = self._streams.get(stream, {})
        return numbers(lane.floor if (lane := known.get(n)) else 0 for n in lanes)

    def under(self, request: ReadRequest) -> str | None:
        """Return the floors for a read; they apply only to the holder of a lane's last token."""
        if self._epoch is None or request.owner is None:
            return None
        known, tokens = self._streams.get(request.stream, {}), request.tokens
        return numbers(
            lane.floor if (lane := known.get(n)) and lane.token == tokens.get(n) else 0
            for n in request.lanes
        )

    @contextmanager
    def moving(self, stream: str, lanes: Iterable[int]) -> Iterator[None]:
        """Events of these lanes may come back within this block; no floor is raised meanwhile.

        `lower` must be called before they can be read, where their order depends on it. If the
        block fails, it is unknown whether and when they come back: then these lanes stay without a
        floor.
        """
        self._moving += 1
        try:
            yield
        except StoreRetryableError:
            raise  # nothing was changed
        except BaseException:
            known = self._streams.get(stream, {})
            for lane in lanes:
                if lane in known:
                    known[lane].floor, known[lane].fixed = 0, True
            raise
        finally:
            self._moving -= 1

    def lower(self, stream: str, lowest: Iterable[tuple[int, int]]) -> None:
        """Events with these numbers, lane by lane, come back (0: none does)."""
        known = self._streams.get(stream, {})
        for lane, number in lowest:
            if number and lane in known:
                known[lane].floor = min(known[lane].floor, number)
                self._moves += 1

    async def noticed(self, db: Database, request: ReadRequest, seconds: float) -> None:
        """A read took this long: if all of them do, continue a proof; use it once it is
        complete.
        """
        if request.owner is None:
            return
        self._slow = self._slow + 1 if seconds >= self._slow_seconds else 0
        now = monotonic()
        # Slow in spite of the floors: they are old, or this backend is younger than their proof.
        wanted = self._slow_reads if self._epoch is None else 1
        if self._slow < wanted or now < self._next_look or self._looking:
            return
        self._next_look = now + self._pause
        # A concurrent look would check this proof against its own writers, or find it gone.
        self._looking = True
        try:
            proof = await self._proven(db)
            if proof is not None:
                await self._raise(db, request, proof)
        finally:
            self._looking = False

    async def _proven(self, db: Database) -> int | None:
        """Return a number up to which everything is decided, if the proof is complete."""
        if self._proof is None:
            ((last, place, now, started, plain),) = await db.rows("floor_number")  # before writers
            number = last or 0
            if self._epoch is not None and not self._holds(number, place, started):
                self.forget()
            if not plain:
                return None
            self._proof = _Proof(number, (place, now), await _writers(db))
        else:
            left = self._proof.writers & await _writers(db)
            self._proof = self._proof._replace(writers=left)
        if self._proof.writers:
            return None
        proof, self._proof = self._proof, None
        self._epoch = proof.epoch  # older floors were valid when this proof began
        return proof.number

    def _holds(self, number: int, place: int, started: int) -> bool:
        """Return whether no number was taken back since the floors were proven."""
        assert self._epoch is not None
        floors = (lane.floor for lanes in self._streams.values() for lane in lanes.values())
        same, since = place == self._epoch[0], self._epoch[1]
        return same and started <= since and max(floors, default=0) <= number + 1

    async def _raise(self, db: Database, request: ReadRequest, number: int) -> None:
        """Set the floors of a reader's lanes: at the lowest ready event, at most after the number.

        All of them, not only those of this read: other groups' lanes are as slow, and each fast
        read in between would make the slow ones look like exceptions.
        """
        if self._moving:
            return
        moves, known = self._moves, self._streams.get(request.stream, {})
        tokens = {n: lane.token for n, lane in known.items() if lane.owner == request.owner}
        async with db.change() as session:
            rows = await session.rows(
                "floor_lowest",
                stream=request.stream,
                lanes=numbers(tokens),
                floors=self.of(request.stream, list(tokens)),
                epoch=self.epoch,
            )
        if self._moving or self._moves != moves:
            return
        for n, lowest in rows:
            lane = known.get(n)
            if lane and lane.token == tokens[n] and not lane.fixed:
                lane.floor = number + 1 if lowest is None else min(number + 1, lowest)


async def _writers(db: Database) -> frozenset[str]:
    return frozenset(name for (name,) in await db.rows("floor_writers"))
