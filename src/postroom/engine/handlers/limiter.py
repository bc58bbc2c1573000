"""Limits concurrency: many runs side by side, or one alone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class SharedLimiter:
    """Admits up to `size` concurrent runs, or one exclusive run.

    A waiting exclusive run goes before waiting shared runs, and shared runs that waited during an
    exclusive one go before the next exclusive one: neither kind starves the other.
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
        """Run exclusively."""
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
            if turn.done() and not turn.cancelled():  # admitted and cancelled at the same moment
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
        """Admit the first waiter that was not cancelled; return whether there was one."""
        waiting = next((turn for turn in queue if not turn.done()), None)
        if waiting is None:
            return False
        queue.remove(waiting)
        waiting.set_result(None)
        return True
