"""The PostgreSQL store behind pgbouncer in transaction mode.

Each transaction may run on another connection of the server: what is set for a session, prepared
or listened for stays behind with it, and belongs to whoever comes next.
"""

from __future__ import annotations

import asyncio
from uuid import uuid4

import psycopg
import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.observer import StoreTrouble
from postroom.outbox import Outbox
from postroom.store import Member, ReadRequest
from postroom.stores.postgres import PostgresNotifier, PostgresStore
from postroom.stores.postgres.floors import Floors
from postroom.testing.store.tools import ALL, FAR, Hand, event
from tests.scenario.place import QUICK, Notes, until
from tests.scenario.postgres_place import opened
from tests.servers.pgbouncer import PgBouncer

SETTINGS = (
    "enable_seqscan", "enable_bitmapscan", "enable_sort", "jit", "search_path", "lock_timeout",
    "statement_timeout", "plan_cache_mode", "default_transaction_isolation", "synchronous_commit",
)  # fmt: skip


@pytest.fixture
def schema(postgres_url):
    name = f"t_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute(f"CREATE SCHEMA {name}")
        yield name
        server.execute(f"DROP SCHEMA {name} CASCADE")


@pytest.fixture
def url(pgbouncer_url, schema):
    return f"{pgbouncer_url}?schema={schema}"


async def add(postgres_url, schema, *events):
    async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
        await Outbox(schema=schema).add_many(connection, events)


def settings_of(url):
    """What the sessions behind the pooler are set to, several of them."""
    seen = set()
    connections = [psycopg.connect(url, prepare_threshold=None) for _ in range(3)]
    for connection in connections:  # all in a transaction: each has a session of its own
        row = connection.execute(
            "SELECT " + ", ".join(f"current_setting('{name}')" for name in SETTINGS)
        ).fetchone()
        seen.add(row)
    for connection in connections:
        connection.rollback()
        connection.close()
    return seen


@pytest.mark.req("S4.3")
@pytest.mark.promise("G2", "G4", "D4")
async def test_a_relay_works_and_leaves_no_setting_behind(postgres_url, pgbouncer_url, schema, url):
    (before,) = settings_of(pgbouncer_url)
    store = PostgresStore(url)
    assert await store.migrate() == 3
    await add(postgres_url, schema, *(event(f"e{n}", f"k{n % 7}") for n in range(500)))
    broker, notes = MemoryBroker(), Notes()
    relays = [Relay(url, broker, **QUICK, observers=[notes]) for _ in range(2)]
    for relay in relays:
        await relay.start()
    await until(lambda: sum(relay.counts.done for relay in relays) == 500, 30)
    assert settings_of(pgbouncer_url) == {before}
    for relay in relays:
        await relay.stop()
    assert [fact for fact in notes.of(StoreTrouble)] == []
    for key in range(7):
        seen = [m.record.id for m in broker.messages if m.record.key == f"k{key}"]
        assert seen == [f"e{n}" for n in range(500) if n % 7 == key]
    assert settings_of(pgbouncer_url) == {before}


@pytest.mark.promise("G5")
async def test_every_call_of_the_store_works(postgres_url, schema, url):
    async with opened(url) as store:
        await store.heartbeat("main", Member("anna", healthy=True), FAR, {})
        hand = await Hand(store).take()
        await add(postgres_url, schema, event("a", "k"), event("b", "k"), event("c", "x"))
        head, follower, other = await hand.read()
        await hand.fail(head)
        await hand.settle(parked=[follower])
        await hand.stage()
        await hand.settle(done=[other])
        assert await hand.work() == ["a"]
        assert await store.repair_blocks("main", "anna", hand.held, 10) == 0
        assert await store.replay(["a", "c"]) == 2
        store._floors = Floors(slow_seconds=0.0, slow_reads=1)
        assert (
            len(await store.read(ReadRequest("main", [*ALL], 9, 9, 9_999, (), "anna", hand.held)))
            >= 1
        )
        assert (await store.stats()).blocked_keys == 0
        await store.leave("main", "anna")
        assert await store.schema() == (3, 3)
        with store.sync_transaction() as tx:
            tx.execute("SELECT 1")


@pytest.mark.promise("H3")
async def test_handlers_have_their_transactions(schema, url):
    async with opened(url) as store:

        async def handle(number):
            async with store.transaction() as tx:
                await Outbox(schema=schema).add(tx, event(f"e{number}"))

        async with asyncio.timeout(20):
            await asyncio.gather(*(handle(n) for n in range(20)))
        assert len(await Hand(store).read()) == 20


async def test_handlers_prepare_nothing_that_another_session_would_lack(url):
    async with opened(url) as store:
        async with store.transaction() as tx:
            assert tx.prepare_threshold is None
        with store.sync_transaction() as tx:
            assert tx.prepare_threshold is None


async def test_listening_hears_nothing_and_does_no_harm(url):
    async with opened(url) as store:
        while await store.wait_for_change(0.0):
            pass
        notifier = PostgresNotifier(url)
        notifier.notify()
        assert await store.wait_for_change(0.3) in (True, False)
        await asyncio.to_thread(notifier.close)


async def test_a_pooler_that_ignores_our_limits_is_as_good(postgres_url, schema):
    """By default it refuses them, and we connect without; with this setting it drops them."""
    ignoring = "ignore_startup_parameters = options"
    with PgBouncer(postgres_url, settings=ignoring) as bouncer:
        async with opened(f"{bouncer.url}?schema={schema}") as store:
            await add(postgres_url, schema, event("e", "k"))
            hand = await Hand(store).take()
            assert await hand.work() == ["e"]


async def test_a_pooler_that_is_restarted_is_found_again(postgres_url, schema):
    with PgBouncer(postgres_url) as bouncer:
        url = f"{bouncer.url}?schema={schema}"
        await PostgresStore(url).migrate()
        broker = MemoryBroker()
        async with Relay(url, broker, **QUICK, lease_seconds=2.0) as relay:
            await add(postgres_url, schema, event("before", "k"))
            await until(lambda: relay.counts.done == 1)
            await asyncio.to_thread(bouncer.restart)
            await add(postgres_url, schema, event("after", "k"))
            await until(lambda: relay.counts.done == 2, 30)
    assert list(dict.fromkeys(m.record.id for m in broker.messages)) == ["before", "after"]
