"""Creates, migrates and checks the tables.

DDL commits implicitly in MySQL. Every statement of a step can therefore be repeated, and the
version is written after the last one: an interrupted migration starts again.
"""

from __future__ import annotations

import re
from hashlib import md5
from uuid import uuid4

from postroom.errors import SchemaError, StoreError, StoreRetryableError
from postroom.stores.mysql.errors import code_of
from postroom.stores.mysql.session import Session
from postroom.stores.mysql.statements import load_migrations
from postroom.stores.schema_version import refuse_newer

_OLDEST = {"mysql": (8, 0, 16), "mariadb": (10, 6, 0)}
_NAMES = {"mysql": "MySQL", "mariadb": "MariaDB"}
_COLUMN_EXISTS = 1060
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")


async def migrate(session: Session, prefix: str, patience_seconds: int) -> int:
    """Run the missing migrations. Safe in concurrent processes: one works, the others wait."""
    check_server(session)
    migrations = load_migrations(prefix)
    newest = migrations[-1].version
    there = await version(session)
    refuse_newer(there, newest)
    if there == newest:
        return newest
    await session.execute("SET SESSION sql_notes = 0")  # "already exists" is expected here
    lock = await _lock(session, prefix, patience_seconds)
    try:
        there = await version(session)  # again: another process may have been first
        refuse_newer(there, newest)
        for step in migrations:
            if step.version > there:
                for statement in step.statements:
                    await _run(session, statement)
                await session.run("migrate_identity", outbox_id=str(uuid4()))
                await session.run("migrate_version", version=str(step.version))
    finally:
        if not session.broken:
            await session.rows("unlock", name=lock)
    return newest


async def _run(session: Session, statement: str) -> None:
    try:
        await session.execute(statement)
    except StoreError as error:
        cause = error.__cause__
        if (
            cause is None or code_of(cause) != _COLUMN_EXISTS
        ):  # MySQL has no ADD COLUMN IF NOT EXISTS
            raise


async def check(session: Session, prefix: str, url: str) -> None:
    """Raise SchemaError unless the tables have the version that this code expects."""
    check_server(session)
    there, newest = await version(session), load_migrations(prefix)[-1].version
    refuse_newer(there, newest)
    if there < newest:
        found = f"have version {there}; version {newest} is required" if there else "are missing"
        raise SchemaError(f"the tables {prefix}… {found}; run: postroom migrate up --store {url}")


async def version(session: Session) -> int:
    """Return the version of the tables; 0 if there are none."""
    if not await session.rows("version_known"):
        return 0
    rows = await session.rows("version")
    return int(rows[0][0]) if rows else 0


def check_server(session: Session) -> None:
    """Refuse a server that lacks required features: CHECK, JSON_TABLE, SKIP LOCKED."""
    found = _VERSION.search(session.version.removeprefix("5.5.5-"))
    numbers = tuple(map(int, found.groups())) if found else (0, 0, 0)
    oldest = _OLDEST[session.flavour]
    if numbers < oldest:
        needed = ".".join(map(str, oldest))
        raise SchemaError(
            f"{_NAMES[session.flavour]} {session.version} is too old; {needed} or newer is required"
        )


async def _lock(session: Session, prefix: str, patience_seconds: int) -> str:
    """Lock out other migrations of the same tables; lock names are shared by all databases."""
    place = f"{session.database}\x00{prefix}"
    name = f"postroom:{md5(place.encode(), usedforsecurity=False).hexdigest()}"
    ((got,),) = await session.rows("lock", name=name, patience=patience_seconds)
    if got != 1:
        raise StoreRetryableError(
            f"another process has been migrating these tables for {patience_seconds} s; try again"
        )
    return name
