"""Connections for handlers, one transaction at a time (rules H2 and H3).

A handler's commit() and rollback() are refused. After a ROLLBACK sent as a statement, the driver
opens another transaction, which is rolled back: nothing that the handler does can commit
separately.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from postroom.engine.service import is_cancelled
from postroom.errors import PostroomError, TransactionEndedError, TransactionError
from postroom.stores.handler_transactions import guarded
from postroom.stores.postgres.connector import Connector
from postroom.stores.postgres.errors import is_fatal, translate
from postroom.transactions.psycopg import OWN_ONLY

_SESSION = "SELECT pg_backend_pid()"
_IDLE_SECONDS = 60.0
_CLOSE_SECONDS = 2.0  # for the pool's own threads, which end at once unless one connects
_ENDED = (
    "the handler ended its own transaction. Let postroom commit or roll it back; otherwise the "
    "effects and the inbox row can be committed separately"
)
_FAILED = (
    "a statement of the handler failed and the handler went on: PostgreSQL has rolled back its "
    "transaction. Let the error propagate, or use a savepoint: async with tx.transaction()"
)


class HandlerTransactions:
    """Keeps connections for async handlers and for those in threads; opened on demand.

    They have none of the relay's time limits and are not taken from its pool: a slow handler must
    not keep a lease from being renewed. `on_add` is called after a commit that added events.
    """

    def __init__(self, connector: Connector, on_add: Callable[[], None]) -> None:
        options = connector.settings
        self._on_add = on_add
        # One round trip for both. Before the COMMIT, since it counts this transaction's rows.
        self._commit = (
            "SELECT pg_stat_get_xact_tuples_inserted"
            f"(CAST('{options.tables}outbox' AS regclass)); COMMIT"
        ).encode()
        self._settings: dict[str, Any] = {
            "kwargs": connector.parameters(limited=False),
            "min_size": 0,
            "max_size": options.pool_size,
            "name": f"{options.application_name}-handlers",
            "timeout": options.connect_seconds or 3_600.0,
            "reconnect_timeout": 5.0,
            "max_idle": _IDLE_SECONDS,
            "open": False,
        }
        self._pool: AsyncConnectionPool[AsyncConnection[Any]] | None = None
        self._sync_pool: ConnectionPool[Connection[Any]] | None = None
        self._sync_turn = threading.Lock()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        """Begin a transaction; committed at the end, rolled back on an error."""
        pool, connection = await self._begin()
        try:
            try:
                with _guarded(connection):
                    yield connection
                _check_end(connection)
            except BaseException:
                with suppress(psycopg.Error):
                    await connection.rollback()
                raise
            with _translated(connection, undone=False):
                cursor = await connection.execute(self._commit)
                added = await cursor.fetchone()
        finally:
            connection.row_factory = tuple_row  # as it was given
            await pool.putconn(connection)
        if added != (0,):
            self._on_add()

    @contextmanager
    def sync_transaction(self) -> Iterator[Connection[Any]]:
        """The same for a handler in a thread."""
        pool, connection = self._begin_sync()
        try:
            try:
                with _guarded(connection):
                    yield connection
                _check_end(connection)
            except BaseException:
                with suppress(psycopg.Error):
                    connection.rollback()
                raise
            with _translated(connection, undone=False):
                added = connection.execute(self._commit).fetchone()
        finally:
            connection.row_factory = tuple_row  # as it was given
            pool.putconn(connection)
        if added != (0,):
            self._on_add()

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        sync_pool, self._sync_pool = self._sync_pool, None
        if pool is not None:
            await pool.close()
        if sync_pool is not None:
            await asyncio.to_thread(sync_pool.close, timeout=_CLOSE_SECONDS)

    async def _begin(self) -> tuple[AsyncConnectionPool[Any], AsyncConnection[Any]]:
        """Open a transaction on the first idle connection that is still alive."""
        if self._pool is None:
            self._pool = AsyncConnectionPool(**self._settings, configure=_prepare)
            await self._pool.open()
        pool = self._pool
        for rested in reversed(range(pool.max_size + 1)):  # after this many, open a new one
            try:
                connection = await pool.getconn()
            except Exception as error:
                raise translate(error) from error
            try:
                with _translated(connection, undone=True):
                    await connection.execute("BEGIN")
            except BaseException as error:
                await pool.putconn(connection)
                dead = connection.closed and isinstance(error, PostroomError)
                # psycopg may raise its own error in place of a cancellation.
                if not (rested and dead) or is_cancelled():
                    raise
            else:
                return pool, connection
        raise AssertionError("the last one was returned or raised")

    def _begin_sync(self) -> tuple[ConnectionPool[Any], Connection[Any]]:
        """The same for a handler in a thread."""
        with self._sync_turn:
            if self._sync_pool is None:
                self._sync_pool = ConnectionPool(**self._settings, configure=_prepare_sync)
                self._sync_pool.open()
            pool = self._sync_pool
        for rested in reversed(range(pool.max_size + 1)):
            try:
                connection = pool.getconn()
            except Exception as error:
                raise translate(error) from error
            try:
                with _translated(connection, undone=True):
                    connection.execute("BEGIN")
            except BaseException as error:
                pool.putconn(connection)
                if not (rested and connection.closed and isinstance(error, PostroomError)):
                    raise
            else:
                return pool, connection
        raise AssertionError("the last one was returned or raised")


async def _prepare(connection: AsyncConnection[Any]) -> None:
    """Let postroom's own statements be prepared, unless a pooler is between: it may give the next
    transaction to another session. A pooler announces another number for the session.
    """
    cursor = await connection.execute(_SESSION)
    if await cursor.fetchone() == (connection.info.backend_pid,):
        connection.prepare_threshold = OWN_ONLY


def _prepare_sync(connection: Connection[Any]) -> None:
    if connection.execute(_SESSION).fetchone() == (connection.info.backend_pid,):
        connection.prepare_threshold = OWN_ONLY


@contextmanager
def _guarded(connection: AsyncConnection[Any] | Connection[Any]) -> Iterator[None]:
    """Take a connection with its open transaction out of autocommit mode while a handler uses it.

    psycopg refuses to change the mode within a transaction, and without autocommit mode it would
    send its own BEGIN first.
    """
    connection._autocommit = False  # noqa: SLF001 - psycopg has no public way, see above
    try:
        with guarded(connection, "commit", "rollback"):
            yield
    finally:
        connection._autocommit = True  # noqa: SLF001 - psycopg's, see above


def _check_end(connection: AsyncConnection[Any] | Connection[Any]) -> None:
    match connection.pgconn.transaction_status:
        case TransactionStatus.IDLE:
            raise TransactionEndedError(_ENDED)
        case TransactionStatus.INERROR:
            raise TransactionError(_FAILED)


@contextmanager
def _translated(
    connection: AsyncConnection[Any] | Connection[Any], *, undone: bool
) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        broken = connection.closed or is_fatal(error)
        raised: PostroomError = translate(error, broken=broken, undone=undone)
        raise raised from error
