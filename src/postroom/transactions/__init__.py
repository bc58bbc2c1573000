"""Finding the adapter for the object that a caller handed over, without importing any driver.

The classes of the object are compared by name with a table; only when one matches is the adapter's
module loaded, and by then the caller has loaded the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
)
from importlib import import_module
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from postroom.errors import TransactionError, UnsupportedConnectionError
from postroom.transaction import AsyncTransaction, Counter, Mark, Row, SyncTransaction
from postroom.transactions.sql import DEFAULT_PREFIX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_PORT = ("check", "insert", "count_up", "accept", "after_commit")


class _Adapter(NamedTuple):
    shown: str  # the name that users know it by
    module: str
    name: str
    is_async: bool = False


_SQLITE = "postroom.transactions.sqlite"
_SQLALCHEMY = "postroom.transactions.sqlalchemy"

_ADAPTERS = {
    "sqlite3.Connection": _Adapter("sqlite3.Connection", _SQLITE, "Sqlite3Transaction"),
    "aiosqlite.core.Connection": _Adapter(
        "aiosqlite.Connection", _SQLITE, "AiosqliteTransaction", is_async=True
    ),
    "sqlalchemy.engine.base.Connection": _Adapter(
        "sqlalchemy.Connection", _SQLALCHEMY, "ConnectionTransaction"
    ),
    "sqlalchemy.orm.session.Session": _Adapter(
        "sqlalchemy.orm.Session", _SQLALCHEMY, "SessionTransaction"
    ),
    "sqlalchemy.orm.scoping.scoped_session": _Adapter(
        "sqlalchemy.orm.scoped_session", _SQLALCHEMY, "SessionTransaction"
    ),
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": _Adapter(
        "sqlalchemy.ext.asyncio.AsyncConnection",
        _SQLALCHEMY,
        "AsyncConnectionTransaction",
        is_async=True,
    ),
    "sqlalchemy.ext.asyncio.session.AsyncSession": _Adapter(
        "sqlalchemy.ext.asyncio.AsyncSession",
        _SQLALCHEMY,
        "AsyncSessionTransaction",
        is_async=True,
    ),
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": _Adapter(
        "sqlalchemy.ext.asyncio.async_scoped_session",
        _SQLALCHEMY,
        "AsyncSessionTransaction",
        is_async=True,
    ),
}

_CURSOR = "Pass the cursor's connection instead"
_ENGINE = "Pass a connection or session that it opened, with your transaction in it"
_TRANSACTION = "Pass the connection or session itself, not its transaction"
_HINTS = {
    "sqlite3.Cursor": _CURSOR,
    "aiosqlite.cursor.Cursor": _CURSOR,
    "aiosqlite.context.Result": "Await it first: conn = await aiosqlite.connect(…)",
    "sqlalchemy.engine.base.Engine": _ENGINE,
    "sqlalchemy.ext.asyncio.engine.AsyncEngine": _ENGINE,
    "sqlalchemy.orm.session.sessionmaker": _ENGINE,
    "sqlalchemy.ext.asyncio.session.async_sessionmaker": _ENGINE,
    "sqlalchemy.engine.base.Transaction": _TRANSACTION,
    "sqlalchemy.orm.session.SessionTransaction": _TRANSACTION,
    "sqlalchemy.ext.asyncio.engine.AsyncTransaction": _TRANSACTION,
    "sqlalchemy.ext.asyncio.session.AsyncSessionTransaction": _TRANSACTION,
    "builtins.str": "postroom never opens a connection: pass the one that your transaction is on",
    "builtins.NoneType": "Pass the connection that your transaction is on",
}


def resolve(conn: Any, prefix: str = DEFAULT_PREFIX) -> AsyncTransaction:
    """Return the adapter for the caller's object, sync or async.

    Raises UnsupportedConnectionError, a TypeError that lists what is accepted.
    """
    adapter = _find(conn)
    if adapter is None:
        if not _is_port(conn):
            raise _unsupported(conn, sync=False)
        if iscoroutinefunction(conn.insert):
            return cast("AsyncTransaction", conn)
        return _Awaited(conn)
    made = _make(adapter, conn, prefix)
    return made if adapter.is_async else _Awaited(made)


def resolve_sync(conn: Any, prefix: str = DEFAULT_PREFIX) -> SyncTransaction:
    """Return the adapter for the caller's object; async objects are refused."""
    adapter = _find(conn)
    if adapter is None:
        if not _is_port(conn) or iscoroutinefunction(conn.insert):
            raise _unsupported(conn, sync=True)
        return cast("SyncTransaction", conn)
    if adapter.is_async:
        raise _unsupported(conn, sync=True)
    return cast("SyncTransaction", _make(adapter, conn, prefix))


def open_transaction(
    transaction: AsyncTransaction,
) -> AbstractAsyncContextManager[None]:
    """Open a transaction on the caller's object: committed at the end, rolled back on an error."""
    return cast("AbstractAsyncContextManager[None]", _opener(transaction)())


def open_transaction_sync(transaction: SyncTransaction) -> AbstractContextManager[None]:
    """Open a transaction on the caller's object: committed at the end, rolled back on an error."""
    return cast("AbstractContextManager[None]", _opener(transaction)())


def _opener(transaction: object) -> Callable[[], Any]:
    found = getattr(transaction, "open", None)
    if found is None:
        raise TransactionError(
            f"{type(transaction).__qualname__} is a transaction already: add to it directly"
        )
    return cast("Callable[[], Any]", found)


def _names(conn: object) -> list[str]:
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in type(conn).__mro__]


def _find(conn: object) -> _Adapter | None:
    return next((_ADAPTERS[name] for name in _names(conn) if name in _ADAPTERS), None)


def _make(adapter: _Adapter, conn: object, prefix: str) -> Any:
    return getattr(import_module(adapter.module), adapter.name)(conn, prefix)


def _is_port(conn: object) -> bool:
    return not isinstance(conn, type) and all(callable(getattr(conn, n, None)) for n in _PORT)


def _unsupported(conn: object, *, sync: bool) -> UnsupportedConnectionError:
    accepted = [a.shown for a in _ADAPTERS.values() if not (sync and a.is_async)]
    hint = next((_HINTS[name] for name in _names(conn) if name in _HINTS), "")
    found = _find(conn)
    if sync and (_is_port(conn) or (found is not None and found.is_async)):
        hint = "This object is asynchronous: use Outbox or Inbox and await them"
    return UnsupportedConnectionError(conn, accepted, hint)


class _Awaited:
    """A transaction for callers without a loop, seen as one that is awaited."""

    def __init__(self, inner: SyncTransaction) -> None:
        self._inner = inner
        self.check = inner.check
        self.after_commit = inner.after_commit
        if hasattr(inner, "open"):
            self.open = self._open

    async def insert(self, rows: Sequence[Row]) -> int:
        return cast("int", await _result(self._inner.insert(rows)))

    async def count_up(self, counters: Sequence[Counter]) -> list[int]:
        return cast("list[int]", await _result(self._inner.count_up(counters)))

    async def accept(self, mark: Mark) -> bool:
        return cast("bool", await _result(self._inner.accept(mark)))

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        with open_transaction_sync(self._inner):
            yield


async def _result(value: Any) -> Any:
    return (await value) if isawaitable(value) else value
