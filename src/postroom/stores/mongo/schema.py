"""Creates, migrates and checks the collections."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple
from uuid import uuid4

import pymongo
from pymongo.errors import OperationFailure

from postroom.errors import SchemaError
from postroom.stores.mongo.collector import index_command
from postroom.stores.mongo.connection import Connection
from postroom.stores.mongo.errors import EXISTS, translated
from postroom.stores.schema_version import refuse_newer
from postroom.transactions.mongo.documents import Document
from postroom.transactions.queries import DEFAULT_PREFIX

_VERSION = "schema_version"
_IDENTITY = "outbox_id"
_MAJORITY = {"w": "majority"}
_BUILD_SECONDS = 86_400.0


def building() -> AbstractContextManager[object]:
    """Return a context for a command that builds an index.

    A build takes as long as the collection is large and blocks no writer: the time limit of other
    commands would report a server that answers as unreachable.
    """
    return pymongo.timeout(_BUILD_SECONDS)


class Migration(NamedTuple):
    """One numbered step: idempotent commands."""

    version: int
    name: str
    commands: tuple[Document, ...]


@cache
def load_migrations(prefix: str) -> tuple[Migration, ...]:
    """Return the steps in order, with this collection prefix."""
    folder = files(__package__) / "migrations"
    found = sorted((f for f in folder.iterdir() if f.name.endswith(".json")), key=lambda f: f.name)
    return tuple(
        Migration(
            int(file.name[:4]),
            file.name.removesuffix(".json"),
            tuple(json.loads(file.read_text(encoding="utf-8").replace(DEFAULT_PREFIX, prefix))),
        )
        for file in found
    )


async def migrate(db: Connection, embedded: Iterable[str] = ()) -> int:
    """Run the missing steps. Safe in concurrent processes.

    Collections with embedded events get their index, whatever the version.
    """
    migrations = load_migrations(db.prefix)
    newest = migrations[-1].version
    with translated(harmless=False):
        there = await version(db)
        refuse_newer(there, newest, "collections")
        for name in embedded:
            await _run(db, index_command(db.prefix, name))
        if there == newest:
            return newest
        for migration in migrations:
            if migration.version > there:
                for command in migration.commands:
                    await _run(db, command)
        await db.meta.update_one(
            {"_id": _IDENTITY}, {"$setOnInsert": {"value": str(uuid4())}}, upsert=True
        )
        # Written last: a reader of the version finds everything that belongs to it.
        await db.meta.update_one({"_id": _VERSION}, {"$max": {"value": newest}}, upsert=True)
    return newest


async def _run(db: Connection, command: Document) -> None:
    try:
        with building() if "createIndexes" in command else nullcontext():
            await db.database.command({**command, "writeConcern": _MAJORITY})
    except OperationFailure as error:
        if error.code != EXISTS:
            raise
        if "validator" in command:  # created by a writer, or by another process a moment ago
            change = {"collMod": command["create"], **command}
            del change["create"]
            await db.database.command({**change, "writeConcern": _MAJORITY})


def script_after(prefix: str, after: int, embedded: Iterable[str] = ()) -> str:
    """Return the steps after a version as text for mongosh."""
    lines = [f"db.runCommand({json.dumps(index_command(prefix, name))});" for name in embedded]
    for migration in load_migrations(prefix):
        if migration.version > after:
            lines.append(f"// {migration.name}")
            lines += [f"db.runCommand({json.dumps(c)});" for c in migration.commands]
            lines.append(_set(prefix, _IDENTITY, "$setOnInsert", "UUID().toString()"))
            lines.append(_set(prefix, _VERSION, "$max", str(migration.version)))
    return "".join(f"{line}\n" for line in lines)


def _set(prefix: str, name: str, operator: str, value: str) -> str:
    return (
        f"db.{prefix}meta.updateOne({{_id: {json.dumps(name)}}}, "
        f"{{{operator}: {{value: {value}}}}}, {{upsert: true}});"
    )


async def version(db: Connection) -> int:
    """Return the version of the collections; 0 if there are none."""
    found: dict[str, Any] | None = await db.meta.find_one({"_id": _VERSION})
    return 0 if found is None else int(found["value"])


async def check(db: Connection, url: str) -> None:
    """Raise SchemaError unless the collections have the version that this code expects."""
    there, newest = await version(db), load_migrations(db.prefix)[-1].version
    refuse_newer(there, newest, "collections")
    if there < newest:
        found = f"have version {there}; version {newest} is required" if there else "are missing"
        raise SchemaError(
            f"the collections {db.prefix}… {found} in {db.database.name!r}; "
            f"run: postroom migrate up --store {url}"
        )


async def identity(db: Connection) -> str:
    found = await db.meta.find_one({"_id": _IDENTITY})
    if found is None:
        raise SchemaError("the outbox has no id; run: postroom migrate up")
    return str(found["value"])
