"""A few sessions, shared by everything that a store is asked at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from postroom.stores.mysql.session import IDLE_SECONDS, Session


class Pool:
    """Lends sessions; opens them when needed and throws away those that were hurt.

    A session that has rested for long may have been ended by the server: it is not lent again.
    """

    def __init__(self, connect: Callable[[], Awaitable[Session]], size: int) -> None:
        self._connect = connect
        self._free = asyncio.Semaphore(size)
        self._idle: list[Session] = []
        self._closed = False

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Lend a session to one caller at a time; waits while all are lent."""
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
        """Close what rests; what is lent is closed when it comes back."""
        self._closed = True
        await self._drop_idle()

    async def _take(self) -> Session:
        now = asyncio.get_running_loop().time()
        if self._idle and now - self._idle[-1].idle_since < IDLE_SECONDS / 3:
            return self._idle.pop()
        await self._drop_idle()  # those below rest even longer
        return await self._connect()

    async def _drop_idle(self) -> None:
        while self._idle:
            await self._idle.pop().close()
