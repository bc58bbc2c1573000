"""Hearing of commits in other processes: LISTEN on a connection of its own.

It only wakes; what it misses is found by polling. Behind pgbouncer in transaction mode LISTEN is
accepted and nothing is ever heard: then every wait ends with its time.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import AsyncConnection, sql

from postroom.stores.postgres.connecting import Connector
from postroom.stores.postgres.database import Limit

_CHECK_SECONDS = 30.0  # silence for so long: ask whether anybody is there
_ANSWER_SECONDS = 5.0
_PAUSES = (0.2, 1.0, 5.0)  # between attempts to connect


class Listener:
    """Ends the waits of any number of callers; starts with the first of them."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._channel = connector.options.channel
        self._task: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()  # to listen, at least once
        self._waiting: set[asyncio.Future[None]] = set()

    async def wait(self, timeout_seconds: float) -> bool:
        """Return True once something may have been committed, False after the time.

        The first call also waits for the attempt to listen.
        """
        if self._task is None:
            self._tried.clear()
            self._task = asyncio.create_task(self._run(), name="postroom listener")
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(heard)
        try:
            await self._tried.wait()
            done, _ = await asyncio.wait([heard], timeout=timeout_seconds)
            return bool(done)
        finally:
            self._waiting.discard(heard)

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            self._tried.set()
            self._wake()

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                connection = await self._connector.connect()
                try:
                    await self._listen(connection)
                    failures = 0
                    await self._hear(connection)
                finally:
                    with suppress(psycopg.Error):
                        await connection.close()
            except (psycopg.Error, OSError):
                self._tried.set()
                pause = _PAUSES[min(failures, len(_PAUSES) - 1)]
                failures += 1
                await asyncio.sleep(pause)

    async def _listen(self, connection: AsyncConnection[Any]) -> None:
        with Limit(connection, _ANSWER_SECONDS):
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        self._tried.set()
        self._wake()  # for what was said before

    async def _hear(self, connection: AsyncConnection[Any]) -> None:
        while True:
            async for _ in connection.notifies(timeout=_CHECK_SECONDS):
                self._wake()
            with Limit(connection, _ANSWER_SECONDS):
                await connection.execute("SELECT 1")

    def _wake(self) -> None:
        for heard in self._waiting:
            if not heard.done():
                heard.set_result(None)
