"""Adapters for SQLAlchemy: Connection and Session, and their asyncio twins over the same code.

Facts, tried on SQLAlchemy 2.0.57 and 2.1.8 with pysqlite and aiosqlite, Python 3.11 to 3.13:

- Under AUTOCOMMIT `in_transaction()` is True and COMMIT has no effect: the driver is asked (W1).
- `begin_nested()` as the first thing in a transaction sends SAVEPOINT without BEGIN, because
  sqlite3 in its legacy mode (still the default of both SQLAlchemy versions) opens a transaction
  for INSERT only. RELEASE then commits, and a rollback of the outer transaction takes nothing back
  (W2). With an INSERT before the savepoint it works, but neither SQLAlchemy nor SQLite can tell
  the two apart afterwards. A savepoint is therefore accepted where a BEGIN is certain: with
  autocommit=False, or with a listener for the engine's "begin" event, which is SQLAlchemy's own
  recipe for SQLite.
- A session's after_commit also fires when a savepoint is released (W3).
- A Connection has an event before its commit but none after it: such callers kick explicitly.
- Statements go to the driver unchanged (exec_driver_sql): compiling twenty named parameters costs
  more than the rest of an add.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection, CursorResult, event, orm
from sqlalchemy.orm import Session, scoped_session

from postroom.errors import AutocommitError, TransactionError
from postroom.transaction import Acceptance, Counter, Proof, Row, Standing
from postroom.transactions.client_encoding import refuse_encoding
from postroom.transactions.driver import MysqlDriver, SqliteDriver, Values
from postroom.transactions.mysql import refuse_charset
from postroom.transactions.queries import Style
from postroom.transactions.sqlite import (
    HAS_AUTOCOMMIT,
    LEGACY,
    aiosqlite_autocommit,
    autocommit_of,
    refuse_autocommit,
)
from postroom.transactions.statements import SyncStatements

if TYPE_CHECKING:  # SQLAlchemy's asyncio part needs greenlet, which sync callers may not have
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

_HOOK = "postroom.after_commit"
_DIALECTS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
}
_STYLES: dict[str, Style] = {
    "pysqlite": "qmark",
    "aiosqlite": "qmark",
    "psycopg": "format",
    "psycopg_async": "format",
    "asyncpg": "numeric",
    "pymysql": "format",
    "mysqldb": "format",
    "asyncmy": "format",
}


class ConnectionDriver(SqliteDriver, MysqlDriver):
    """One Connection of the caller."""

    target: Connection | Session

    def is_open(self) -> bool:
        return self.target.in_transaction()

    @property
    def connection(self) -> Connection:
        assert isinstance(self.target, Connection)
        return self.target

    @property
    def dialect(self) -> str:
        found = self.connection.dialect
        if found.name not in _DIALECTS or found.driver not in _STYLES:
            raise TransactionError(
                f"SQLAlchemy's dialect '{found.name}+{found.driver}' is not supported; "
                f"supported are {', '.join(_DIALECTS)} with the drivers {', '.join(_STYLES)}"
            )
        return _DIALECTS[found.name]

    @property
    def style(self) -> Style:
        return _STYLES[self.connection.dialect.driver]

    @property
    def session(self) -> Any:
        return self.connection.connection.driver_connection

    def check(self) -> None:
        connection, dialect = self.connection, self.dialect
        if dialect == "sqlite":
            _check_sqlite(connection)
            return
        driver: Any = connection.connection.dbapi_connection
        if driver.autocommit if dialect == "postgresql" else driver.get_autocommit():
            raise _autocommit()
        if dialect == "mysql":
            refuse_charset(driver.character_set_name())
        else:
            refuse_encoding(self.session)

    guard = check

    def _execute(self, sql: str, values: Any) -> CursorResult[Any]:
        return self.connection.exec_driver_sql(
            sql, values or None, execution_options={"preserve_rowcount": True}
        )

    def change(self, sql: str, values: Values = ()) -> int:
        return self._execute(sql, values).rowcount

    def change_many(self, sql: str, values: Sequence[Values]) -> int:
        return self._execute(sql, values).rowcount

    def fetch(self, sql: str, values: Values = ()) -> Sequence[Any]:
        return self._execute(sql, values).fetchall()


class SessionDriver(ConnectionDriver):
    """One Session of the caller."""

    flushes = True

    @property
    def connection(self) -> Connection:
        assert isinstance(self.target, Session)
        _refuse_several_binds(self.target)
        return self.target.connection()

    def flush(self) -> None:
        # So that the aggregate's row is locked before the event gets its number (W3). Inside a
        # flush (an add from a mapper's event) the session does that already.
        assert isinstance(self.target, Session)
        if not getattr(self.target, "_flushing", False):
            self.target.flush()


def _autocommit() -> AutocommitError:
    return AutocommitError(
        "this SQLAlchemy connection is in autocommit mode, where begin() sends no BEGIN: the event "
        "would be committed separately from your data. Use a connection or session without "
        'isolation_level="AUTOCOMMIT"'
    )


def _check_sqlite(connection: Connection) -> None:
    if not connection.in_transaction():
        connection.begin()  # like the INSERT: a listener has had its chance to send BEGIN
    driver = connection.connection.driver_connection
    assert driver is not None
    nested = connection.in_nested_transaction()
    autocommit = LEGACY
    if HAS_AUTOCOMMIT and (nested or not driver.in_transaction):
        adapted = connection.connection.dbapi_connection
        if connection.dialect.is_async:
            autocommit = adapted.run_async(aiosqlite_autocommit)  # type: ignore[union-attr]
        else:
            autocommit = autocommit_of(driver)
    refuse_autocommit(driver.in_transaction, driver.isolation_level, autocommit)
    if nested and autocommit is not False and not connection.dispatch.begin:
        raise AutocommitError(
            "this event would be written inside a SAVEPOINT that may have no BEGIN around it: "
            "sqlite3 opens no transaction for begin_nested(), and releasing the savepoint would "
            "commit the event separately. Add the event outside of begin_nested(), or create the "
            'engine with connect_args={"autocommit": False} (Python 3.12), or let SQLAlchemy send '
            'BEGIN: event.listen(engine, "begin", lambda c: c.exec_driver_sql("BEGIN"))'
        )


def _refuse_several_binds(session: Session) -> None:
    """Refuse to guess which database gets the event (W3)."""
    # SQLAlchemy 2.1 has `binds`; in 2.0 they are private.
    given = getattr(session, "binds", None) or getattr(session, "_Session__binds", {})
    binds = {bind.engine for bind in given.values()}
    if session.bind is not None:
        binds.add(session.bind.engine)
    if len(binds) > 1:
        raise TransactionError(
            f"this session has {len(binds)} binds, and the event must go where its data goes: "
            "flush, then pass that connection, as in "
            "outbox.add(session.connection(bind_arguments={'mapper': Order}), event)"
        )


def _hook(session: Session) -> _CommitHook:
    found = session.info.get(_HOOK)
    if found is None:
        found = session.info[_HOOK] = _CommitHook(session)
    return cast("_CommitHook", found)


class _CommitHook:
    """Runs the callbacks of a session's open transaction, once, after its outermost commit.

    The listeners stay on the session: SQLAlchemy cannot remove one while it is being called.
    """

    def __init__(self, session: Session) -> None:
        self._calls: dict[Callable[[], None], None] = {}
        self._connection: Connection | None = None
        self._committed = False
        event.listen(session, "after_commit", self._after_commit)
        event.listen(session, "after_transaction_end", self._after_end)

    def add(self, call: Callable[[], None], connection: Connection) -> None:
        self._calls[call] = None
        self._connection = connection

    def _after_commit(self, session: Session) -> None:
        self._committed = not session.in_nested_transaction()

    def _after_end(self, _session: Session, ended: orm.SessionTransaction) -> None:
        if ended.parent is not None:
            return
        connection, calls = self._connection, list(self._calls)
        committed, self._committed = self._committed, False
        self._connection = None
        self._calls.clear()
        # A session that joined a transaction of its connection has not committed anything yet.
        joined = connection is not None and not connection.closed and connection.in_transaction()
        if committed and not joined:
            for call in calls:
                call()


class ConnectionTransaction(SyncStatements):
    """The caller's Connection."""

    def __init__(self, connection: Connection, prefix: str) -> None:
        super().__init__(ConnectionDriver(connection), prefix)
        self._connection = connection

    @contextmanager
    def open(self) -> Iterator[None]:
        """Open a transaction, commit it at the end, roll it back on an error."""
        with self._connection.begin():
            yield


class SessionTransaction(SyncStatements):
    """The caller's Session, or the current one of a scoped_session."""

    def __init__(self, session: Session | scoped_session[Any], prefix: str) -> None:
        self._session: Session = session() if isinstance(session, scoped_session) else session
        super().__init__(SessionDriver(self._session), prefix)

    def after_commit(self, call: Callable[[], None]) -> bool:
        """Call back after the outermost commit of the session."""
        _hook(self._session).add(call, self._session.connection())
        return True

    @contextmanager
    def open(self) -> Iterator[None]:
        """Open a transaction, commit it at the end, roll it back on an error."""
        with self._session.begin():
            yield


class _Bridged:
    """An AsyncTransaction that runs the sync adapter where SQLAlchemy's own sync code runs."""

    def __init__(self, target: AsyncConnection | AsyncSession, prefix: str) -> None:
        self.target = self._target = target
        self._prefix = prefix
        self._inner: SyncStatements | None = None

    def _sync(self, inner: Any) -> SyncStatements:
        if self._inner is None:
            kind = SessionTransaction if isinstance(inner, Session) else ConnectionTransaction
            self._inner = kind(inner, self._prefix)
        return self._inner

    async def insert(self, rows: Sequence[Row], *, whole: bool = False) -> int:
        return await self._target.run_sync(
            lambda inner: self._sync(inner).insert(rows, whole=whole)
        )

    async def count_up(self, counters: Sequence[Counter]) -> list[int]:
        return await self._target.run_sync(lambda inner: self._sync(inner).count_up(counters))

    async def cancel(self, event_id: str) -> str | None:
        return await self._target.run_sync(lambda inner: self._sync(inner).cancel(event_id))

    async def reschedule(self, event_id: str, at_us: int) -> str | None:
        return await self._target.run_sync(
            lambda inner: self._sync(inner).reschedule(event_id, at_us)
        )

    async def accept(self, acceptance: Acceptance) -> bool:
        return await self._target.run_sync(lambda inner: self._sync(inner).accept(acceptance))

    async def count_done(self, acceptances: Sequence[Acceptance]) -> int:
        return await self._target.run_sync(lambda inner: self._sync(inner).count_done(acceptances))

    async def done_before(self, consumer: str, seconds: float, limit: int, skip: int) -> list[str]:
        return await self._target.run_sync(
            lambda inner: self._sync(inner).done_before(consumer, seconds, limit, skip)
        )

    async def forget(self, consumer: str, ids: Sequence[str]) -> int:
        return await self._target.run_sync(lambda inner: self._sync(inner).forget(consumer, ids))

    async def stored(self, ids: Sequence[str]) -> set[str] | None:
        return await self._target.run_sync(lambda inner: self._sync(inner).stored(ids))

    async def is_open(self) -> bool:
        return self._target.in_transaction()

    async def hold(self, earlier: Sequence[Proof]) -> bool:
        return await self._target.run_sync(lambda inner: self._sync(inner).hold(earlier))

    async def standing(self, proofs: Sequence[Proof]) -> Standing:
        return await self._target.run_sync(lambda inner: self._sync(inner).standing(proofs))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Open a transaction, commit it at the end, roll it back on an error."""
        async with self._target.begin():
            yield


class AsyncConnectionTransaction(_Bridged):
    """The caller's AsyncConnection."""

    def check(self) -> None:
        """Nothing is known before the driver is asked; every statement asks it first."""

    def after_commit(self, call: Callable[[], None]) -> bool:  # noqa: ARG002
        """Return that a connection has no such hook."""
        return False


class AsyncSessionTransaction(_Bridged):
    """The caller's AsyncSession, or the current one of an async_scoped_session."""

    def __init__(self, session: AsyncSession | async_scoped_session[Any], prefix: str) -> None:
        own: AsyncSession = cast("Any", session)() if hasattr(session, "registry") else session
        super().__init__(own, prefix)
        self._session: Session = own.sync_session

    def check(self) -> None:
        _refuse_several_binds(self._session)

    def after_commit(self, call: Callable[[], None]) -> bool:
        """Call back after the outermost commit of the session."""
        _hook(self._session).add(call, self._session.connection())
        return True
