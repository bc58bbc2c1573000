"""Suspects are tried one at a time, in the order they were written (P3, H1).

They are tried in rounds: a suspect whose outcome is unknown again waits until every other suspect
was tried. An event that is stuck thus holds up the others for one attempt in each round. No key has
two suspects at a time, so rounds do not change the order of a key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from itertools import count

from postroom.engine.service import Service, is_cancelled
from postroom.record import Record


class Suspects(Service):
    """A queue of events with an unknown outcome."""

    def __init__(self, try_alone: Callable[[Record], Awaitable[None]]) -> None:
        super().__init__()
        self._try_alone = try_alone
        self._round: list[tuple[int, int, Record]] = []
        self._next_round: list[tuple[int, int, Record]] = []
        self._turn = count()  # an event may be here twice; records must never be compared
        self._filled = asyncio.Event()
        self._trying = False

    def add(self, record: Record) -> None:
        heappush(self._next_round, (record.seq, next(self._turn), record))
        self._filled.set()

    @property
    def is_empty(self) -> bool:
        return not self._round and not self._next_round and not self._trying

    async def loop(self) -> None:
        while not is_cancelled():
            await self._filled.wait()
            while self._round or self._next_round:
                if not self._round:
                    self._round, self._next_round = self._next_round, []
                _, _, record = heappop(self._round)
                self._trying = True
                try:
                    await self._try_alone(record)
                finally:
                    self._trying = False
            self._filled.clear()
