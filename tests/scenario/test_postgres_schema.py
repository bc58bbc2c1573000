"""The tables on a PostgreSQL server: made once by many, in any schema, by hand, and never by guess."""

from __future__ import annotations

import asyncio
import sys
from uuid import uuid4

import psycopg
import pytest

from postroom.errors import ConfigError, SchemaError, StoreError
from postroom.lookup import Filter
from postroom.outbox import Outbox
from postroom.store import Schema
from postroom.stores.postgres import PostgresStore
from postroom.stores.postgres.statements import load_migrations
from postroom.testing.store.tools import FAR, Hand, event, names
from tests.scenario.postgres_place import opened, own_schema
from tests.servers.postgres import Postgres


@pytest.fixture(params=["postgres_url", "postgres18_url"])
def url(request):
    with own_schema(request.getfixturevalue(request.param)) as url:
        yield url


OLD_WRITER = """
    INSERT INTO postroom_outbox (
        id, stream, lane, key_hash, type, topic, payload, content_type, size, occurred_at, created_at)
    VALUES ('before', 'main', 31, '\\x9f1c31ef8ac37eb6834aa6c30855b358', 't', 'outbox_events', 'null',
        'application/json', 4, now(), now())
    """  # of the version before this one


def run(url, *statements):
    with psycopg.connect(url, autocommit=True) as connection:
        for sql in statements:
            connection.execute(sql)


async def works(store, **where):
    """Show that an event goes all the way."""
    outbox = Outbox(**where)
    async with store.transaction() as tx:
        await outbox.add(tx, event("e", "k"))
    hand = await Hand(store).take()
    records = await hand.read()
    assert names(records) == ["e"]
    await hand.fail(records[0])
    await hand.stage()
    assert len(await hand.settle(done=await hand.read())) == 64
    assert (await store.stats()).counts["done"] == 1
    assert await store.streams() == ["main"]
    assert await store.replay(["e"]) == 1
    return True


@pytest.mark.slow
@pytest.mark.req("S4.1")
async def test_ten_processes_at_once_make_one_set_of_tables(url):
    command = [sys.executable, "-m", "postroom", "migrate", "up", "--store", url]
    started = [
        await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        for _ in range(10)
    ]
    said = [(await process.communicate())[0] for process in started]
    assert [process.returncode for process in started] == [0] * 10
    assert all(b"is at version 3" in line for line in said)
    async with opened(url, migrate=False) as store:
        assert await works(store)


@pytest.mark.req("S4.1")
async def test_ten_stores_at_once_in_a_schema_that_is_not_there_yet(postgres_url):
    schema = f"t_{uuid4().hex[:12]}"
    stores = [PostgresStore(f"{postgres_url}?schema={schema}") for _ in range(10)]
    try:
        assert set(await asyncio.gather(*(store.migrate() for store in stores))) == {3}
        async with opened(f"{postgres_url}?schema={schema}", migrate=False) as store:
            assert await works(store, schema=schema)
    finally:
        run(postgres_url, f"DROP SCHEMA {schema} CASCADE")


async def test_a_schema_and_a_prefix_of_ones_own_stand_beside_others(url, postgres_url):
    schema = f"Order_{uuid4().hex[:8]}".lower()
    given = [{}, {"prefix": "shop_"}, {"schema": schema}, {"schema": schema, "prefix": "select_"}]
    server = url if "t_" in url else postgres_url
    try:
        for where in given:
            options = "&".join(f"{name}={value}" for name, value in where.items())
            async with opened(f"{server}&{options}") as store:
                assert await works(store, **where)
        run(server, "SELECT 1 FROM shop_outbox", f'SELECT 1 FROM "{schema}".select_outbox')
    finally:
        run(server, f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


@pytest.mark.parametrize("bad", ["a b", 'x"; DROP TABLE y; --', "ä", "9a", "a" * 64, "Upper"])
def test_a_schema_is_a_plain_identifier(bad):
    with pytest.raises(ConfigError, match="schema"):
        PostgresStore("postgresql:", schema=bad)


async def test_a_caller_with_another_search_path_reads_the_same_tables(url):
    """The functions know their tables, wherever the connection looks first."""
    async with opened(url) as store:
        await works(store)
        schema = store.settings.server_options.partition("=")[2]
    elsewhere = url.partition("?")[0] + f"?schema={schema}"
    async with opened(elsewhere, migrate=False) as store:
        assert names(await Hand(store).read()) == ["e"]


async def test_the_sql_can_be_run_by_hand(url):
    store = PostgresStore(url)
    assert await store.schema() == Schema(0, 3)
    run(url, store.migration_sql())
    assert await store.schema() == Schema(3, 3)
    async with opened(url, migrate=False) as by_hand:
        assert await works(by_hand)
        assert len(await by_hand.identity()) == 36
    assert store.migration_sql(3) == ""
    assert "CREATE FUNCTION" in store.migration_sql(1)
    assert "CREATE TABLE postroom_outbox" not in store.migration_sql(1)


async def test_so_can_the_sql_for_a_schema(postgres_url):
    schema = f"t_{uuid4().hex[:12]}"
    store = PostgresStore(f"{postgres_url}?schema={schema}")
    try:
        run(postgres_url, store.migration_sql())
        async with opened(f"{postgres_url}?schema={schema}", migrate=False) as by_hand:
            assert await works(by_hand, schema=schema)
    finally:
        run(postgres_url, f"DROP SCHEMA IF EXISTS {schema} CASCADE")


async def test_tables_of_an_older_version_are_brought_up_to_date_and_keep_their_rows(url):
    first, *_ = load_migrations("postroom_")
    run(url, first.script, "INSERT INTO postroom_meta VALUES ('schema_version', '1')")
    with psycopg.connect(url) as connection:
        connection.execute(OLD_WRITER)
    with pytest.raises(SchemaError, match="have version 1; version 3 is required; run: postroom"):
        await PostgresStore(url).open()
    async with opened(url) as store:
        assert names(await store.find(Filter())) == ["before"]


async def test_tables_of_a_newer_version_are_left_alone(url):
    store = PostgresStore(url)
    await store.migrate()
    run(url, "UPDATE postroom_meta SET value = '99' WHERE name = 'schema_version'")
    for call in (store.open, store.migrate):
        with pytest.raises(SchemaError, match="newer postroom; this one knows 3"):
            await call()
    assert await store.schema() == Schema(99, 3)


async def test_a_database_without_utf8_is_refused(postgres_url):
    name = f"t_{uuid4().hex[:12]}"
    run(
        postgres_url,
        f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
    )
    try:
        with pytest.raises(SchemaError, match="encoding is LATIN1"):
            await PostgresStore(f"{postgres_url.rpartition('/')[0]}/{name}").migrate()
    finally:
        run(postgres_url, f"DROP DATABASE {name}")


async def test_a_search_path_without_a_schema_is_told(postgres_url):
    with pytest.raises(SchemaError, match="no schema of the search_path exists"):
        await PostgresStore(f"{postgres_url}?options=-csearch_path%3Dnowhere").migrate()


async def test_illegal_states_cannot_be_stored(url):
    async with opened(url) as store:
        await works(store)
    for change in (
        "stage = 'lost'", "state = 'done'", "stage = 'over'", "stage = 'waiting'", "lane = 64",
        "payload = NULL", "payload_bytes = 'x'", "attempts = -1", "key_hash = 'short'",
        "state = 'sent'",
    ):  # fmt: skip
        with pytest.raises(psycopg.errors.CheckViolation):
            run(url, f"UPDATE postroom_outbox SET {change}")
    with pytest.raises(psycopg.errors.GeneratedAlways):
        run(url, "UPDATE postroom_outbox SET seq = 7")


class Standby(Postgres):
    """A read replica of another server."""

    def __init__(self, primary):
        super().__init__()
        self.primary = primary

    def prepare(self):
        self.run([self.programs() / "pg_basebackup", "-D", self.data, "-R", "-d", self.primary])


@pytest.mark.slow
async def test_a_read_replica_is_refused(own_server):
    primary = own_server("postgres")
    await PostgresStore(primary.url).migrate()
    with Standby(primary.url) as standby:
        with pytest.raises(StoreError, match="is a read replica"):
            await PostgresStore(standby.url).open()
        both = primary.url.replace("@", f"@127.0.0.1:{standby.port},") + "?target_session_attrs="
        async with opened(both + "read-write", migrate=False) as store:
            assert await works(store)


async def test_the_store_must_be_open_and_can_be_opened_again(url):
    store = PostgresStore(url)
    for call in (
        lambda: store.streams(),
        lambda: store.wait_for_change(0),
        lambda: Hand(store).read(),
    ):
        with pytest.raises(StoreError, match="not open"):
            await call()
    with pytest.raises(StoreError, match="not open"):
        store.transaction()
    await store.migrate()
    for _ in range(2):
        await store.open()
        await store.open()
        await store.take("main", "anna", [1], FAR)
        assert await store.wait_for_change(0.01) in (True, False)
        await store.close()
        await store.close()
