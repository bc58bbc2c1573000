"""Creates, migrates and checks the tables."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import AsyncConnection, sql

from postroom.errors import SchemaError, StoreError
from postroom.model.pauses import Pauses
from postroom.stores.postgres.settings import PostgresSettings
from postroom.stores.postgres.statements import load_migrations, load_queries
from postroom.stores.schema_version import refuse_newer

_log = logging.getLogger("postroom.store")
_VERSION = "schema_version"
_OLDEST_SERVER = 140_000
_LOCK_SECONDS = 2.0  # writers queue behind a migration that waits for the lock of a table
_PATIENCE_SECONDS = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 10.0


async def migrate(connection: AsyncConnection[Any], options: PostgresSettings) -> int:
    """Run the missing migrations, all in one transaction. Safe in concurrent processes.

    If a transaction has the tables locked, it lets writers pass for a while and tries again.
    """
    newest = load_migrations(options.prefix)[-1].version
    await _check_server(connection)
    loop = asyncio.get_running_loop()
    until = loop.time() + _PATIENCE_SECONDS
    pauses, told = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE), False
    while await version(connection, options) != newest:
        try:
            await _upgrade(connection, options, newest)
        except psycopg.errors.LockNotAvailable:
            pause = pauses.grow()
            if loop.time() + pause > until:
                raise
            if not told:
                _log.warning(
                    "migrate waits for a transaction that uses the tables %s…; it tries again for "
                    "%.0f s and stops writers for at most %.0f s each time",
                    options.tables, _PATIENCE_SECONDS, _LOCK_SECONDS,
                )  # fmt: skip
                told = True
            await asyncio.sleep(pause)
    return newest


async def _upgrade(
    connection: AsyncConnection[Any], options: PostgresSettings, newest: int
) -> None:
    migrations = load_migrations(options.prefix)
    async with connection.transaction():
        # Waits for concurrent migrations; the lock ends with the transaction, also behind a pooler.
        await connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"postroom {options.tables}",)
        )
        await _use_schema(connection, options.schema)
        there = await version(connection, options)  # again: another process may have been first
        refuse_newer(there, newest)
        await connection.execute(
            "SELECT set_config('lock_timeout', %s, true)", (f"{round(_LOCK_SECONDS * 1000)}ms",)
        )
        for migration in migrations:
            if migration.version > there:
                await connection.execute(migration.script)
        meta = sql.Identifier(f"{options.prefix}meta")
        insert = sql.SQL("INSERT INTO {} (name, value) VALUES (%s, %s) ON CONFLICT (name) DO ")
        await connection.execute(
            insert.format(meta) + sql.SQL("UPDATE SET value = excluded.value"),
            (_VERSION, str(newest)),
        )
        await connection.execute(
            insert.format(meta) + sql.SQL("NOTHING"), ("outbox_id", str(uuid4()))
        )


async def _use_schema(connection: AsyncConnection[Any], schema: str | None) -> None:
    """Resolve the migrations' names in one schema: the requested one, or the first."""
    if schema is None:
        rows = await connection.execute("SELECT current_schema()")
        ((schema,),) = await rows.fetchall()
        if schema is None:
            raise SchemaError("no schema of the search_path exists; name one with ?schema=…")
    elif not await _there(connection, "to_regnamespace", f'"{schema}"'):
        await connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    await connection.execute(
        sql.SQL("SET LOCAL search_path = {}, pg_temp").format(sql.Identifier(schema))
    )


async def check(connection: AsyncConnection[Any], options: PostgresSettings, url: str) -> None:
    """Raise SchemaError unless the tables have the version that this code expects.

    Raises StoreError for a read-only server.
    """
    await _check_server(connection)
    there, newest = await version(connection, options), load_migrations(options.prefix)[-1].version
    refuse_newer(there, newest)
    if there < newest:
        found = f"have version {there}; version {newest} is required" if there else "are missing"
        raise SchemaError(
            f"the tables {options.tables}… {found}; run: postroom migrate --store {url}"
        )
    rows = await connection.execute("SELECT pg_is_in_recovery()")
    if (await rows.fetchone()) == (True,):
        raise StoreError(
            "this PostgreSQL server is a read replica, where events cannot be settled. Connect to "
            "the primary, for example with several hosts and target_session_attrs=read-write"
        )
    await _warn_of_sequence(connection, options)


async def _warn_of_sequence(connection: AsyncConnection[Any], options: PostgresSettings) -> None:
    """Log a warning if writers get numbers that events already have. The relay itself can work."""
    look = load_queries(options.tables)["check_sequence"].sql
    try:
        rows = await connection.execute(look.encode())
        found = await rows.fetchone()
    except psycopg.Error as error:
        _log.debug("cannot check the outbox's sequence: %s", error)
        return
    if found is not None and None not in found[2:] and found[2] < found[3]:
        _log.error(
            "the outbox's sequence is at %s, behind its highest event, %s: add() fails with "
  "NumberTakenError. Repair it: SELECT setval(pg_get_serial_sequence('%soutbox', 'seq'), "
  "(SELECT max(seq) FROM %soutbox))",
            found[2], found[3], options.tables, options.tables,
        )  # fmt: skip


async def version(connection: AsyncConnection[Any], options: PostgresSettings) -> int:
    """Return the version of the tables; 0 if there are none."""
    name = f"{options.tables}meta"
    if not await _there(connection, "to_regclass", name):
        return 0
    rows = await connection.execute(
        f"SELECT value FROM {name} WHERE name = %s",
        (_VERSION,),
    )
    row = await rows.fetchone()
    return 0 if row is None else int(row[0])


async def _there(connection: AsyncConnection[Any], look: str, name: str) -> bool:
    query = sql.SQL("SELECT {}(%s) IS NOT NULL").format(sql.SQL(look))
    rows = await connection.execute(query, (name,))
    return (await rows.fetchone()) == (True,)


async def _check_server(connection: psycopg.AsyncConnection[Any]) -> None:
    if connection.info.server_version < _OLDEST_SERVER:
        raise SchemaError(
            "this PostgreSQL server is too old; 14 or newer is required, and it is "
            f"{connection.info.server_version // 10_000}"
        )
    rows = await connection.execute("SHOW server_encoding")
    row = await rows.fetchone()
    if row != ("UTF8",):
        raise SchemaError(
            f"the database's encoding is {row and row[0]}, which does not preserve payloads "
            "byte for byte. Use a UTF-8 database"
        )
