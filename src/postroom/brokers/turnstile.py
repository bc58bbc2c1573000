"""Who may run now: many side by side, or one alone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from postroom.broker import REPEAT, Outcome, Verdict
from postroom.brokers.standing import tell_committed
from postroom.brokers.threads import Threads


class Turnstile:
    """Lets up to `size` runs in side by side, or one that must be alone.

    Whoever waits to be alone goes before those who wait to share, and those who waited while it
    was alone go before the next one: neither kind starves the other.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._running = 0
        self._alone = False
        self._sharing: deque[asyncio.Future[None]] = deque()
        self._solitary: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Run beside others."""
        if self._alone or self._solitary or self._sharing or self._running >= self._size:
            await self._wait(self._sharing, alone=False)
        else:
            self._running += 1
        try:
            yield
        finally:
            self._leave_shared()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Run while nobody else does."""
        if self._alone or self._running or self._solitary:
            await self._wait(self._solitary, alone=True)
        else:
            self._alone = True
        try:
            yield
        finally:
            self._leave_alone()

    async def _wait(self, queue: deque[asyncio.Future[None]], *, alone: bool) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # let in and cancelled in the same moment
                if alone:
                    self._leave_alone()
                else:
                    self._leave_shared()
            else:
                queue.remove(turn)
                self._admit()
            raise

    def _leave_shared(self) -> None:
        self._running -= 1
        self._admit()

    def _leave_alone(self) -> None:
        self._alone = False
        self._admit_sharing()
        self._admit()

    def _admit(self) -> None:
        if self._alone:
            return
        if self._solitary:
            if not self._running:
                self._alone = self._let_in(self._solitary)
        else:
            self._admit_sharing()

    def _admit_sharing(self) -> None:
        while self._sharing and self._running < self._size and self._let_in(self._sharing):
            self._running += 1

    @staticmethod
    def _let_in(queue: deque[asyncio.Future[None]]) -> bool:
        """Let the first in who has not been cancelled meanwhile; say whether there was one."""
        waiting = next((turn for turn in queue if not turn.done()), None)
        if waiting is None:
            return False
        queue.remove(waiting)
        waiting.set_result(None)
        return True


_MOST_PARTED = 10_000


class Floor:
    """Where handlers run: the limits that all twins of one Handlers share, on one event loop.

    parted      ids of events whose company failed: they are handled by themselves the next time
    held        ids of events whose notes a thread holds that hangs past its limit
    refused     what became of events, by id, whose handlers must not run again
    """

    def __init__(self, concurrency: int, name: str) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._concurrency = concurrency
        self._name = name
        self.parted: dict[str, None] = {}
        self.held: set[str] = set()
        self.refused: dict[str, Outcome] = {}
        self._failed: dict[tuple[str, str], None] = {}
        self._renew()

    def part(self, ids: Iterable[str]) -> None:
        """Remember these; the oldest are forgotten when there are too many of them."""
        self.parted |= dict.fromkeys(ids)
        _cut(self.parted)

    def witness(self, handler: str, id: str, outcome: Outcome) -> None:  # noqa: A002
        """Log if a handler has failed and the event is done all the same.

        Then it committed before it failed, and the rest of its work is lost.
        """
        if outcome.verdict is Verdict.FAILED:
            self._failed[handler, id] = None
            _cut(self._failed)
        elif (handler, id) in self._failed:
            del self._failed[handler, id]
            if outcome == REPEAT:
                tell_committed([handler])

    def enter(self) -> None:
        """Begin afresh on another event loop: what the last one left undone is gone with it."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self.threads.close()
            self._renew()
            self._loop = loop

    def close(self) -> None:
        self.threads.close()

    def _renew(self) -> None:
        self.turnstile = Turnstile(self._concurrency)
        self.threads = Threads(self._concurrency, self._name)


def _cut(remembered: dict[Any, None]) -> None:
    """Forget the oldest where there are too many of them."""
    while len(remembered) > _MOST_PARTED:
        del remembered[next(iter(remembered))]
