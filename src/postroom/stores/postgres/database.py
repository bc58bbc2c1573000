"""Named statements on pooled connections, each within a time limit."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool

from postroom.errors import StoreRetryableError, StoreUnknownError
from postroom.stores.postgres.connector import Connector, RelayConnection
from postroom.stores.postgres.errors import first_line, is_fatal, translate
from postroom.transactions.queries import Query

_GRACE_SECONDS = 2.0  # after the server's own limit, which gives a better error
_IDLE_SECONDS = 300.0
_CHANGE = (
    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL enable_seqscan = off; "
    "SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off"
)
_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL jit = off"


class Session:
    """A connection with its named statements."""

    def __init__(self, connection: RelayConnection, sql: Mapping[str, Query]) -> None:
        self.connection = connection
        self.undone = False
        """A connection that is lost now rolls everything back."""
        self._sql = sql

    async def rows(self, name: str, /, **values: Any) -> list[Any]:
        """Execute a statement and fetch all rows."""
        cursor = await self._execute(name, values)
        return await cursor.fetchall()

    async def run(self, name: str, /, **values: Any) -> int:
        """Execute a statement; returns the number of changed rows."""
        cursor = await self._execute(name, values)
        return cursor.rowcount

    async def _execute(self, name: str, values: Mapping[str, Any]) -> AsyncRawCursor[Any]:
        query = self._sql[name]
        cursor = AsyncRawCursor(self.connection)
        return await cursor.execute(
            query.sql, [values[name] for name in query.names] or None, binary=True
        )


class Database:
    """A pool of connections. Errors are translated to those of the port.

    Every use of a connection has a limit here too, since the server's own limits do not help when
    the network is silent: then the connection is closed, and the outcome is unknown.
    """

    def __init__(self, connector: Connector, sql: Mapping[str, Query]) -> None:
        options = connector.settings
        self._connector = connector
        self._sql = sql
        self._limit = options.statement_seconds
        self._failures = 0  # counts lost connections
        self._checked: WeakKeyDictionary[RelayConnection, int] = WeakKeyDictionary()
        self._pool = AsyncConnectionPool(
            connection_class=RelayConnection,
            kwargs={"connector": connector},
            min_size=1,
            max_size=options.pool_size,
            open=False,
            name=f"{options.application_name}-relay",
            timeout=options.connect_seconds or 3_600.0,
            # After a long outage the pool reconnects more and more slowly; start with a new one
            # instead.
            reconnect_timeout=5.0,
            max_idle=_IDLE_SECONDS,
            check=self._check,
        )

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close()

    async def rows(self, name: str, /, **values: Any) -> list[Any]:
        """Execute one statement in its own transaction and fetch all rows."""
        async with self._session() as session:
            return await session.rows(name, **values)

    async def run(self, name: str, /, **values: Any) -> int:
        """Execute one statement in its own transaction; returns the number of changed rows."""
        async with self._session() as session:
            return await session.run(name, **values)

    @asynccontextmanager
    async def change(self) -> AsyncIterator[Session]:
        """Open a transaction: committed at the end, rolled back on any error.

        READ COMMITTED, so that a statement that waited for a lock sees the changes of its holder.
        """
        async with self._session() as session, self._transaction(session, _CHANGE):
            yield session

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Session]:
        """Let several statements see one snapshot."""
        async with self._session() as session, self._transaction(session, _SNAPSHOT):
            yield session

    @asynccontextmanager
    async def _transaction(self, session: Session, begin: str) -> AsyncIterator[None]:
        connection = session.connection
        session.undone = True  # until the COMMIT is sent, a lost connection is a rollback
        try:
            await connection.execute(begin)
            yield
            session.undone = False
            await connection.execute("COMMIT")
        except BaseException:
            if connection.pgconn.transaction_status in _OPEN:
                with suppress(psycopg.Error):
                    await connection.rollback()
            raise

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Session]:
        connection = await self._take()
        session = Session(connection, self._sql)
        limit = Limit(connection, self._limit + _GRACE_SECONDS if self._limit else None)
        try:
            with limit:
                yield session
        except psycopg.Error as error:
            broken = limit.over or connection.closed or is_fatal(error)
            self._failures += broken
            if limit.over:
                silence = f"no answer from PostgreSQL within {limit.seconds:g} s"
                raise (StoreRetryableError if session.undone else StoreUnknownError)(
                    silence
                ) from error
            raise translate(error, broken=broken, undone=session.undone) from error
        finally:
            await self._pool.putconn(connection)

    async def _take(self) -> RelayConnection:
        try:
            return await self._pool.getconn()
        except Exception as error:
            reason = self._connector.error
            if reason is not None and isinstance(translate(error), StoreRetryableError):
                raise StoreRetryableError(
                    f"cannot connect to PostgreSQL: {first_line(reason)}"
                ) from error
            raise translate(error) from error

    async def _check(self, connection: RelayConnection) -> None:
        """Test a connection that was idle when another one was lost: it may be dead too."""
        seen = self._checked.get(connection)
        if seen != self._failures:
            self._checked[connection] = self._failures
            if seen is not None:
                with Limit(connection, _GRACE_SECONDS):
                    await AsyncConnectionPool.check_connection(connection)


_OPEN = (TransactionStatus.INTRANS, TransactionStatus.INERROR, TransactionStatus.ACTIVE)


class Limit:
    """Closes a connection that is still in use after this time.

    A cancel is not enough: the driver then waits for the server's answer, which may never come.
    """

    def __init__(self, connection: AsyncConnection[Any], seconds: float | None) -> None:
        self._connection = connection
        self._timer: asyncio.TimerHandle | None = None
        self.seconds = seconds or 0.0
        self.over = False

    def __enter__(self) -> None:
        if self.seconds:
            self._timer = asyncio.get_running_loop().call_later(self.seconds, self._shut)

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _shut(self) -> None:
        self.over = True
        with (
            suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(self._connection.pgconn.socket)) as copy,
        ):
            copy.shutdown(socket.SHUT_RDWR)
