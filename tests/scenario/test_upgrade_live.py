"""`migrate` while others work: writers, long transactions, roles with few rights, a process that is killed."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from uuid import uuid4

import asyncmy
import psycopg
import pymysql
import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.errors import StoreLockedError
from postroom.event import Event
from postroom.outbox import Outbox
from postroom.stores.mongo import schema as mongo_schema
from postroom.stores.mysql import schema as mysql_schema
from postroom.stores.mysql.statements import load_migrations
from postroom.stores.postgres import PostgresStore
from postroom.stores.postgres import schema as postgres_schema
from postroom.stores.sqlite import schema as sqlite_schema
from tests.released.load import TABLES, VERSIONS, loaded
from tests.released.make import event
from tests.scenario.place import PATIENCE, QUICK, ids, until

KINDS = ("sqlite", "postgres", "mysql", "mongo")
PAGE = (Path(__file__).parents[2] / "docs/operations/upgrade.md").read_text(encoding="utf-8")


@pytest.fixture
async def old(request):
    """A database of an earlier version, with data."""
    version, kind = request.param
    async with loaded(request, version, kind) as old:
        yield old


def on(*kinds):
    each = [(version, kind) for version in VERSIONS for kind in kinds]
    return pytest.mark.parametrize("old", each, indirect=True, ids="-".join)


def everything(old):
    return {table: old.rows(table) for table in TABLES if table != "meta"}


def kept(before, after):
    """Show that all rows are as they were, but for columns that are new and empty."""
    for table, rows in before.items():
        for was, now in zip(rows, after[table], strict=True):
            assert {name: now[name] for name in was} == was
            assert {value for name, value in now.items() if name not in was} <= {None}
    return True


# -- others work ----------------------------------------------------------------------------------
@on(*KINDS)
async def test_writers_of_the_old_version_write_on_during_the_upgrade(old):
    written, go_on = [], True

    def write():
        while go_on:
            old.old_writer(event(f"live-{len(written)}", "live"))
            written.append(f"live-{len(written)}")

    writer = asyncio.create_task(asyncio.to_thread(write))
    try:
        await until(lambda: written or writer.done())
        await old.store().migrate()
        at_the_end = len(written)
        await until(lambda: len(written) > at_the_end + 1 or writer.done())
    finally:
        go_on = False
        await writer  # raises what the writer has met
    broker = MemoryBroker()
    async with Relay(old.store(), broker, **QUICK):
        await until(lambda: set(ids(broker)) >= set(written))
    assert [name for name in ids(broker) if name in set(written)] == written


@on("postgres")
async def test_a_long_transaction_stops_the_upgrade_but_no_writer(old, monkeypatch, caplog):
    monkeypatch.setattr(postgres_schema, "_LOCK_SECONDS", 0.2)
    monkeypatch.setattr(postgres_schema, "_FIRST_PAUSE", 0.05)
    caplog.set_level(logging.WARNING, "postroom.store")
    try:
        with psycopg.connect(old.url) as report:
            report.execute("SELECT count(*) FROM postroom_outbox")
            upgrade = asyncio.create_task(old.store().migrate())
            for n in range(3):
                await until(lambda: waits(old) or upgrade.done())
                async with asyncio.timeout(PATIENCE):
                    await asyncio.to_thread(old.old_writer, event(f"live-{n}", "live"))
            assert not upgrade.done()
    finally:
        newest = await upgrade
    assert (await old.store().schema()).current == newest
    assert sum("waits for a transaction" in r.getMessage() for r in caplog.records) == 1


def waits(old):
    schema = old.url.rpartition("%3D")[2]
    return old.run(
        "SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock' "
        f"AND relation = '{schema}.postroom_outbox'::regclass"
    )


@on("postgres")
async def test_an_upgrade_that_cannot_lock_the_tables_says_so_and_changes_nothing(old, monkeypatch):
    monkeypatch.setattr(postgres_schema, "_LOCK_SECONDS", 0.05)
    monkeypatch.setattr(postgres_schema, "_PATIENCE_SECONDS", 0.0)
    before = everything(old)
    with psycopg.connect(old.url) as report:
        report.execute("SELECT count(*) FROM postroom_outbox")
        with pytest.raises(StoreLockedError, match="lock timeout"):
            await old.store().migrate()
    assert everything(old) == before


@on("postgres", "mysql")
async def test_a_transaction_that_began_before_the_upgrade_can_still_add(old):
    """Its snapshot is older than the new columns."""
    values, sql = old.values_of(event("open", "k")), old.statement("insert")
    if old.folder.name == "postgres":
        with psycopg.connect(old.url) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT 1")
            await old.store().migrate()
            connection.execute(sql, values)
    else:
        with old.database.connection(charset="utf8mb4") as (connection, cursor):
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            await old.store().migrate()
            cursor.execute(sql, values)
            connection.commit()
    assert old.run("SELECT 1 AS n FROM postroom_outbox WHERE id = 'open'")


# -- it is interrupted ----------------------------------------------------------------------------
class KilledError(Exception):
    """The process ends here."""


@on("mysql", "mongo")
async def test_an_upgrade_that_was_killed_after_any_statement_can_be_run_again(old, monkeypatch):
    """DDL commits by itself there."""
    module = mysql_schema if old.folder.name == "mysql" else mongo_schema
    before, run = everything(old), module._run
    there = (await old.store().schema()).current
    for last in range(100):
        count = 0

        async def killed(place, statement, last=last):
            nonlocal count
            await run(place, statement)
            count += 1
            if count > last:
                raise KilledError

        monkeypatch.setattr(module, "_run", killed)
        try:
            newest = await old.store().migrate()
        except KilledError:
            assert (await old.store().schema()).current == there
        else:
            break
    assert last >= 3
    assert (await old.store().schema()).current == newest
    assert kept(before, everything(old))
    broker = MemoryBroker()
    async with Relay(old.store(), broker, **QUICK):
        await until(lambda: "follower-2" in ids(broker))


@on("sqlite", "postgres")
async def test_an_upgrade_that_fails_at_its_end_leaves_nothing(old, monkeypatch):
    """All of it is one transaction there."""
    module = sqlite_schema if old.folder.name == "sqlite" else postgres_schema
    load, before = module.load_migrations, everything(old)

    def broken(prefix):
        *steps, last = load(prefix)
        if hasattr(last, "script"):
            return (*steps, last._replace(script=last.script + ";\nSELECT no_such_column"))
        return (*steps, last._replace(statements=(*last.statements, "SELECT no_such_column")))

    monkeypatch.setattr(module, "load_migrations", broken)
    with pytest.raises(Exception, match="no_such_column"):
        await old.store().migrate()
    assert everything(old) == before
    monkeypatch.undo()
    await old.store().migrate()
    assert kept(before, everything(old))


# -- rights ---------------------------------------------------------------------------------------
ROLES = """
GRANT USAGE ON SCHEMA {schema} TO {writer}, {relay};
GRANT INSERT (id, stream, lane, key_hash, type, topic, key, aggregate_type, aggregate_id, payload,
    payload_bytes, content_type, headers, correlation_id, causation_path, schema_version, kseq, size,
    occurred_at, created_at, available_at, stage, next_attempt_at)
    ON {schema}.postroom_outbox TO {writer};
GRANT SELECT ON {schema}.postroom_meta TO {relay};
GRANT SELECT, INSERT, UPDATE, DELETE
    ON {schema}.postroom_outbox, {schema}.postroom_lease, {schema}.postroom_member, {schema}.postroom_block
    TO {relay};
GRANT SELECT, INSERT, UPDATE ON {schema}.postroom_counter TO {relay};
GRANT SELECT ON SEQUENCE {schema}.postroom_outbox_seq_seq TO {relay};
"""  # as the page on PostgreSQL had it for version 2


@pytest.fixture
def roles(old):
    """A writer and a relay with the rights of the earlier version."""
    schema, made = old.url.rpartition("%3D")[2], uuid4().hex[:12]
    names = {"writer": f"w_{made}", "relay": f"R {made}"}
    quoted = {name: f'"{role}"' for name, role in names.items()}
    with psycopg.connect(old.url, autocommit=True) as connection:
        for role in quoted.values():
            connection.execute(f"CREATE ROLE {role} LOGIN")
        connection.execute(ROLES.format(schema=schema, **quoted))
        yield {
            name: old.url.replace("postgres@", f"{role.replace(' ', '%20')}@")
            for name, role in names.items()
        }
        for role in quoted.values():
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")


@on("postgres")
async def test_roles_of_the_old_version_need_no_new_grants(old, roles):
    await old.store().migrate()
    async with await psycopg.AsyncConnection.connect(roles["writer"]) as connection:
        await Outbox().add(connection, Event("t", id="new", key="k", causation_id="parent"))
        for column in ("history", "receipt", "replaced_by", "state"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                async with connection.transaction():
                    await connection.execute(f"INSERT INTO postroom_outbox ({column}) VALUES ('x')")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            async with connection.transaction():
                await connection.execute("SELECT * FROM postroom_control")
    broker = MemoryBroker()
    async with Relay(PostgresStore(roles["relay"]), broker, **QUICK):
        await until(lambda: {"new", "follower-2"} <= set(ids(broker)))
    async with await psycopg.AsyncConnection.connect(roles["relay"]) as connection:
        for table in ("control", "operation"):
            for statement in ("SELECT * FROM", "DELETE FROM"):
                await connection.execute(f"{statement} postroom_{table}")


@on("mysql")
async def test_mysql_adds_the_columns_without_a_copy_of_the_table(old):
    (alter, *_) = load_migrations("postroom_")[1].statements
    assert alter.startswith("ALTER TABLE")
    old.run(f"{alter}, ALGORITHM = INSTANT")  # an error if the server could not


@on("mysql")
async def test_mysql_rights_on_columns_and_new_tables_are_granted_by_hand(old):
    """The page on upgrades says which; a writer of the old version needs none of them."""
    name, schema = f"w_{uuid4().hex[:12]}", old.database.name
    columns = (
        "id, stream, lane, key_hash, type, topic, `key`, aggregate_type, aggregate_id, payload, "
        "payload_bytes, content_type, headers, correlation_id, causation_path, schema_version, kseq, "
        "occurred_at, created_at, available_at, stage, next_attempt_at, size"
    )
    old.run(f"CREATE USER {name} IDENTIFIED BY 'secret'")
    try:
        old.run(f"GRANT INSERT ({columns}) ON {schema}.postroom_outbox TO {name}")
        await old.store().migrate()
        as_writer = {"user": name, "password": "secret", "charset": "utf8mb4", "autocommit": True}
        given = {**old.database.arguments, **as_writer}
        with pymysql.connect(**given) as connection, connection.cursor() as cursor:
            cursor.execute(old.statement("insert"), old.values_of(event("old-writer", "k")))
        with pytest.raises(Exception, match="INSERT command denied.*causation_id"):
            await add_as(given, event("denied", "k"))
        (grant,) = re.findall(r"GRANT INSERT \([^)]*\)\s+ON shop.postroom_outbox TO writer;", PAGE)
        old.run(grant.replace("shop.", f"{schema}.").replace("writer;", name))
        await add_as(given, event("granted", "k"))
    finally:
        old.run(f"DROP USER {name}")
    assert old.run("SELECT COUNT(*) AS n FROM postroom_outbox WHERE id = 'granted'") == [{"n": 1}]


async def add_as(arguments, new):
    connection = await asyncmy.connect(**{**arguments, "autocommit": False})
    try:
        await Outbox().add(connection, new)
        await connection.commit()
    finally:
        await connection.ensure_closed()
