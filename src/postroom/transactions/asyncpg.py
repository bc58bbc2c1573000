"""The adapter for asyncpg: its connections, and those of its pool.

asyncpg commits each statement separately unless a transaction was begun (W1).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from postroom.errors import AutocommitError, TransactionError
from postroom.transactions.client_encoding import refuse_encoding
from postroom.transactions.driver import Driver, Values
from postroom.transactions.errors import FAILED, OPEN_ALREADY, code_of
from postroom.transactions.queries import Style
from postroom.transactions.statements import AsyncStatements

_FAILED_TRANSACTION = "25P02"


class AsyncpgDriver(Driver):
    """One asyncpg connection of the caller."""

    dialect = "postgresql"
    style: Style = "numeric"

    def is_open(self) -> bool:
        return bool(self.target.is_in_transaction())

    def check(self) -> None:
        refuse_encoding(self.target)
        if not self.target.is_in_transaction():
            raise AutocommitError(
                "asyncpg is in autocommit mode and no transaction is open: the event would be "
                "committed separately from your data. Use `async with conn.transaction():` "
                "(or BEGIN), or `async with outbox.transaction(conn):`"
            )

    guard = check

    async def change(self, sql: str, values: Values = ()) -> int:
        # The command tag, as in `INSERT 0 1`; that of SAVEPOINT has no number.
        count = (await self.target.execute(sql, *values)).rpartition(" ")[2]
        return int(count) if count.isdecimal() else 0

    async def fetch(self, sql: str, values: Values = ()) -> list[Any]:
        return await self.target.fetch(sql, *values)  # type: ignore[no-any-return]


class AsyncpgTransaction(AsyncStatements):
    """The caller's asyncpg connection."""

    def __init__(self, connection: Any, prefix: str) -> None:
        super().__init__(AsyncpgDriver(connection), prefix)
        self._connection = connection

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Open a transaction, commit it at the end, roll it back on an error."""
        if self._connection.is_in_transaction():
            raise TransactionError(OPEN_ALREADY)
        async with self._connection.transaction():
            yield
            await _refuse_failed(self._connection)


async def _refuse_failed(connection: Any) -> None:
    # PostgreSQL answers the COMMIT of a failed transaction with a rollback, which asyncpg does not
    # report; nor does it report that a transaction has failed. Any statement does.
    try:
        await connection.execute("SELECT 1")
    except Exception as error:
        if code_of(error) != _FAILED_TRANSACTION:
            raise
        raise TransactionError(FAILED) from error
