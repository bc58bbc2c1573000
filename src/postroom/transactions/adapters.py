"""Finds the adapter for the caller's object, without importing any driver.

The object's classes are compared by name with a table; the adapter's module is loaded only when one
matches, and by then the caller has loaded the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import (
    asynccontextmanager,
)
from importlib import import_module
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from postroom.errors import UnsupportedConnectionError
from postroom.transaction import (
    Acceptance,
    AsyncTransaction,
    Counter,
    Proof,
    Row,
    Standing,
    SyncTransaction,
)
from postroom.transactions.queries import DEFAULT_PREFIX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_PORT = (
    "check",
    "insert",
    "count_up",
    "cancel",
    "reschedule",
    "accept",
    "count_done",
    "done_before",
    "forget",
    "hold",
    "is_open",
    "standing",
    "after_commit",
    "stored",
    "open",
)


class _Adapter(NamedTuple):
    shown: str  # its public name
    module: str
    name: str
    is_async: bool = False

    def load(self) -> Callable[[Any, str], Any]:
        module = import_module(f"postroom.transactions.{self.module}")
        return cast("Callable[[Any, str], Any]", getattr(module, self.name))


_ADAPTERS = {
    "sqlite3.Connection": _Adapter("sqlite3.Connection", "sqlite", "Sqlite3Transaction"),
    "aiosqlite.core.Connection": _Adapter(
        "aiosqlite.Connection", "sqlite", "AiosqliteTransaction", is_async=True
    ),
    "psycopg.Connection": _Adapter("psycopg.Connection", "psycopg", "PsycopgTransaction"),
    "psycopg.AsyncConnection": _Adapter(
        "psycopg.AsyncConnection", "psycopg", "AsyncPsycopgTransaction", is_async=True
    ),
    "asyncpg.connection.Connection": _Adapter(
        "asyncpg.Connection", "asyncpg", "AsyncpgTransaction", is_async=True
    ),
    "asyncpg.pool.PoolConnectionProxy": _Adapter(
        "asyncpg.pool.PoolConnectionProxy", "asyncpg", "AsyncpgTransaction", is_async=True
    ),
    "pymysql.connections.Connection": _Adapter("pymysql.Connection", "mysql", "PymysqlTransaction"),
    "MySQLdb.connections.Connection": _Adapter(
        "MySQLdb.Connection", "mysql", "MysqlclientTransaction"
    ),
    "asyncmy.connection.Connection": _Adapter(
        "asyncmy.Connection", "mysql", "AsyncmyTransaction", is_async=True
    ),
    "sqlalchemy.engine.base.Connection": _Adapter(
        "sqlalchemy.Connection", "sqlalchemy", "ConnectionTransaction"
    ),
    "sqlalchemy.orm.session.Session": _Adapter(
        "sqlalchemy.orm.Session", "sqlalchemy", "SessionTransaction"
    ),
    "sqlalchemy.orm.scoping.scoped_session": _Adapter(
        "sqlalchemy.orm.scoped_session", "sqlalchemy", "SessionTransaction"
    ),
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": _Adapter(
        "sqlalchemy.ext.asyncio.AsyncConnection",
        "sqlalchemy",
        "AsyncConnectionTransaction",
        is_async=True,
    ),
    "sqlalchemy.ext.asyncio.session.AsyncSession": _Adapter(
        "sqlalchemy.ext.asyncio.AsyncSession",
        "sqlalchemy",
        "AsyncSessionTransaction",
        is_async=True,
    ),
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": _Adapter(
        "sqlalchemy.ext.asyncio.async_scoped_session",
        "sqlalchemy",
        "AsyncSessionTransaction",
        is_async=True,
    ),
    "pymongo.synchronous.client_session.ClientSession": _Adapter(
        "pymongo.client_session.ClientSession", "mongo.sessions", "SessionTransaction"
    ),
    "pymongo.asynchronous.client_session.AsyncClientSession": _Adapter(
        "pymongo.asynchronous.client_session.AsyncClientSession",
        "mongo.sessions",
        "AsyncSessionTransaction",
        is_async=True,
    ),
    "django.utils.connection.ConnectionProxy": _Adapter(
        "django.db.connection", "django", "DjangoTransaction"
    ),
    "django.db.backends.base.base.BaseDatabaseWrapper": _Adapter(
        "django.db.connections[alias]", "django", "DjangoTransaction"
    ),
}

_CURSOR = "Pass the cursor's connection instead"
_ENGINE = "Pass a connection or session that it opened, with your transaction on it"
_POOL = "Pass a connection from it, with your transaction on it"
_TRANSACTION = "Pass the connection or session itself, not its transaction"
_DJANGO = "Pass django.db.connection, or connections[alias], inside of transaction.atomic()"
_SESSION = "Pass a session of its client, with your transaction on it"
_HINTS = {
    "sqlite3.Cursor": _CURSOR,
    "aiosqlite.cursor.Cursor": _CURSOR,
    "aiosqlite.context.Result": "Await it first: conn = await aiosqlite.connect(…)",
    "psycopg.Cursor": _CURSOR,
    "psycopg.AsyncCursor": _CURSOR,
    "psycopg.Transaction": _TRANSACTION,
    "psycopg.AsyncTransaction": _TRANSACTION,
    "psycopg_pool.ConnectionPool": _POOL,
    "psycopg_pool.AsyncConnectionPool": _POOL,
    "psycopg2.extensions.connection": "psycopg2 is not supported; use psycopg 3 or SQLAlchemy",
    "asyncpg.pool.Pool": _POOL,
    "asyncpg.transaction.Transaction": _TRANSACTION,
    "pymysql.cursors.Cursor": _CURSOR,
    "MySQLdb.cursors.BaseCursor": _CURSOR,
    "asyncmy.cursors.Cursor": _CURSOR,
    "asyncmy.pool.Pool": _POOL,
    "aiomysql.connection.Connection": "aiomysql is not supported; asyncmy has the same interface",
    "sqlalchemy.engine.base.Engine": _ENGINE,
    "sqlalchemy.ext.asyncio.engine.AsyncEngine": _ENGINE,
    "sqlalchemy.orm.session.sessionmaker": _ENGINE,
    "sqlalchemy.ext.asyncio.session.async_sessionmaker": _ENGINE,
    "sqlalchemy.engine.base.Transaction": _TRANSACTION,
    "sqlalchemy.orm.session.SessionTransaction": _TRANSACTION,
    "sqlalchemy.ext.asyncio.engine.AsyncTransaction": _TRANSACTION,
    "sqlalchemy.ext.asyncio.session.AsyncSessionTransaction": _TRANSACTION,
    "django.db.models.manager.BaseManager": _DJANGO,
    "django.db.models.query.QuerySet": _DJANGO,
    "django.db.models.base.Model": _DJANGO,
    "django.db.transaction.Atomic": _DJANGO,
    "django.db.utils.ConnectionHandler": _DJANGO,
    "django.db.backends.utils.CursorWrapper": _DJANGO,
    "pymongo.synchronous.mongo_client.MongoClient": _SESSION,
    "pymongo.asynchronous.mongo_client.AsyncMongoClient": _SESSION,
    "pymongo.synchronous.database.Database": _SESSION,
    "pymongo.asynchronous.database.AsyncDatabase": _SESSION,
    "unittest.mock.NonCallableMock": (
        "A mock stores nothing. In a test use a real connection, such as sqlite3.connect(path), or "
        "the transaction of a MemoryStore"
    ),
    "builtins.str": "postroom never opens a connection: pass the one your transaction runs on",
    "builtins.NoneType": "Pass the connection your transaction runs on",
}
_known: dict[type, tuple[Callable[[Any, str], Any], bool]] = {}  # classes that resolve has seen


def resolve(conn: Any, prefix: str = DEFAULT_PREFIX) -> AsyncTransaction:
    """Return the adapter for the caller's object, sync or async.

    Raises UnsupportedConnectionError, a TypeError that lists the supported objects.
    """
    known = _known.get(type(conn)) or _learn(conn)
    if known is None:
        if not _is_port(conn):
            raise _unsupported(conn, sync=False)
        if iscoroutinefunction(conn.insert):
            return cast("AsyncTransaction", conn)
        return _Awaited(conn)
    make, is_async = known
    made = make(conn, prefix)
    return cast("AsyncTransaction", made) if is_async else _Awaited(made)


def resolve_sync(conn: Any, prefix: str = DEFAULT_PREFIX) -> SyncTransaction:
    """Return the adapter for the caller's object; async objects are refused."""
    known = _known.get(type(conn)) or _learn(conn)
    if known is None:
        if not _is_port(conn) or iscoroutinefunction(conn.insert):
            raise _unsupported(conn, sync=True)
        return cast("SyncTransaction", conn)
    make, is_async = known
    if is_async:
        raise _unsupported(conn, sync=True)
    return cast("SyncTransaction", make(conn, prefix))


def _names(conn: object) -> list[str]:
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in type(conn).__mro__]


def _find(conn: object) -> _Adapter | None:
    return next((_ADAPTERS[name] for name in _names(conn) if name in _ADAPTERS), None)


def _learn(conn: object) -> tuple[Callable[[Any, str], Any], bool] | None:
    adapter = _find(conn)
    if adapter is None:
        return None
    known = _known[type(conn)] = (adapter.load(), adapter.is_async)
    return known


def _is_port(conn: object) -> bool:
    if isinstance(conn, type) or any(name in _HINTS for name in _names(conn)):
        return False
    return all(_defines(conn, name) for name in _PORT)


def _defines(conn: object, name: str) -> bool:
    """Return whether the object really has this method.

    A mock, a pymongo Database or a proxy answers `getattr` for every name: only attributes of the
    class and of the instance's dictionary count.
    """
    own = getattr(type(conn), name, None) or getattr(conn, "__dict__", {}).get(name)
    return callable(own)


def _unsupported(conn: object, *, sync: bool) -> UnsupportedConnectionError:
    accepted = [a.shown for a in _ADAPTERS.values() if not (sync and a.is_async)]
    hint = next((_HINTS[name] for name in _names(conn) if name in _HINTS), "")
    found = _find(conn)
    if sync and (_is_port(conn) or (found is not None and found.is_async)):
        hint = "This object is asynchronous: use Outbox or Inbox and await them"
    return UnsupportedConnectionError(conn, accepted, hint)


class _Awaited:
    """A blocking transaction in the form of an async one."""

    def __init__(self, inner: SyncTransaction) -> None:
        self._inner = inner
        self.check = inner.check
        self.after_commit = inner.after_commit

    @property
    def target(self) -> Any:
        return self._inner.target

    async def insert(self, rows: Sequence[Row], *, whole: bool = False) -> int:
        return cast("int", await _result(self._inner.insert(rows, whole=whole)))

    async def count_up(self, counters: Sequence[Counter]) -> list[int]:
        return cast("list[int]", await _result(self._inner.count_up(counters)))

    async def cancel(self, event_id: str) -> str | None:
        return cast("str | None", await _result(self._inner.cancel(event_id)))

    async def reschedule(self, event_id: str, at_us: int) -> str | None:
        return cast("str | None", await _result(self._inner.reschedule(event_id, at_us)))

    async def accept(self, acceptance: Acceptance) -> bool:
        return cast("bool", await _result(self._inner.accept(acceptance)))

    async def count_done(self, acceptances: Sequence[Acceptance]) -> int:
        return cast("int", await _result(self._inner.count_done(acceptances)))

    async def done_before(self, consumer: str, seconds: float, limit: int, skip: int) -> list[str]:
        found = self._inner.done_before(consumer, seconds, limit, skip)
        return cast("list[str]", await _result(found))

    async def forget(self, consumer: str, ids: Sequence[str]) -> int:
        return cast("int", await _result(self._inner.forget(consumer, ids)))

    async def hold(self, earlier: Sequence[Proof]) -> bool:
        return cast("bool", await _result(self._inner.hold(earlier)))

    async def is_open(self) -> bool:
        return cast("bool", await _result(self._inner.is_open()))

    async def standing(self, proofs: Sequence[Proof]) -> Standing:
        return cast("Standing", await _result(self._inner.standing(proofs)))

    async def stored(self, ids: Sequence[str]) -> set[str] | None:
        return cast("set[str] | None", await _result(self._inner.stored(ids)))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        with self._inner.open():
            yield


async def _result(value: Any) -> Any:
    return (await value) if isawaitable(value) else value
