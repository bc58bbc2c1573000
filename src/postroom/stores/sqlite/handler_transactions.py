"""Connections for handlers, one transaction at a time (rules H2 to H4).

They are not in autocommit mode: after a rollback, by the handler or by SQLite, later writes of the
handler are in a transaction too, which is rolled back.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from postroom.errors import (
    MissingExtraError,
    StoreError,
    StoreRetryableError,
    StoreUnknownError,
    TransactionEndedError,
)
from postroom.stores.sqlite.errors import is_busy, translate
from postroom.stores.sqlite.thread import OpenFile

if TYPE_CHECKING:
    import aiosqlite

T = TypeVar("T")

_ENDED = (
    "the handler ended its own transaction. Let postroom commit or roll it back; otherwise the "
    "effects and the inbox row can be committed separately"
)


class HandlerTransactions:
    """Keeps one connection for async handlers and one for sync ones, opened on first use.

    Their commits have SQLite's full durability: a consumer acknowledges after them.
    """

    def __init__(self, target: str, busy_seconds: float, path: Path | None = None) -> None:
        self._target = target
        self._path = path
        self._file: OpenFile | None = None
        self._sync_file: OpenFile | None = None
        self._busy_seconds = busy_seconds
        self._turn = asyncio.Lock()
        self._sync_turn = threading.Lock()
        self._idle: aiosqlite.Connection | None = None
        self._closing: set[asyncio.Future[None]] = set()
        self._sync_idle: sqlite3.Connection | None = None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[aiosqlite.Connection]:
        async with self._turn:
            if self._idle is not None and self._file is not None and self._file.is_replaced:
                idle, self._idle = self._idle, None
                await _to_the_end(self._discard(idle))
            connection, self._idle = self._idle or await self._connect(), None
            try:
                async with _transaction(connection):
                    yield connection
            except Exception:
                await self._give_back(connection)
                raise
            except BaseException:
                # A call may still be running. If it is BEGIN, its transaction would never end, and
                # no other connection could write any more.
                self._discard(connection)
                raise
            await self._give_back(connection)

    async def _give_back(self, connection: aiosqlite.Connection) -> None:
        if connection.in_transaction:
            await _to_the_end(self._discard(connection))
        else:
            connection.row_factory = None
            self._idle = connection

    def _discard(self, connection: aiosqlite.Connection) -> asyncio.Future[None]:
        """Close it after its running call, whether or not the caller waits for that."""
        closing = asyncio.ensure_future(connection.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return closing

    @contextmanager
    def sync_transaction(self) -> Iterator[sqlite3.Connection]:
        if not self._sync_turn.acquire(timeout=self._busy_seconds):
            raise StoreRetryableError("the database is busy: another handler's transaction is open")
        try:
            stale = self._sync_file is not None and self._sync_file.is_replaced
            if self._sync_idle is not None and stale:
                self._sync_idle.close()
                self._sync_idle = None
            connection, self._sync_idle = self._sync_idle or self._sync_connect(), None
            try:
                with _sync_transaction(connection):
                    yield connection
            finally:
                if connection.in_transaction:
                    connection.close()
                else:
                    connection.row_factory = None
                    self._sync_idle = connection
        finally:
            self._sync_turn.release()

    async def close(self) -> None:
        idle, self._idle = self._idle, None
        if idle is not None:
            await _to_the_end(idle.close())
        if self._closing:
            await asyncio.wait(self._closing)
        sync_idle, self._sync_idle = self._sync_idle, None
        if sync_idle is not None:
            sync_idle.close()

    async def _connect(self) -> aiosqlite.Connection:
        try:
            import aiosqlite
        except ImportError as error:
            raise MissingExtraError("sqlite", "aiosqlite") from error
        self._file = None if self._path is None else OpenFile(self._path)
        opening = asyncio.ensure_future(
            aiosqlite.connect(
                self._target, uri=True, timeout=self._busy_seconds, isolation_level="IMMEDIATE"
            )
        )
        try:
            return await _to_the_end(opening)
        except asyncio.CancelledError:
            if not opening.cancelled() and opening.exception() is None:
                await _to_the_end(opening.result().close())
            raise
        except sqlite3.Error as error:
            raise translate(error) from error

    def _sync_connect(self) -> sqlite3.Connection:
        self._sync_file = None if self._path is None else OpenFile(self._path)
        try:
            return sqlite3.connect(
                self._target,
                uri=True,
                timeout=self._busy_seconds,
                isolation_level="IMMEDIATE",
                check_same_thread=False,  # used by one thread after another
            )
        except sqlite3.Error as error:
            raise translate(error) from error


@asynccontextmanager
async def _transaction(connection: aiosqlite.Connection) -> AsyncIterator[None]:
    try:
        await _to_the_end(connection.execute("BEGIN IMMEDIATE"))
    except sqlite3.Error as error:
        raise translate(error) from error
    try:
        yield
    except BaseException:
        await _to_the_end(connection.rollback())
        raise
    if not connection.in_transaction:
        raise TransactionEndedError(_ENDED)
    try:
        await _to_the_end(connection.commit())
    except sqlite3.Error as error:
        with suppress(sqlite3.Error):
            await _to_the_end(connection.rollback())
        raise _commit_error(error) from error


@contextmanager
def _sync_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        raise translate(error) from error
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    if not connection.in_transaction:
        raise TransactionEndedError(_ENDED)
    try:
        connection.commit()
    except sqlite3.Error as error:
        with suppress(sqlite3.Error):
            connection.rollback()
        raise _commit_error(error) from error


async def _to_the_end(call: Awaitable[T]) -> T:
    """Await a call to the driver; a cancelled caller leaves only after it has ended."""
    task = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        raise


def _commit_error(error: sqlite3.Error) -> StoreError:
    if is_busy(error):
        return translate(error)
    return StoreUnknownError(f"SQLite did not report whether it committed: {error}")
