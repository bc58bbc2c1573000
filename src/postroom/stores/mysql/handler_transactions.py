"""Connections for handlers, one transaction at a time (rules H2 and H3).

They have the server's own isolation and time limits: a handler may take longer than a settle. Where
the server asks for a retry (a deadlock, a lock timeout), StoreRetryableError is raised.

They are not in autocommit mode: after a rollback, by the handler or by the server, later writes of
the handler are in a transaction too, which is rolled back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import asyncmy

from postroom.errors import (
    MissingExtraError,
    StoreError,
    StoreUnknownError,
    TransactionEndedError,
)
from postroom.stores.mysql.errors import code_of, is_conflict, is_lost, translate
from postroom.stores.mysql.session import SET_NAMES, Target, end

_IN_TRANSACTION = 1  # SERVER_STATUS_IN_TRANS of the protocol
_ENDED = (
    "the handler ended its own transaction, or the server did, as after a deadlock. Let postroom "
    "commit or roll it back; otherwise the effects and the inbox row can be committed separately"
)
_FAILURES = (asyncmy.errors.MySQLError, OSError, EOFError)


class HandlerTransactions:
    """Keeps the connections of handlers that ended normally, for the next ones."""

    def __init__(self, target: Target, size: int) -> None:
        self._target = target
        self._free = asyncio.Semaphore(size)
        self._idle: list[asyncmy.Connection] = []
        self._sync_idle: list[Any] = []
        self._sync_lock = threading.Lock()
        self._closed = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[asyncmy.Connection]:
        async with self._free:
            connection = await self._begin()
            try:
                yield connection
            except BaseException as error:
                await self._roll_back(connection)
                if is_conflict(error):
                    raise translate(error, self._target.database) from error
                raise
            if not connection.get_transaction_status():
                await end(connection)
                raise TransactionEndedError(_ENDED)
            await self._commit(connection)

    async def _begin(self) -> asyncmy.Connection:
        """Open a transaction, on an idle connection or on a new one."""
        while self._idle:
            connection = self._idle.pop()
            try:
                await connection.begin()
            except _FAILURES:  # the server has closed it meanwhile
                await end(connection)
            except BaseException:
                await end(connection)
                raise
            else:
                return connection
        connection = await self._target.connect(autocommit=False)
        try:
            await connection.begin()
        except _FAILURES as error:
            await end(connection)
            raise translate(error, self._target.database) from error
        except BaseException:
            await end(connection)
            raise
        return connection

    async def _commit(self, connection: asyncmy.Connection) -> None:
        try:
            await connection.commit()
        except BaseException as error:
            await end(connection)
            if isinstance(error, _FAILURES):
                raise _commit_error(error, self._target.database) from error
            raise
        await self._rest(connection)

    async def _roll_back(self, connection: asyncmy.Connection) -> None:
        try:
            await connection.rollback()
        except BaseException as error:
            await end(connection)
            if not isinstance(error, _FAILURES):
                raise
        else:
            await self._rest(connection)

    async def _rest(self, connection: asyncmy.Connection) -> None:
        if self._closed:
            await end(connection)
        else:
            self._idle.append(connection)

    @contextmanager
    def sync_transaction(self) -> Iterator[Any]:
        connection = self._sync_begin()
        try:
            yield connection
        except BaseException as error:
            self._sync_roll_back(connection)
            if is_conflict(error):
                raise translate(error, self._target.database) from error
            raise
        if not connection.server_status & _IN_TRANSACTION:
            _sync_end(connection)
            raise TransactionEndedError(_ENDED)
        try:
            connection.commit()
        except BaseException as error:
            _sync_end(connection)
            if isinstance(error, (_pymysql().MySQLError, OSError)):
                raise _commit_error(error, self._target.database) from error
            raise
        self._sync_rest(connection)

    def _sync_begin(self) -> Any:
        driver = _pymysql()
        while True:
            with self._sync_lock:
                connection = self._sync_idle.pop() if self._sync_idle else None
            if connection is None:
                break
            try:
                connection.begin()
            except (driver.MySQLError, OSError):
                _sync_end(connection)
            else:
                return connection
        try:
            connection = self._sync_connect()
            connection.begin()
        except (driver.MySQLError, *_FAILURES) as error:  # a refused plugin: asyncmy's error
            raise translate(error, self._target.database) from error
        return connection

    def _sync_connect(self) -> Any:
        target = self._target
        return _pymysql().connect(
            host=target.host,
            port=target.port,
            unix_socket=target.socket,
            user=target.user,
            password=(target.password or "").encode(),
            database=target.database,
            charset="utf8mb4",
            init_command=SET_NAMES,  # not every release of the driver reports it
            autocommit=False,
            connect_timeout=max(1, round(target.connect_seconds)),
            ssl=target.tls.context() if target.tls is not None else None,
            auth_plugin_map=target.refused_plugins,
        )

    def _sync_roll_back(self, connection: Any) -> None:
        try:
            connection.rollback()
        except (_pymysql().MySQLError, OSError):
            _sync_end(connection)
        else:
            self._sync_rest(connection)

    def _sync_rest(self, connection: Any) -> None:
        with self._sync_lock:
            if not self._closed:
                self._sync_idle.append(connection)
                return
        _sync_end(connection)

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            await end(self._idle.pop())
        with self._sync_lock:
            idle, self._sync_idle = self._sync_idle, []
        for connection in idle:
            _sync_end(connection)


def _pymysql() -> Any:
    try:
        import pymysql
    except ImportError as error:
        raise MissingExtraError("mysql", "PyMySQL") from error
    return pymysql


def _sync_end(connection: Any) -> None:
    with suppress(Exception):
        connection.close()


def _commit_error(error: BaseException, database: str) -> Exception:
    if is_lost(error) or code_of(error) is None:
        return StoreUnknownError(f"the connection was lost during a commit: {error}")
    found = translate(error, database)
    return found if isinstance(found, StoreError) else StoreError(str(error))
