"""LISTEN on a separate connection: wakes relays after commits in other processes.

It only wakes; polling finds what it misses. Behind pgbouncer in transaction mode LISTEN is accepted
but no notification arrives: every wait then times out.

No error ends the listener. It reconnects after growing pauses, and logs one line when it fails and
one when it works again.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

from psycopg import AsyncConnection, sql

from postroom.engine.service import end, is_cancelled, wait_for
from postroom.model.pauses import Pauses
from postroom.notifier import forget_connection, report_connection
from postroom.stores.postgres.connector import Connector
from postroom.stores.postgres.database import Limit
from postroom.stores.postgres.errors import first_line

_CHECK_SECONDS = 30.0  # silence this long: check the connection
_ANSWER_SECONDS = 5.0
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 10.0
_STEADY_SECONDS = 10.0  # a connection that lasts as long counts as a success
_log = logging.getLogger(__name__)


class Listener:
    """Ends the waits of any number of callers; starts with the first of them."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._channel = connector.settings.channel
        self._task: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()  # attempts to listen
        self._waiting: set[asyncio.Future[None]] = set()
        self._pauses = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._is_deaf = False

    async def wait(self, timeout_seconds: float) -> bool:
        """Return True once something may have been committed, False after the time.

        The first call also waits for the attempt to listen, for a limited time.
        """
        if self._task is None or self._task.done():
            self._tried.clear()
            self._task = asyncio.create_task(self._run(), name="postroom listener")
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(heard)
        try:
            await wait_for(self._tried, max(timeout_seconds, 2 * _ANSWER_SECONDS))
            done, _ = await asyncio.wait([heard], timeout=timeout_seconds)
            return bool(done)
        finally:
            self._waiting.discard(heard)

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await end(task)
            forget_connection(self)
            self._tried.set()
            self._wake()

    async def _run(self) -> None:
        while True:
            try:
                await self._attempt()
            except asyncio.CancelledError as error:
                if is_cancelled():
                    raise
                problem: BaseException = error  # a future of the driver was cancelled
            except Exception as error:
                problem = error
            self._tell_deaf(problem)
            self._tried.set()
            await asyncio.sleep(self._pauses.grow())

    async def _attempt(self) -> None:
        """Connect and listen until an error ends it."""
        connection = await self._connector.connect()
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await self._listen(connection)
            await self._hear(connection)
        finally:
            if loop.time() - began >= _STEADY_SECONDS:
                self._pauses.reset()
            with suppress(Exception):
                await connection.close()

    async def _listen(self, connection: AsyncConnection[Any]) -> None:
        with Limit(connection, _ANSWER_SECONDS):
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        if not self._is_deaf:
            report_connection(self, "listener", works=True)
        self._tried.set()
        self._wake()  # for earlier notifications

    async def _hear(self, connection: AsyncConnection[Any]) -> None:
        """Wake the waiting callers; never returns, raises once the connection is lost."""
        loop = asyncio.get_running_loop()
        steady_at = loop.time() + _STEADY_SECONDS if self._is_deaf else None
        while True:
            seconds = _CHECK_SECONDS if steady_at is None else _STEADY_SECONDS
            async for _ in connection.notifies(timeout=seconds):
                self._wake()
            with Limit(connection, _ANSWER_SECONDS):
                await connection.execute("SELECT 1")
            if steady_at is not None and loop.time() >= steady_at:
                steady_at = None
                self._tell_hears()

    def _tell_deaf(self, error: BaseException) -> None:
        if not self._is_deaf:
            self._is_deaf = True
            report_connection(self, "listener", works=False)
            _log.warning(
                "LISTEN on %s failed, postroom polls for commits of other processes: %s",
                self._channel,
                first_line(error),
            )

    def _tell_hears(self) -> None:
        self._is_deaf = False
        report_connection(self, "listener", works=True)
        self._pauses.reset()
        _log.info("LISTEN on %s works again", self._channel)

    def _wake(self) -> None:
        for heard in self._waiting:
            if not heard.done():
                heard.set_result(None)
