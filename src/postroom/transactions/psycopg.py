"""Adapters for psycopg 3, sync and async.

psycopg opens a transaction before the first statement, unless the connection is in autocommit mode
(W1). In pipeline mode results arrive later and the state of the transaction lags behind: postroom's
statement is sent in its own pipeline block, whose end waits for its result, and with autocommit it
is refused until the server has reported an open transaction (W3).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from psycopg import AsyncConnection, AsyncRawCursor, Connection, RawCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from postroom.errors import AutocommitError, TransactionError
from postroom.transactions.client_encoding import refuse_encoding
from postroom.transactions.driver import Driver, Values
from postroom.transactions.errors import FAILED, OPEN_ALREADY
from postroom.transactions.queries import Style
from postroom.transactions.statements import AsyncStatements, SyncStatements

OWN_ONLY = 2**30
"""The prepare_threshold of connections on which postroom's own statements are prepared, and others
only if the caller asks for it.
"""

_ACTIVE = TransactionStatus.ACTIVE
_IDLE = TransactionStatus.IDLE
_INERROR = TransactionStatus.INERROR
_OPEN = {TransactionStatus.INTRANS, _INERROR}


def refuse_autocommit(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    """Raise AutocommitError if the next statement would be autocommitted."""
    pgconn = connection.pgconn
    if not connection.autocommit or pgconn.transaction_status in _OPEN:
        return
    if pgconn.pipeline_status:
        raise AutocommitError(
            "this connection is in autocommit mode and in a pipeline, so postroom cannot determine "
            "whether a transaction is open. Use `with conn.transaction():` instead of BEGIN, or "
            "add the event outside of the pipeline"
        )
    # Inside of `conn.transaction()` it is known which transaction the running statement belongs to.
    if pgconn.transaction_status == _ACTIVE and not getattr(connection, "_num_transactions", 0):
        raise AutocommitError(
            "this psycopg connection is in autocommit mode, and another task or thread is using "
            "it, so postroom cannot determine whether the event would be in a transaction. "
            "Give each task its own connection, or use `with conn.transaction():` around the event"
        )
    if pgconn.transaction_status == _IDLE:
        raise AutocommitError(
            "this psycopg connection is in autocommit mode and no transaction is open: the event "
            "would be committed separately from your data. Use `with conn.transaction():` "
            "(or BEGIN), or `with outbox.transaction(conn):`, or connect with autocommit=False"
        )


def _refuse_open(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    if connection.pgconn.transaction_status != _IDLE:
        raise TransactionError(OPEN_ALREADY)


def _refuse_failed(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    # PostgreSQL answers COMMIT with a rollback here, and psycopg raises nothing.
    if connection.pgconn.transaction_status == _INERROR:
        raise TransactionError(FAILED)


def _prepares(connection: Connection[Any] | AsyncConnection[Any]) -> bool | None:
    return True if connection.prepare_threshold == OWN_ONLY else None


class _Shared(Driver):
    dialect = "postgresql"
    style: Style = "numeric"

    def is_open(self) -> bool:
        return self.target.pgconn.transaction_status in _OPEN

    def check(self) -> None:
        refuse_encoding(self.target)
        refuse_autocommit(self.target)

    guard = check


class PsycopgDriver(_Shared):
    """One psycopg.Connection of the caller; its row and cursor factories are not used."""

    def _execute(self, sql: str, values: Values) -> RawCursor[tuple[Any, ...]]:
        conn = self.target
        cursor = RawCursor(conn, row_factory=tuple_row)
        if conn.pgconn.pipeline_status:
            with conn.pipeline():
                cursor.execute(sql, values or None)
        else:
            cursor.execute(sql, values or None, prepare=_prepares(conn))
        return cursor

    def change(self, sql: str, values: Values = ()) -> int:
        return self._execute(sql, values).rowcount

    def fetch(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        return self._execute(sql, values).fetchall()


class AsyncPsycopgDriver(_Shared):
    """One psycopg.AsyncConnection of the caller; its row and cursor factories are not used."""

    async def _execute(self, sql: str, values: Values) -> AsyncRawCursor[tuple[Any, ...]]:
        conn = self.target
        cursor = AsyncRawCursor(conn, row_factory=tuple_row)
        if conn.pgconn.pipeline_status:
            async with conn.pipeline():
                await cursor.execute(sql, values or None)
        else:
            await cursor.execute(sql, values or None, prepare=_prepares(conn))
        return cursor

    async def change(self, sql: str, values: Values = ()) -> int:
        return (await self._execute(sql, values)).rowcount

    async def fetch(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        return await (await self._execute(sql, values)).fetchall()


class PsycopgTransaction(SyncStatements):
    """The caller's psycopg.Connection."""

    def __init__(self, connection: Connection[Any], prefix: str) -> None:
        super().__init__(PsycopgDriver(connection), prefix)
        self._connection = connection

    @contextmanager
    def open(self) -> Iterator[None]:
        """Open a transaction, commit it at the end, roll it back on an error."""
        _refuse_open(self._connection)
        with self._connection.transaction():
            yield
            _refuse_failed(self._connection)


class AsyncPsycopgTransaction(AsyncStatements):
    """The caller's psycopg.AsyncConnection."""

    def __init__(self, connection: AsyncConnection[Any], prefix: str) -> None:
        super().__init__(AsyncPsycopgDriver(connection), prefix)
        self._connection = connection

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Open a transaction, commit it at the end, roll it back on an error."""
        _refuse_open(self._connection)
        async with self._connection.transaction():
            yield
            _refuse_failed(self._connection)
