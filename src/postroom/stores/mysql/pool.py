"""A small pool of sessions, shared by concurrent calls of a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from postroom.stores.mysql.session import IDLE_SECONDS, Session


class Pool:
    """Hands out sessions; opens them on demand and discards broken ones.

    The server may have closed a session that was idle for long: it is not used again.
    """

    def __init__(self, connect: Callable[[], Awaitable[Session]], size: int) -> None:
        self._connect = connect
        self._free = asyncio.Semaphore(size)
        self._idle: list[Session] = []
        self._closed = False

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Use a session exclusively; waits while all are in use."""
        async with self._free:
            session = await self._take()
            try:
                yield session
            finally:
                if session.broken or self._closed:
                    await session.close()
                else:
                    session.idle_since = asyncio.get_running_loop().time()
                    self._idle.append(session)

    async def close(self) -> None:
        """Close idle sessions; the others are closed when they are returned."""
        self._closed = True
        await self._drop_idle()

    async def _take(self) -> Session:
        now = asyncio.get_running_loop().time()
        if self._idle and now - self._idle[-1].idle_since < IDLE_SECONDS / 3:
            return self._idle.pop()
        await self._drop_idle()  # those below were idle even longer
        return await self._connect()

    async def _drop_idle(self) -> None:
        while self._idle:
            await self._idle.pop().close()
