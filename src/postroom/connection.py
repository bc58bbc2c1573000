"""What `add` and `accept` take, for type checkers: the connections of many drivers, by their shape.

The classes of the drivers are not named here. Where a driver is not installed its class would be
unknown to the type checker, and a union with it would accept everything. A shape is known to all:
a cursor, an engine, a pool, a URL or None is refused on every machine.

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
    """The sync ones, aiosqlite, psycopg's AsyncConnection and asyncmy."""

    @property
    def cursor(self) -> Callable[..., Any]: ...


class _AnySession(_AnyEnds, Protocol):
    """The sync ones, SQLAlchemy's AsyncConnection, AsyncSession and async_scoped_session."""

    @property
    def execute(self) -> Callable[..., Any]: ...


class _AnyMongoSession(Protocol):
    """pymongo's ClientSession and AsyncClientSession."""

    @property
    def commit_transaction(self) -> Callable[[], Any]: ...
    @property
    def abort_transaction(self) -> Callable[[], Any]: ...


class _Asyncpg(Protocol):
    """asyncpg's Connection, also one of a pool."""

    @property
    def is_in_transaction(self) -> Callable[[], bool]: ...
    @property
    def fetchrow(self) -> Callable[..., Any]: ...


SyncConnection = _SyncDriver | _SyncSession | _SyncMongoSession | SyncTransaction
"""What SyncOutbox and SyncInbox take."""

Connection = (
    _AnyDriver | _AnySession | _AnyMongoSession | _Asyncpg | AsyncTransaction | SyncTransaction
)
"""What Outbox and Inbox take. A sync connection is accepted too; its calls block the event loop."""
