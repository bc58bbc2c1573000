"""The tables on MariaDB: made by many at once, checked, readable, and closed to what makes no sense."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from hashlib import md5

import pymysql
import pytest

from postroom.errors import SchemaError, StoreRetryableError
from postroom.event import Event
from postroom.lookup import Filter
from postroom.outbox import Outbox
from postroom.store import Schema
from postroom.stores.mysql import MysqlStore, schema
from postroom.stores.mysql.statements import cut
from postroom.testing.broker_tools import HOSTILE
from tests.contract.mysql_database import own_database
from tests.scenario.place import until


@pytest.fixture
def database(mariadb_url):
    with own_database(mariadb_url) as database:
        yield database


TABLES = {
    "audit",
    "block",
    "control",
    "counter",
    "dead",
    "inbox",
    "lease",
    "member",
    "meta",
    "operation",
    "outbox",
    "outbox_readable",
}


def tables(database):
    return {name for (name,) in database.run("SHOW TABLES")}


# -- migrations -----------------------------------------------------------------------------------
@pytest.mark.req("S4.1")
def test_ten_processes_make_the_tables_at_once(database):
    code = (
        "import asyncio, sys; from postroom.registry import migrate; "
        "print(asyncio.run(migrate(sys.argv[1])))"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, database.url], stdout=subprocess.PIPE, text=True
        )
        for _ in range(10)
    ]
    assert [process.communicate(timeout=60)[0].strip() for process in started] == ["2"] * 10
    assert tables(database) == {f"postroom_{name}" for name in TABLES}
    assert database.run("SELECT name FROM postroom_meta ORDER BY name") == [
        ("outbox_id",),
        ("schema_version",),
    ]


async def test_the_version_can_be_asked_for(database):
    store = MysqlStore(database.url)
    assert await store.schema() == Schema(0, 2)
    assert tables(database) == set()
    await store.migrate()
    assert await store.schema() == Schema(2, 2)


async def test_the_sql_for_people_does_the_same(database):
    store = MysqlStore(database.url + "?prefix=by_hand_")
    database.run(*cut(store.migration_sql()))
    await store.open()
    assert len(await store.identity()) == 36
    assert await store.migrate() == 2
    await store.close()
    assert tables(database) == {f"by_hand_{name}" for name in TABLES}


async def test_tables_of_a_newer_postroom_are_left_alone(database):
    store = MysqlStore(database.url)
    await store.migrate()
    database.run("UPDATE postroom_meta SET value = '99' WHERE name = 'schema_version'")
    for call in (store.open, store.migrate):
        with pytest.raises(SchemaError, match="newer postroom"):
            await call()
    assert await store.schema() == Schema(99, 2)


async def test_who_cannot_get_the_lock_says_that_another_migrates(database, monkeypatch):
    store = MysqlStore(database.url)
    monkeypatch.setattr("postroom.stores.mysql.store._MIGRATE_SECONDS", 1)
    started, go_on = asyncio.Event(), asyncio.Event()
    version = schema.version

    async def slow(session):
        found = await version(session)
        if not started.is_set():
            started.set()
            async with MysqlStore(database.url)._once() as holder:
                await schema._lock(holder, "postroom_", 1)
                await go_on.wait()
        return found

    monkeypatch.setattr(schema, "version", slow)
    holding = asyncio.create_task(store.migrate())
    await started.wait()
    await until(lambda: locked(database))
    with pytest.raises(StoreRetryableError, match="another process"):
        await MysqlStore(database.url).migrate()
    go_on.set()
    assert await holding == 2


def locked(database):
    name = schema_lock_name(database)
    return database.run(f"SELECT IS_USED_LOCK('{name}') IS NOT NULL") == [(1,)]


def schema_lock_name(database):
    place = f"{database.name}\x00postroom_"
    return f"postroom:{md5(place.encode()).hexdigest()}"


async def test_two_prefixes_live_in_one_database(database):
    one, two = (MysqlStore(f"{database.url}?prefix={p}_") for p in ("one", "two"))
    for store in (one, two):
        await store.migrate()
        await store.open()
    async with database.writing() as connection:
        await Outbox(prefix="one_").add(connection, Event("t", id="e"))
    assert [r.id for r in await one.find(Filter())] == ["e"]
    assert await two.find(Filter()) == []
    assert await one.identity() != await two.identity()
    for store in (one, two):
        await store.close()


@pytest.mark.parametrize(("version", "ok"), [("8.0.15", False), ("8.0.16", True), ("9.4.0", True), ("10.5.9-MariaDB", False), ("10.6.0-MariaDB", True), ("11.4.2-MariaDB", True), ("5.5.5-10.5.9-MariaDB", False), ("5.5.5-10.6.0-MariaDB", True)])  # fmt: skip
def test_servers_that_are_too_old_are_refused(version, ok):
    from postroom.stores.mysql.session import flavour_of

    class Shown:
        flavour = flavour_of(version)

    Shown.version = version
    if ok:
        schema.check_server(Shown)
    else:
        with pytest.raises(SchemaError, match="too old"):
            schema.check_server(Shown)


# -- what is in them ------------------------------------------------------------------------------
@pytest.mark.req("S1.9")
async def test_people_can_read_them(database):
    async with database.store():
        event = Event(
            "order.created", {"text": "🦊\x00"}, id="ž-1", key="ключ", aggregate_type="order",
            topic="orders", headers={"h": "é"}, correlation_id="中文",
        )  # fmt: skip
        async with database.writing() as connection:
            await Outbox().add_many(connection, [event, Event("t", b"\xff\x00", id="bytes")])
    with database.connection(charset="utf8mb4") as (_, cursor):
        cursor.execute(
            "SELECT id, type, topic, `key`, aggregate_type, payload, headers, correlation_id, state, "
            "settled_at, payload_bytes FROM postroom_outbox_readable ORDER BY seq"
        )
        first, second = cursor.fetchall()
    assert first == (
        "ž-1", "order.created", "orders", "ключ", "order", '{"text":"🦊\\u0000"}', '{"h":"é"}',
        "中文", "pending", None, None,
    )  # fmt: skip
    assert second[-1] == "FF00"


@pytest.mark.promise("W10")
async def test_what_people_write_comes_back_byte_for_byte(database):
    texts = [*HOSTILE, "\u0001 \u001f", "\U0010ffff", "a\\u0000b", "\\", "'", "\ufffd", "\u2028"]
    async with database.store() as store:
        async with database.writing() as connection:
            await Outbox().add_many(
                connection,
                [Event("t", {text: [text, "\x00"]}, id=f"e{n}") for n, text in enumerate(texts)],
            )
        found = await store.find(Filter())
        assert [r.data for r in found] == [{text: [text, "\x00"]} for text in texts]
        from postroom.model.codec import encode_json

        assert [r.payload for r in found] == [encode_json({t: [t, "\x00"]}) for t in texts]


@pytest.mark.promise("W10")
async def test_ids_and_keys_differ_by_case_and_by_spaces(database):
    names = ["a", "A", "a ", "á", "a\u0301", "ａ", "ß", "ss"]
    async with database.store() as store:
        async with database.writing() as connection:
            await Outbox().add_many(connection, [Event("t", id=name, key=name) for name in names])
        assert [r.id for r in await store.find(Filter())] == names
        for name in names:
            assert (await store.get(name)).key == name
            assert [r.id for r in await store.find(Filter(key=name))] == [name]
        assert await store.bury(["a "], "one of them") == 1
        assert [r.id for r in await store.find(Filter(state="dead"))] == ["a "]


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ("lane = lane + 1", "outbox_lane"),
        ("key_hash = 'short', lane = ASCII('short') % 64", "outbox_key_hash"),
        ("attempts = -1", "outbox_attempts"),
        ("payload = NULL, size = 0", "outbox_"),
        ("payload_bytes = 'both'", "outbox_payload"),
        ("payload = CONCAT(payload, ' ')", "outbox_size"),
        ("headers = '{}'", "outbox_size"),
        ("stage = 'waiting'", "outbox_waiting"),
        ("stage = 'over'", "'shelf'"),
        ("settled_at = NOW()", "outbox_settled"),
        ("state = 'done'", "'slot'"),
        ("state = 'processing', stage = 'parked'", "outbox_stage"),
    ],
)
async def test_what_makes_no_sense_cannot_be_stored(database, change, constraint):
    async with database.store():
        async with database.writing() as connection:
            await Outbox().add(connection, Event("t", id="e", key="k"))
        with pytest.raises(pymysql.err.MySQLError, match=constraint):
            database.run(f"UPDATE postroom_outbox SET {change}")


async def test_a_lenient_server_does_not_cut_events_off(database):
    """sql_mode '' turns errors into warnings; the table's own checks stand."""
    async with database.store():
        with database.connection(charset="utf8mb4", autocommit=True) as (_, cursor):
            cursor.execute("SET sql_mode = ''")
            with pytest.raises(pymysql.err.OperationalError, match="CONSTRAINT"):
                cursor.execute(
                    "INSERT INTO postroom_outbox (id, lane, key_hash, type, topic, payload, "
                    "content_type, size, occurred_at, created_at) VALUES ('e', 0, REPEAT('\\0', 16), "
                    "'t', 't', _latin1 0xE9, 'application/json', 1, NOW(), NOW())"
                )


async def test_the_servers_limit_can_be_asked_for(database):
    async with database.store() as store:
        assert await store.max_packet_bytes() == 16_777_216


async def test_times_do_not_depend_on_the_servers_zone(database):
    """A writer and a server that think in another zone change nothing: times are UTC."""
    async with database.store() as store:
        connection_zone = "SET time_zone = '+11:00'"
        async with database.writing() as connection:
            async with connection.cursor() as cursor:
                await cursor.execute(connection_zone)
            event = Event("t", id="e", key="k")
            await Outbox().add(connection, event)
        (record,) = await store.find(Filter())
        assert record.occurred_at == event.occurred_at
        assert abs((record.created_at - event.occurred_at).total_seconds()) < 600
        assert (await store.stats()).lag_seconds < 600
