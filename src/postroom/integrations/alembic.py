"""postroom's tables in an application's Alembic revisions.

    # env.py: autogenerate leaves the tables alone
    postroom = Migrations()
    context.configure(..., include_name=postroom.include_name)

    # a revision
    def upgrade() -> None:
        Migrations().upgrade(to=3)

    def downgrade() -> None:
        Migrations().downgrade()

The statements run on Alembic's connection. On PostgreSQL they are part of its transaction. On
SQLite they take effect as a whole; Alembic opens no transaction around DDL there. MySQL and MariaDB
commit each DDL statement, and an interrupted upgrade goes on when it is run again.
`alembic upgrade --sql` prints them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from alembic import op
from sqlalchemy import Connection, inspect
from sqlalchemy.exc import DBAPIError

from postroom.errors import ConfigError, SchemaError, StoreRetryableError
from postroom.stores.migration_scripts import (
    Place,
    drop_statements,
    newest,
    table_names,
    upgrade_statements,
)
from postroom.stores.schema_version import refuse_newer
from postroom.transactions.queries import DEFAULT_PREFIX, qualify

_log = logging.getLogger(__name__)
_DIALECTS = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite"}
_COLUMN_EXISTS = 1060  # MySQL: the statement has run before an interruption
_LOCK_SECONDS = 60
_DATA = ("outbox", "inbox", "audit")  # what would be lost


class Migrations:
    """The tables with one prefix, and on PostgreSQL in one schema, for Alembic.

    prefix, schema   as of the store
    """

    def __init__(self, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> None:
        qualify(prefix, schema)
        self.prefix = prefix
        self.schema = schema
        self._names = table_names(prefix)

    # -- autogenerate -------------------------------------------------------------------------
    def include_name(
        self,
        name: str | None,
        type_: str,
        parent_names: Mapping[Any, str | None],  # noqa: ARG002 - Alembic's signature
    ) -> bool:
        """Return False for postroom's tables, in every schema; for `context.configure`."""
        return type_ != "table" or name not in self._names

    def include_object(
        self,
        item: Any,
        name: str | None,
        type_: str,
        reflected: bool,  # noqa: ARG002 - Alembic's signature
        compare_to: Any,  # noqa: ARG002
    ) -> bool:
        """Return False for postroom's tables and what belongs to them; for `context.configure`.

        Unlike `include_name` it also applies to tables of the application's metadata.
        """
        table = item if type_ == "table" else getattr(item, "table", None)
        found = name if type_ == "table" else getattr(table, "name", None)
        return found not in self._names

    # -- operations ---------------------------------------------------------------------------
    def upgrade(self, to: int, *, after: int = 0) -> None:
        """Bring the tables to a version, in Alembic's transaction.

        to      the version, as `postroom migrate status` prints it: a revision names it, so that
                it does the same with every later postroom
        after   the version before; only `alembic upgrade --sql` needs it, which cannot ask

        Does nothing if the tables have this version or a later one. Raises SchemaError if they are
        newer than this postroom, ConfigError if it does not know the version.
        """
        place = self._place()
        known = newest(place.dialect)
        if not 0 <= after < to <= known:
            raise ConfigError(
                f"upgrade(to={to!r}, after={after!r}): name versions in ascending order, up to "
                f"{known}, the newest that this postroom knows"
            )
        if op.get_context().as_sql:
            self._print(place, upgrade_statements(place, after, to))
            return
        connection = op.get_bind()
        with _exclusive(connection, place):
            there = _version(connection, place)
            refuse_newer(there, known)
            for statement in upgrade_statements(place, there, to):
                _run(connection, place, statement)

    def downgrade(self, *, drop_data: bool = False) -> None:
        """Remove the tables, in Alembic's transaction.

        drop_data   also if they hold events, inbox rows or audit entries: unsent events are lost,
                    and redelivered messages take effect again

        Raises SchemaError if they hold data and it was not told to drop it; `alembic downgrade
        --sql` cannot look, and refuses without it. There is no way back to an earlier version of
        the tables: leave the `downgrade` of a later revision empty.
        """
        place = self._place()
        statements = drop_statements(place)
        if op.get_context().as_sql:
            if not drop_data:
                raise SchemaError(
                    "this would drop the tables without looking for events in them; say "
                    "downgrade(drop_data=True) if that is meant"
                )
            self._print(place, statements)
            return
        connection = op.get_bind()
        with _exclusive(connection, place):
            if not drop_data:
                _refuse_data(connection, place)
            for statement in statements:
                _run(connection, place, statement)

    # -- inside -------------------------------------------------------------------------------
    def _place(self) -> Place:
        name = op.get_context().dialect.name
        if name not in _DIALECTS:
            raise ConfigError(f"Alembic runs on {name!r}; postroom supports {', '.join(_DIALECTS)}")
        if self.schema is not None and name != "postgresql":
            raise ConfigError("only PostgreSQL has schemas; on other databases use a prefix")
        return Place(_DIALECTS[name], self.prefix, self.schema)

    def _print(self, place: Place, statements: Sequence[str]) -> None:
        around = ("SAVEPOINT postroom", "RELEASE postroom")
        if place.dialect != "sqlite":
            around = ("", "")
        for statement in (around[0], *statements, around[1]):
            if statement:
                op.get_context().impl.static_output(f"{statement};")


@contextmanager
def _exclusive(connection: Connection, place: Place) -> Iterator[None]:
    """Lock out other migrations of the same tables; on SQLite also run as a whole or not at all."""
    match place.dialect:
        case "postgres":
            tables = f'"{place.schema}".{place.prefix}' if place.schema else place.prefix
            lock = f"hashtextextended('postroom {tables}', 0)"
            _ask(connection, f"SELECT pg_advisory_xact_lock({lock})")
            yield
        case "mysql":
            name = f"CONCAT('postroom:', MD5(CONCAT(DATABASE(), CHAR(0), '{place.prefix}')))"
            if _ask(connection, f"SELECT GET_LOCK({name}, {_LOCK_SECONDS})") != 1:
                raise StoreRetryableError(
                    f"another process has been migrating these tables for {_LOCK_SECONDS} s; "
                    "try again"
                )
            try:
                yield
            finally:
                _ask(connection, f"SELECT RELEASE_LOCK({name})")
        case _:
            _use_wal(connection)
            _run(connection, place, "SAVEPOINT postroom")
            try:
                yield
            except BaseException:
                _run(connection, place, "ROLLBACK TO postroom")
                _run(connection, place, "RELEASE postroom")
                raise
            _run(connection, place, "RELEASE postroom")


def _use_wal(connection: Connection) -> None:
    """Switch to WAL unless a transaction is open, where SQLite cannot."""
    driver = connection.connection.driver_connection
    if getattr(driver, "in_transaction", True):
        _log.info("a transaction is open: run `PRAGMA journal_mode = WAL` for the relay later")
        return
    _ask(connection, "PRAGMA journal_mode = WAL")


def _version(connection: Connection, place: Place) -> int:
    if not inspect(connection).has_table(f"{place.prefix}meta", schema=place.schema):
        return 0
    query = f"SELECT value FROM {_qualified(place, 'meta')} WHERE name = 'schema_version'"
    found = _ask(connection, query)
    return 0 if found is None else int(found)


def _refuse_data(connection: Connection, place: Place) -> None:
    """Raise SchemaError if the tables hold data; on PostgreSQL no writer adds any afterwards."""
    there = inspect(connection)
    tables = [
        _qualified(place, name)
        for name in _DATA
        if there.has_table(f"{place.prefix}{name}", schema=place.schema)
    ]
    if place.dialect == "postgres" and tables:
        _run(connection, place, f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
    full = [name for name in tables if _ask(connection, f"SELECT 1 FROM {name} LIMIT 1")]
    if full:
        raise SchemaError(
            f"the downgrade would drop tables that hold data: {', '.join(full)}. Nothing was "
            "changed; say downgrade(drop_data=True) if that is meant"
        )


def _qualified(place: Place, name: str) -> str:
    schema = f'"{place.schema}".' if place.schema else ""
    return f"{schema}{place.prefix}{name}"


def _ask(connection: Connection, query: str) -> Any:
    return connection.exec_driver_sql(query, execution_options={"no_parameters": True}).scalar()


def _run(connection: Connection, place: Place, statement: str) -> None:
    try:
        connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
    except DBAPIError as error:
        code = error.orig.args[0] if error.orig is not None and error.orig.args else None
        if place.dialect != "mysql" or code != _COLUMN_EXISTS:
            raise
