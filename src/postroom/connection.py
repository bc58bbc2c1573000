"""Types of the connections that `add` and `accept` take, as structural Protocols.

The drivers' classes are not named: without the driver installed, a type checker treats its class as
Any, and a union with Any accepts everything. Protocols work without the drivers: a cursor, an
engine, a pool, a URL or None is refused on every machine.

At run time the adapter is found by the object's class; see `postroom.transactions`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from postroom.transaction import AsyncTransaction, SyncTransaction


class _SyncEnds(Protocol):
    @property
    def commit(self) -> Callable[[], None]: ...
    @property
    def rollback(self) -> Callable[[], None]: ...


class _AnyEnds(Protocol):
    @property
    def commit(self) -> Callable[[], Any]: ...
    @property
    def rollback(self) -> Callable[[], Any]: ...


class _SyncDriver(_SyncEnds, Protocol):
    """sqlite3, psycopg, PyMySQL, mysqlclient, Django."""

    @property
    def cursor(self) -> Callable[..., Any]: ...


class _SyncSession(_SyncEnds, Protocol):
    """SQLAlchemy's Connection, Session and scoped_session."""

    @property
    def execute(self) -> Callable[..., Any]: ...


class _SyncMongoSession(Protocol):
    """pymongo's ClientSession."""

    @property
    def commit_transaction(self) -> Callable[[], None]: ...
    @property
    def abort_transaction(self) -> Callable[[], None]: ...


class _AnyDriver(_AnyEnds, Protocol):
    """The sync drivers, aiosqlite, psycopg's AsyncConnection and asyncmy."""

    @property
    def cursor(self) -> Callable[..., Any]: ...


class _AnySession(_AnyEnds, Protocol):
    """The sync sessions, SQLAlchemy's AsyncConnection, AsyncSession, async_scoped_session."""

    @property
    def execute(self) -> Callable[..., Any]: ...


class _AnyMongoSession(Protocol):
    """pymongo's ClientSession and AsyncClientSession."""

    @property
    def commit_transaction(self) -> Callable[[], Any]: ...
    @property
    def abort_transaction(self) -> Callable[[], Any]: ...


class _Asyncpg(Protocol):
    """asyncpg's Connection, including pooled ones."""

    @property
    def is_in_transaction(self) -> Callable[[], bool]: ...
    @property
    def fetchrow(self) -> Callable[..., Any]: ...


SyncConnection = _SyncDriver | _SyncSession | _SyncMongoSession | SyncTransaction
"""The connections of SyncOutbox and SyncInbox."""

Connection = (
    _AnyDriver | _AnySession | _AnyMongoSession | _Asyncpg | AsyncTransaction | SyncTransaction
)
"""The connections of Outbox and Inbox. Sync connections work too, but block the event loop."""
