"""Adapters for MySQL and MariaDB: PyMySQL, mysqlclient and asyncmy.

All three start in the mode where a transaction is always open (autocommit off); with autocommit on
an event needs the caller's own BEGIN (W1). PyMySQL and asyncmy know from the server's last reply
whether one is open; mysqlclient has to ask, and only MariaDB can answer.

After error 1213 (deadlock) the server has rolled back the whole transaction. Code that catches it
and goes on writes into a new one: start over instead (W4). `add` changes LAST_INSERT_ID().
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib import import_module
from typing import Any, ClassVar

from postroom.errors import AutocommitError, TransactionError
from postroom.transactions.driver import MysqlDriver, Values
from postroom.transactions.errors import OPEN_ALREADY, code_of
from postroom.transactions.queries import Style
from postroom.transactions.statements import AsyncStatements, SyncStatements

_IN_TRANSACTION = 1  # SERVER_STATUS_IN_TRANS of the protocol
_UNKNOWN_VARIABLE = 1193


def refuse_charset(charset: str | None) -> None:
    """Raise TransactionError if the driver does not send every text unchanged.

    `dialect_mysql` checks the server's side, once per session.
    """
    if charset != "utf8mb4":
        raise TransactionError(
            f"this connection's character set is {charset}, which cannot represent all of "
            "Unicode. Connect with charset='utf8mb4'"
        )


def autocommit_error() -> AutocommitError:
    return AutocommitError(
        "this MySQL connection is in autocommit mode and no transaction is open: the event would "
        "be committed separately from your data. Call conn.begin() (or BEGIN), or use "
        "`with outbox.transaction(conn):`, or connect with autocommit=False"
    )


class _Shared(MysqlDriver):
    """Common part of the drivers that know the server's state."""

    dialect = "mysql"
    style: Style = "format"

    @property
    def session(self) -> Any:
        return self.target

    def is_open(self) -> bool:
        return self.in_transaction()

    def in_transaction(self) -> bool:
        """Return the state in the server's last reply; an error reply contains none."""
        raise NotImplementedError

    def commits_by_itself(self) -> bool:
        return self.target.get_autocommit() and not self.in_transaction()

    def check(self) -> None:
        refuse_charset(self.target.character_set_name())
        if self.commits_by_itself():
            raise autocommit_error()

    def guard(self) -> Any:
        self.check()

    def refuse_lost(self) -> None:
        """Raise if the reply to postroom's own statement shows that it was autocommitted.

        The state known before may be that of a transaction which the server had ended: the reply to
        a deadlock does not contain it.
        """
        if self.commits_by_itself():
            raise TransactionError(
                "the event was committed separately: the server had already ended your "
                "transaction, as "
                "it does after a deadlock (error 1213). Let such an error leave the "
                "transaction's block, and start over"
            )

    def refuse_ended(self) -> None:
        """Raise if the transaction that outbox.transaction() opened has ended too early."""
        if self.commits_by_itself():
            raise TransactionError(
                "the transaction ended before its block did: let outbox.transaction() commit "
                "or roll back. The server also ends it after a deadlock (error 1213), "
                "and at CREATE, ALTER and other DDL"
            )


class PymysqlDriver(_Shared):
    """One PyMySQL connection of the caller."""

    cursors: ClassVar[str] = "pymysql.cursors"

    def in_transaction(self) -> bool:
        return bool(self.target.server_status & _IN_TRANSACTION)

    def _cursor(self) -> Any:
        # the caller's cursor class returns dicts
        return self.target.cursor(import_module(self.cursors).Cursor)

    def change(self, sql: str, values: Values = ()) -> int:
        with self._cursor() as cursor:
            cursor.execute(sql, values or None)
            self.refuse_lost()
            return cursor.rowcount  # type: ignore[no-any-return]

    def fetch(self, sql: str, values: Values = ()) -> Any:
        with self._cursor() as cursor:
            cursor.execute(sql, values or None)
            return cursor.fetchall()


class MysqlclientDriver(PymysqlDriver):
    """One mysqlclient connection of the caller, which does not know the server's state."""

    cursors: ClassVar[str] = "MySQLdb.cursors"
    asks = True

    def in_transaction(self) -> bool:
        """Ask the server; MySQL cannot answer."""
        try:
            return bool(self.fetch("SELECT @@in_transaction")[0][0])
        except Exception as error:
            if code_of(error) == _UNKNOWN_VARIABLE:
                return False
            raise

    def check(self) -> None:
        """Refuse the wrong character set; the rest is checked before the first write."""
        refuse_charset(self.target.character_set_name())

    def guard(self) -> None:
        super().check()

    def refuse_lost(self) -> None:
        pass  # one query per statement is enough


class AsyncmyDriver(_Shared):
    """One asyncmy connection of the caller."""

    asks = True  # it misses a reply that reports: no autocommit mode, and no transaction

    def in_transaction(self) -> bool:
        return bool(self.target.get_transaction_status())

    async def ask(self) -> bool:
        await self.target.ping(reconnect=False)
        return self.in_transaction()

    def _cursor(self) -> Any:
        return self.target.cursor(import_module("asyncmy.cursors").Cursor)

    async def change(self, sql: str, values: Values = ()) -> int:
        async with self._cursor() as cursor:
            await cursor.execute(sql, values or None)
            self.refuse_lost()
            return cursor.rowcount  # type: ignore[no-any-return]

    async def fetch(self, sql: str, values: Values = ()) -> Any:
        async with self._cursor() as cursor:
            await cursor.execute(sql, values or None)
            return await cursor.fetchall()


class PymysqlTransaction(SyncStatements):
    """The caller's PyMySQL connection."""

    def __init__(self, connection: Any, prefix: str) -> None:
        self._mysql = PymysqlDriver(connection)
        super().__init__(self._mysql, prefix)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Open a transaction, commit it at the end, roll it back on an error."""
        conn = self._mysql.target
        if self._mysql.in_transaction():  # BEGIN would commit it
            raise TransactionError(OPEN_ALREADY)
        conn.begin()
        try:
            yield
            self._mysql.refuse_ended()
            conn.commit()
        except BaseException:
            with suppress(Exception):  # a lost connection; the first error is raised
                conn.rollback()
            raise


class MysqlclientTransaction(SyncStatements):
    """The caller's mysqlclient connection."""

    def __init__(self, connection: Any, prefix: str) -> None:
        self._mysql = MysqlclientDriver(connection)
        super().__init__(self._mysql, prefix)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Open a transaction, commit it at the end, roll it back on an error.

        With autocommit off one is always open, and includes earlier writes.
        """
        conn = self._mysql.target
        autocommit = conn.get_autocommit()
        if autocommit:
            if self._mysql.in_transaction():
                raise TransactionError(OPEN_ALREADY)
            conn.autocommit(False)
        try:
            yield
            conn.commit()
        except BaseException:
            with suppress(Exception):
                conn.rollback()
            raise
        finally:
            if autocommit:
                with suppress(Exception):
                    conn.autocommit(True)


class AsyncmyTransaction(AsyncStatements):
    """The caller's asyncmy connection."""

    def __init__(self, connection: Any, prefix: str) -> None:
        self._mysql = AsyncmyDriver(connection)
        super().__init__(self._mysql, prefix)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Open a transaction, commit it at the end, roll it back on an error."""
        conn = self._mysql.target
        if self._mysql.in_transaction():
            raise TransactionError(OPEN_ALREADY)
        await conn.begin()
        try:
            yield
            self._mysql.refuse_ended()
            await conn.commit()
        except BaseException:
            with suppress(Exception):
                await conn.rollback()
            raise
