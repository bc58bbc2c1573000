"""Creates, migrates and checks the tables."""

from __future__ import annotations

import sqlite3
import time
from uuid import uuid4

from postroom.errors import SchemaError, StoreError, StoreRetryableError
from postroom.stores.schema_version import refuse_newer
from postroom.stores.sqlite.errors import is_busy
from postroom.stores.sqlite.statements import load_migrations
from postroom.stores.sqlite.thread import Database

_VERSION = "schema_version"
_OLDEST_SQLITE = (3, 35, 0)


def migrate(db: Database, prefix: str, patience_seconds: float) -> int:
    """Run the missing migrations, all in one transaction. Safe in concurrent processes."""
    _check_sqlite(db.connection)
    _use_wal(db.connection, patience_seconds)
    migrations = load_migrations(prefix)
    newest = migrations[-1].version
    if version(db.connection, prefix) == newest:
        return newest
    with db.change():
        there = version(db.connection, prefix)  # again: another process may have been first
        refuse_newer(there, newest)
        for migration in migrations:
            if migration.version > there:
                for statement in migration.statements:
                    db.connection.execute(statement)
        meta = f"INSERT INTO {prefix}meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO "
        db.connection.execute(meta + "UPDATE SET value = excluded.value", (_VERSION, str(newest)))
        db.connection.execute(meta + "NOTHING", ("outbox_id", str(uuid4())))
    return newest


def check(connection: sqlite3.Connection, prefix: str, url: str) -> None:
    """Raise SchemaError unless the tables have the version that this code expects."""
    _check_sqlite(connection)
    there, newest = version(connection, prefix), load_migrations(prefix)[-1].version
    refuse_newer(there, newest)
    if there < newest:
        found = f"have version {there}; version {newest} is required" if there else "are missing"
        raise SchemaError(f"the tables {prefix}… {found}; run: postroom migrate --store {url}")


def version(connection: sqlite3.Connection, prefix: str) -> int:
    """Return the version of the tables; 0 if there are none."""
    there = connection.execute(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (f"{prefix}meta",)
    ).fetchone()
    if there is None:
        return 0
    row = connection.execute(
        f"SELECT value FROM {prefix}meta WHERE name = ?", (_VERSION,)
    ).fetchone()
    return 0 if row is None else int(row[0])


def _check_sqlite(connection: sqlite3.Connection) -> None:
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise SchemaError(f"SQLite {sqlite3.sqlite_version} is too old; 3.35 or newer is required")
    (encoding,) = connection.execute("PRAGMA encoding").fetchone()
    if encoding != "UTF-8":
        raise SchemaError(
            f"the database's encoding is {encoding}, which does not preserve payloads byte "
            "for byte. Use a UTF-8 database"
        )


def _use_wal(connection: sqlite3.Connection, patience_seconds: float) -> None:
    """Switch to WAL. SQLite does not wait for other connections here, so this retries."""
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if time.monotonic() > deadline:
                raise StoreRetryableError("the database is busy: cannot switch to WAL") from error
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise StoreError(
                f"SQLite stays in journal mode {mode!r} here and cannot use WAL; "
                "put the file on a local disk"
            )
        return
