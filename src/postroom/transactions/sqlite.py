"""Adapters for the standard library's `sqlite3` and for aiosqlite.

The connection's mode determines whether a statement would autocommit (W1):

    legacy, isolation_level ''/DEFERRED/…   the driver opens a transaction before INSERT: accepted
    legacy, isolation_level None            only inside the caller's own BEGIN
    autocommit=True (Python 3.12)           only inside the caller's own BEGIN; its isolation_level
                                            still reads '', so that alone proves nothing
    autocommit=False (Python 3.12)          the driver has a transaction open at all times

A SAVEPOINT without a BEGIN is a separate transaction in SQLite, and its RELEASE is the commit;
sqlite3 in legacy mode opens none before it (W2). Nothing in SQLite's interface tells the two apart
afterwards: `in_transaction` is True in both, and both refuse a BEGIN with the same error. With
these bare drivers the rest of the event's savepoint shares its commit; use BEGIN, or
`outbox.transaction(conn)`. SQLAlchemy knows of its savepoints, and its adapter refuses them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from postroom.errors import AutocommitError, TransactionError
from postroom.transactions.driver import SqliteDriver, Values
from postroom.transactions.errors import OPEN_ALREADY
from postroom.transactions.queries import Style
from postroom.transactions.statements import AsyncStatements, SyncStatements
from postroom.transactions.steps import Steps, run, run_async

if TYPE_CHECKING:
    import aiosqlite

T = TypeVar("T")

LEGACY = -1  # sqlite3.LEGACY_TRANSACTION_CONTROL, which is missing in Python 3.11
HAS_AUTOCOMMIT = hasattr(sqlite3.Connection, "autocommit")


def autocommit_of(connection: Any) -> int:
    """Return True, False, or LEGACY. Only for the thread that uses the connection."""
    return getattr(connection, "autocommit", LEGACY)


def refuse_autocommit(in_transaction: bool, isolation_level: str | None, autocommit: int) -> None:
    """Raise AutocommitError if an INSERT in this mode would be autocommitted."""
    if in_transaction or autocommit is False:
        return
    if autocommit is True:
        mode, instead = "autocommit=True", "autocommit=False"
    elif isolation_level is None:
        mode, instead = "isolation_level=None", "the default isolation_level"
    else:
        return
    raise AutocommitError(
        f"this SQLite connection is in autocommit mode ({mode}) and no transaction is open: the "
        "event would be committed separately from your data. Run BEGIN first, or use "
        f"`with outbox.transaction(conn):`, or connect with {instead}"
    )


class Sqlite3Driver(SqliteDriver):
    """One sqlite3.Connection of the caller."""

    dialect = "sqlite"
    style: Style = "qmark"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.target = self.connection = connection

    def is_open(self) -> bool:
        return self.connection.in_transaction

    def check(self) -> None:
        conn = self.connection
        refuse_autocommit(conn.in_transaction, conn.isolation_level, autocommit_of(conn))

    guard = check

    def change(self, sql: str, values: Values = ()) -> int:
        cursor = self.connection.cursor()
        try:
            return cursor.execute(sql, values).rowcount
        finally:
            cursor.close()

    def change_many(self, sql: str, values: Sequence[Values]) -> int:
        cursor = self.connection.cursor()
        try:
            return cursor.executemany(sql, values).rowcount
        finally:
            cursor.close()

    def fetch(self, sql: str, values: Values = ()) -> list[Any]:
        cursor = self.connection.cursor()
        try:
            cursor.row_factory = None  # the caller's row factory may return anything
            return cursor.execute(sql, values).fetchall()
        finally:
            cursor.close()

    def autocommit(self) -> int:
        return autocommit_of(self.connection)

    def run(self, sql: str) -> Any:
        self.connection.execute(sql).close()


class AiosqliteDriver(SqliteDriver):
    """One aiosqlite.Connection of the caller.

    Every statement is one hop to its thread. The public API would need three: one to execute, one
    to fetch, one to close the cursor.
    """

    dialect = "sqlite"
    style: Style = "qmark"

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self.target = self.connection = connection

    def is_open(self) -> bool:
        return self.connection.in_transaction

    def check(self) -> None:
        conn = self.connection
        refuse_autocommit(conn.in_transaction, conn.isolation_level, LEGACY)

    async def guard(self) -> None:
        conn = self.connection
        autocommit = LEGACY if conn.in_transaction else (await self.autocommit())
        refuse_autocommit(conn.in_transaction, conn.isolation_level, autocommit)

    async def change(self, sql: str, values: Values = ()) -> int:
        return await in_its_thread(self.connection, Sqlite3Driver.change, sql, values)

    async def change_many(self, sql: str, values: Sequence[Values]) -> int:
        return await in_its_thread(self.connection, Sqlite3Driver.change_many, sql, values)

    async def fetch(self, sql: str, values: Values = ()) -> list[Any]:
        return await in_its_thread(self.connection, Sqlite3Driver.fetch, sql, values)

    async def autocommit(self) -> int:
        return await aiosqlite_autocommit(self.connection)

    async def run(self, sql: str) -> None:
        await in_its_thread(self.connection, Sqlite3Driver.run, sql)


async def aiosqlite_autocommit(connection: aiosqlite.Connection) -> int:
    """Return True, False, or LEGACY. sqlite3 checks the thread when `autocommit` is read."""
    if not HAS_AUTOCOMMIT:
        return LEGACY
    return await in_its_thread(connection, Sqlite3Driver.autocommit)


async def in_its_thread(
    connection: aiosqlite.Connection, call: Callable[..., T], *values: Any
) -> T:
    """Use a connection's inner one in its thread, where aiosqlite has no public way to."""
    inner = Sqlite3Driver(connection._conn)  # noqa: SLF001 - aiosqlite has no public way
    run: Callable[..., Awaitable[T]] = connection._execute  # noqa: SLF001 - aiosqlite's
    return await run(call, inner, *values)


# -- outbox.transaction(conn): the caller's transaction, opened and ended --------------------------


def _begin(driver: Sqlite3Driver | AiosqliteDriver) -> Steps[bool]:
    """Open a transaction; returns whether the driver always keeps one open."""
    if (yield driver.autocommit()) is False:
        return True
    if driver.connection.in_transaction:
        raise TransactionError(OPEN_ALREADY)
    # IMMEDIATE: waits for the write lock here, where giving up loses nothing.
    try:
        yield driver.run("BEGIN IMMEDIATE")
    except BaseException:
        # A cancelled BEGIN may still take effect in aiosqlite's thread, and would never be ended.
        with suppress(sqlite3.Error):
            yield driver.run("ROLLBACK")
        raise
    return False


def _commit(driver: Sqlite3Driver | AiosqliteDriver, kept_open: bool) -> Steps[None]:
    if not kept_open and not driver.connection.in_transaction:
        raise TransactionError(
            "the transaction ended before its block did: let outbox.transaction() commit or roll "
            "back. SQLite also rolls back after some errors, such as a full disk"
        )
    try:
        # commit() does nothing under autocommit=True, and COMMIT confuses autocommit=False.
        yield driver.connection.commit() if kept_open else driver.run("COMMIT")
    except BaseException:
        yield from _rollback(driver, kept_open)
        raise


def _rollback(driver: Sqlite3Driver | AiosqliteDriver, kept_open: bool) -> Steps[None]:
    if kept_open:
        yield driver.connection.rollback()
    elif driver.connection.in_transaction:
        try:
            yield driver.run("ROLLBACK")
        except sqlite3.Error:
            if driver.connection.in_transaction:
                raise


class Sqlite3Transaction(SyncStatements):
    """The caller's sqlite3.Connection."""

    def __init__(self, connection: sqlite3.Connection, prefix: str) -> None:
        self._sqlite = Sqlite3Driver(connection)
        super().__init__(self._sqlite, prefix)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Open a transaction, commit it at the end, roll it back on an error."""
        kept_open = run(_begin(self._sqlite))
        try:
            yield
        except BaseException:
            run(_rollback(self._sqlite, kept_open))
            raise
        run(_commit(self._sqlite, kept_open))


class AiosqliteTransaction(AsyncStatements):
    """The caller's aiosqlite.Connection."""

    def __init__(self, connection: aiosqlite.Connection, prefix: str) -> None:
        self._sqlite = AiosqliteDriver(connection)
        super().__init__(self._sqlite, prefix)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Open a transaction, commit it at the end, roll it back on an error."""
        kept_open = await run_async(_begin(self._sqlite))
        try:
            yield
        except BaseException:
            await run_async(_rollback(self._sqlite, kept_open))
            raise
        await run_async(_commit(self._sqlite, kept_open))
