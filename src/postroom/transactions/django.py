"""The adapter for Django: `django.db.connection`, or `connections[alias]`, inside of `atomic`.

The alias in use counts: an `atomic` of another alias does not cover it (W3). After the outermost
commit Django calls `transaction.on_commit`, which kicks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from postroom.errors import AutocommitError, TransactionError, UnsupportedConnectionError
from postroom.transactions.client_encoding import refuse_encoding
from postroom.transactions.driver import MysqlDriver, SqliteDriver, Values
from postroom.transactions.mysql import refuse_charset
from postroom.transactions.queries import Style
from postroom.transactions.statements import SyncStatements

_DIALECTS = {"sqlite": "sqlite", "postgresql": "postgresql", "mysql": "mysql"}


class DjangoDriver(SqliteDriver, MysqlDriver):
    """One connection of Django, as its backends wrap it."""

    style: Style = "format"  # on every backend

    target: BaseDatabaseWrapper

    def is_open(self) -> bool:
        conn = self.target
        return conn.in_atomic_block or (conn.connection is not None and not conn.autocommit)

    @property
    def dialect(self) -> str:
        vendor = self.target.vendor
        if vendor not in _DIALECTS:
            raise TransactionError(
                f"Django's backend {vendor!r} is not supported; supported are "
                f"{', '.join(_DIALECTS)}"
            )
        return _DIALECTS[vendor]

    @property
    def session(self) -> Any:
        return self.target.connection

    def check(self) -> None:
        conn = self.target
        if conn.in_atomic_block:
            return
        if conn.connection is None:  # not connected yet: its settings decide
            autocommit = conn.settings_dict["AUTOCOMMIT"]
        else:
            autocommit = conn.autocommit
        if autocommit:
            alias = conn.alias
            raise AutocommitError(
                f"Django's connection {alias!r} is in autocommit mode, outside of atomic (there is "
                "no BEGIN): the event would be committed separately from your data. Use "
                f"`with transaction.atomic(using={alias!r}):`. Connections belong to a "
                "thread: an async "
                "view and the code it calls with sync_to_async have different ones"
            )

    def guard(self) -> None:
        self.check()
        if self.target.vendor == "mysql":
            self.target.ensure_connection()
            refuse_charset(self.session.character_set_name())
        elif self.target.vendor == "postgresql":
            self.target.ensure_connection()
            refuse_encoding(self.session)

    def change(self, sql: str, values: Values = ()) -> int:
        with self.target.cursor() as cursor:
            cursor.execute(sql, values or None)
            return int(cursor.rowcount)

    def change_many(self, sql: str, values: Sequence[Values]) -> int:
        with self.target.cursor() as cursor:
            cursor.executemany(sql, values)
            return int(cursor.rowcount)

    def fetch(self, sql: str, values: Values = ()) -> list[Any]:
        with self.target.cursor() as cursor:
            cursor.execute(sql, values or None)
            return list(cursor.fetchall())


class DjangoTransaction(SyncStatements):
    """The caller's connection of Django, or the proxy `django.db.connection`."""

    def __init__(self, connection: Any, prefix: str) -> None:
        super().__init__(DjangoDriver(_unwrapped(connection)), prefix)

    def after_commit(self, call: Callable[[], None]) -> bool:
        """Call back after the outermost atomic block, unless transactions are managed by hand."""
        conn = self.target
        if not conn.in_atomic_block:
            return False
        hooks = conn.run_on_commit
        if not hooks or hooks[-1][:2] != (set(conn.savepoint_ids), call):
            conn.on_commit(call, robust=True)
        return True

    @contextmanager
    def open(self) -> Iterator[None]:
        """Open an atomic block, which must be the outermost one."""
        with ExitStack() as stack:
            try:
                stack.enter_context(transaction.atomic(using=self.target.alias, durable=True))
            except RuntimeError as error:
                raise TransactionError(
                    "an atomic block is already open on this connection: add to it with "
                    "outbox.add(connection, …). Relays are woken after its commit"
                ) from error
            yield


def _unwrapped(connection: Any) -> BaseDatabaseWrapper:
    """Return this thread's connection behind the proxy `django.db.connection`."""
    if isinstance(connection, BaseDatabaseWrapper):
        return connection
    try:
        return connections[connection.alias]
    except AttributeError:  # the proxy of a cache
        raise UnsupportedConnectionError(
            connection, ["django.db.connection"], "This is a proxy for another object"
        ) from None
