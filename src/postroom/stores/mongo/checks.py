"""Checks of a MongoDB server for `postroom doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pymongo.errors import ExecutionTimeout

from postroom.model.clock import host_microseconds
from postroom.model.diagnostics import Finding
from postroom.record import short_error
from postroom.stores.mongo.collector import index_command
from postroom.stores.mongo.connection import Connection
from postroom.stores.mongo.errors import translated
from postroom.stores.mongo.records import date_microseconds
from postroom.stores.mongo.schema import load_migrations

if TYPE_CHECKING:
    from postroom.stores.mongo.store import MongoStore

_CLOCK_SECONDS = 1.0
_OLDEST = (5, 0)
_SHOWN = 5  # ids in one finding
_LOOK_MS = 5_000
_GREAT = {
    "__system", "root", "restore", "clusterAdmin", "clusterManager", "hostManager", "userAdmin",
}  # fmt: skip
_MIGRATING = {"dbAdmin", "dbOwner"}


async def examine(store: MongoStore) -> list[Finding]:
    """Return all findings; an empty list if there are none."""
    db = store.connection
    with translated(harmless=True):
        hello = await db.client.admin.command("hello")
        server = await db.client.server_info()
        return [
            *check_version(server),
            *check_kind(hello, transactions=db.transactions),
            *await _check_indexes(db, store.embedded),
            *await _check_documents(db),
            *check_clock(date_microseconds(await _now(db)), host_microseconds()),
        ]


def check_version(server: Mapping[str, Any]) -> Iterator[Finding]:
    """The relay's queries need MongoDB 5.0."""
    if tuple(server["versionArray"][:2]) < _OLDEST:
        yield Finding(
            "error", f"MongoDB {server['version']} is too old",
            "snapshot reads outside of transactions need MongoDB 5.0", "upgrade the server",
        )  # fmt: skip


def check_kind(hello: Mapping[str, Any], *, transactions: bool) -> Iterator[Finding]:
    """A standalone has fewer guarantees, and a single node has no failover."""
    if not transactions:
        yield Finding(
            "warning", "this outbox runs without transactions",
            "a relay whose lease has expired can still change an event (G5 does not hold), "
  "an event does not share the commit of your data unless it is embedded (G1), and strict order is "
  "not available",
            "make the server a replica set (a single member is enough); or run one relay, and "
  "embed events or run a reconciler",
        )  # fmt: skip
    elif len(hello.get("hosts", ())) == 1:
        yield Finding(
            "info", "the replica set has one member",
            "all guarantees hold, but there is no failover", "add two members",
        )  # fmt: skip


def check_clock(server_us: int, host_us: int) -> Iterator[Finding]:
    """Only the server's clock decides about leases; operators compare times of both."""
    apart = abs(server_us - host_us) / 1_000_000
    if apart > _CLOCK_SECONDS:
        yield Finding(
            "info", f"the clocks of this host and the server differ by {apart:.1f} s",
            "only `occurred_at` is affected, which writers take from their own clock",
            "synchronize the hosts' clocks",
        )  # fmt: skip


async def _now(db: Connection) -> Any:
    cursor = await db.meta.aggregate([{"$limit": 1}, {"$project": {"now": "$$NOW"}}])
    return (await cursor.to_list())[0]["now"]


async def _check_indexes(db: Connection, embedded: tuple[str, ...]) -> list[Finding]:
    commands = [c for migration in load_migrations(db.prefix) for c in migration.commands]
    commands += [index_command(db.prefix, name) for name in embedded]
    findings: list[Finding] = []
    for command in commands:
        for index in command.get("indexes", ()):
            name = command["createIndexes"]
            there = (await db.database[name].index_information()).get(index["name"])
            if there is None or dict(there["key"]) != index["key"]:
                findings.append(
                    Finding(
                        "error",
                        f"the index {index['name']!r} on {name} is missing or different",
                        "reads scan the whole collection and become slow",
                        "create it again: `postroom migrate sql --store …` shows how",
                    )
                )
    return findings


async def _check_documents(db: Connection) -> list[Finding]:
    """Look for documents that were edited so that they are not valid events."""
    commands = [c for migration in load_migrations(db.prefix) for c in migration.commands]
    (validator,) = [c["validator"] for c in commands if c.get("create") == db.outbox.name]
    odd = db.outbox.find({"$nor": [validator]}, {"_id": 1}).limit(_SHOWN + 1)
    try:
        found = [one["_id"] async for one in odd.max_time_ms(_LOOK_MS)]
    except ExecutionTimeout:  # a scan of the whole collection: as much as fits in this time
        return []
    if not found:
        return []
    who = short_error(", ".join(map(str, found[:_SHOWN])))
    more = " and others" if len(found) > _SHOWN else ""
    return [
        Finding(
            "warning",
            f"documents that cannot be read: {who}{more}",
            "a field is missing or has the wrong type: the relay makes dead letters of them, but "
            "never finds documents without stage, stream or lane",
            "correct the fields (docs: reference/tables.md), then `postroom replay`",
        )
    ]


async def examine_rights(store: MongoStore) -> list[Finding]:
    """Report if the user has more privileges than a relay needs."""
    with translated(harmless=True):
        status = await store.connection.client.admin.command("connectionStatus")
    return list(judge_rights(status["authInfo"]))


def judge_rights(who: Mapping[str, Any]) -> Iterator[Finding]:
    """Return a user's privileges beyond those of a relay, from the answer of connectionStatus."""
    if not who["authenticatedUsers"]:
        yield Finding(
            "info", "this connection is not authenticated",
            "if the server does not require authentication, anyone who can reach it can change, "
  "delete or forge events",
            "set security.authorization: enabled in mongod.conf, and create a user with readWrite",
        )  # fmt: skip
        return
    roles = {role["role"] for role in who["authenticatedUserRoles"]}
    fix = "db.createUser({user: 'relay', pwd: …, roles: ['readWrite']}), and use it in the URL"
    if more := sorted(role for role in roles if role in _GREAT or role.endswith("AnyDatabase")):
        yield Finding(
            "warning", f"this user has rights on all databases: {', '.join(more)}",
            "a mistake or a stolen password then affects more than the events", fix,
        )  # fmt: skip
    elif more := sorted(roles & _MIGRATING):
        yield Finding(
            "info", f"this user has more rights than a relay needs: {', '.join(more)}",
            "migrations need them; a relay should not be able to drop collections", fix,
        )  # fmt: skip
