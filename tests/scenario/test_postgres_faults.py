"""Connections that break and servers that die, on PostgreSQL: nothing lost, nothing out of order."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import psycopg
import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.errors import SchemaError, StoreError, StoreRetryableError, StoreUnknownError
from postroom.event import Event
from postroom.lookup import Filter
from postroom.observer import StoreTrouble
from postroom.outbox import Outbox
from postroom.store import Member, Schema
from postroom.stores.postgres import PostgresStore, database, settle
from postroom.testing.store.tools import ALL, FAR, Hand, event, names
from tests.scenario.place import QUICK, Notes, Stop, first_seen, until
from tests.scenario.postgres_place import opened, own_schema, writing
from tests.servers.proxy import Proxy


@pytest.fixture
def url(postgres_url):
    with own_schema(postgres_url) as url:
        yield url


@pytest.fixture
def proxy(url):
    with Proxy(urlsplit(url).port) as proxy:
        yield proxy


@pytest.fixture
async def tables(url):
    await PostgresStore(url).migrate()


@pytest.fixture
async def store(tables, proxy, url):
    """A store that reaches its server through the proxy."""
    async with opened(proxy.url_for(url), migrate=False) as store:
        yield store


async def add(url, *added):
    async with writing(url) as connection:
        await Outbox().add_many(connection, added)


def run(url, sql):
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchall() if cursor.description else []


def states(url):
    return [state for (state,) in run(url, "SELECT state FROM postroom_outbox ORDER BY seq")]


def all_done(url):
    return set(states(url)) == {"done"}


def expected(count, keys):
    return {f"k{key}": [f"e{n}" for n in range(count) if n % keys == key] for key in range(keys)}


def by_key(broker, keys):
    """What was first seen of each key, in order."""
    seen = first_seen(broker)
    return {f"k{key}": [i for i in seen if int(i[1:]) % keys == key] for key in range(keys)}


def numbered(start, count, keys=7):
    return [Event("t", id=f"e{n}", key=f"k{n % keys}") for n in range(start, start + count)]


# -- one call -------------------------------------------------------------------------------------
@pytest.mark.promise("L5")
async def test_a_settle_whose_answer_is_lost_is_unknown_and_can_be_repeated(url, store, proxy):
    await add(url, event("e", "k"))
    hand = await Hand(store).take()
    settlement = hand.settlement(done=await hand.read())
    proxy.swallow("replies")
    settling = asyncio.create_task(store.settle(settlement))
    await until(lambda: all_done(url))
    proxy.heal()
    with pytest.raises(StoreUnknownError, match="was lost"):
        await settling
    settlement.leases = await store.retake("main", "anna", hand.held, FAR)
    assert await store.settle(settlement) == set(ALL)
    assert states(url) == ["done"]


@pytest.mark.promise("L5")
async def test_a_settle_that_did_not_arrive_is_unknown_too(url, store, proxy):
    await add(url, event("e", "k"))
    hand = await Hand(store).take()
    records = await hand.read()
    proxy.cut_after(10, "requests")
    with pytest.raises(StoreUnknownError):
        await hand.settle(done=records)
    assert states(url) == ["pending"]
    hand.held = await store.retake("main", "anna", hand.held, FAR)
    assert await hand.settle(done=records) == set(ALL)


@pytest.mark.promise("L5")
async def test_a_connection_lost_before_the_commit_has_changed_nothing(
    url, store, proxy, monkeypatch
):
    await add(url, event("e", "k"))
    hand = await Hand(store).take()
    records = await hand.read()
    fence = settle.fence

    async def then_cut(*args):
        lanes = await fence(*args)
        proxy.cut()
        return lanes

    monkeypatch.setattr(settle, "fence", then_cut)
    with pytest.raises(StoreRetryableError, match="was lost"):
        await hand.settle(done=records, returned=records)
    monkeypatch.undo()
    assert states(url) == ["pending"]
    assert await hand.settle(done=records) == set(ALL)


@pytest.mark.promise("L5")
async def test_a_commit_whose_answer_is_lost_is_unknown(url, store, proxy, monkeypatch):
    await add(url, event("e", "k"))
    hand = await Hand(store).take()
    records = await hand.read()
    advance = settle.advance

    async def then_silence(*args):
        result = await advance(*args)
        proxy.swallow("replies")
        return result

    monkeypatch.setattr(settle, "advance", then_silence)
    settling = asyncio.create_task(hand.settle(done=records, returned=records))
    await until(lambda: all_done(url))
    proxy.heal()
    with pytest.raises(StoreUnknownError):
        await settling


@pytest.mark.parametrize("direction", ["requests", "replies"])
async def test_reads_and_renewals_that_are_cut_off_can_be_repeated(url, store, proxy, direction):
    await add(url, *(event(f"e{n}", "k") for n in range(50)))
    hand = await Hand(store).take()
    member, cuts = Member("anna", healthy=True), 0
    for count in range(1, 2_000, 130):
        proxy.cut_after(count, direction)
        for call in (lambda: hand.read(), lambda: store.heartbeat("main", member, FAR, hand.held)):
            try:
                await call()
            except StoreError:
                cuts += 1
    proxy.heal()
    assert cuts >= 5
    assert len(await hand.read()) == 50
    assert all(
        lease.live for lease in (await store.heartbeat("main", member, FAR, hand.held)).leases
    )


async def test_a_server_that_says_nothing_is_given_up_in_time(url, tables, proxy, monkeypatch):
    monkeypatch.setattr(database, "_GRACE_SECONDS", 0.2)
    limits = "&statement_seconds=0.3&connect_seconds=2"
    async with opened(proxy.url_for(url) + limits, migrate=False) as store:
        hand = await Hand(store).take()
        proxy.swallow("replies")
        async with asyncio.timeout(5):
            with pytest.raises(StoreUnknownError, match=r"no answer from PostgreSQL within 0\.5 s"):
                await hand.read()
        proxy.heal()
        assert await hand.read() == []


async def test_so_is_one_that_is_silent_while_a_call_is_cancelled(url, tables, proxy, monkeypatch):
    monkeypatch.setattr(database, "_GRACE_SECONDS", 0.2)
    limits = "&statement_seconds=0.3&connect_seconds=2"
    async with opened(proxy.url_for(url) + limits, migrate=False) as store:
        proxy.swallow("replies")
        reading = asyncio.create_task(Hand(store).read())
        await asyncio.to_thread(proxy.wait_swallowed)
        reading.cancel()
        async with asyncio.timeout(10):
            with pytest.raises(asyncio.CancelledError):
                await reading
        proxy.heal()
        assert await Hand(store).read() == []


async def test_a_cancelled_call_leaves_the_store_usable(url, tables):
    async with opened(url + "&pool_size=2", migrate=False) as store:
        await store.take("main", "anna", ALL, FAR)
        await add(url, event("e", "k"))
        with psycopg.connect(url) as connection:
            connection.execute("SELECT lane FROM postroom_lease FOR UPDATE")
            waiting = asyncio.create_task(store.bury(["e"], "no use"))  # takes its lane away
            await until(lambda: waiting_for_locks(url))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        for _ in range(4):
            assert [record.state for record in await store.find(Filter())] == ["pending"]


def waiting_for_locks(url):
    return run(
        url,
        "SELECT 1 FROM pg_locks AS w JOIN pg_locks AS r USING (pid) WHERE NOT w.granted "
        "AND r.relation = CAST('postroom_lease' AS regclass)",
    )


@pytest.mark.promise("L5")
@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("lock_seconds=0.2&statement_seconds=5", "lock timeout"),
        ("lock_seconds=5&statement_seconds=0.2", "statement timeout"),
    ],
)
async def test_a_call_that_waits_too_long_has_changed_nothing(url, tables, limits, said):
    async with opened(f"{url}&{limits}", migrate=False) as store:
        await add(url, event("e", "k"))
        hand = await Hand(store).take()
        records = await hand.read()
        with psycopg.connect(url) as connection:
            connection.execute("SELECT lane FROM postroom_lease FOR UPDATE")
            with pytest.raises(StoreRetryableError, match=said):
                await hand.settle(done=records)
            with pytest.raises(StoreRetryableError, match=said):
                await hand.settle(done=records, returned=records)
        assert await hand.settle(done=records) == set(ALL)


async def test_a_deadlock_is_a_conflict(url, tables):
    async with opened(url + "&lock_seconds=20", migrate=False) as store:
        await store.take("main", "anna", ALL, FAR)

        async def lock(lane, then):
            async with store.database.change() as session:
                await session.run("release", stream="main", lanes=f"{{{lane}}}")
                both.append(lane)
                await until(lambda: len(both) == 2)
                await session.run("release", stream="main", lanes=f"{{{then}}}")

        both = []
        ended = await asyncio.gather(lock(1, 2), lock(2, 1), return_exceptions=True)
        (error,) = [result for result in ended if result is not None]
        assert isinstance(error, StoreRetryableError)
        assert "deadlock" in str(error)


async def test_a_server_that_is_away_is_a_store_error(url, proxy):
    store = PostgresStore(proxy.url_for(url) + "&connect_seconds=2")
    proxy.refuse()
    for call in (store.open, store.migrate, store.schema):
        with pytest.raises(StoreError, match="cannot connect to PostgreSQL"):
            await call()
    await store.close()


async def test_so_is_one_that_goes_away_and_comes_back(url, tables, proxy):
    async with opened(proxy.url_for(url) + "&connect_seconds=2", migrate=False) as store:
        proxy.refuse()
        for _ in range(2):
            with pytest.raises(StoreError, match="PostgreSQL"):
                await store.streams()
        proxy.accept()

        async def answers():
            try:
                return await store.streams() == []
            except StoreError:
                return False

        await until(answers)


@pytest.mark.req("S4.1")
async def test_a_migration_that_is_cut_off_can_be_run_again(url, proxy):
    """It is cut off after more and more bytes of the server's answers, until it comes through."""
    store = PostgresStore(proxy.url_for(url))
    cuts = 0
    for count in range(350, 4_000, 45):
        proxy.cut_after(count, "replies")
        try:
            await store.migrate()
        except StoreError:
            assert (await PostgresStore(url).schema()).current in (0, 3)
            cuts += 1
            continue
        break
    proxy.heal()
    assert cuts > 5
    assert await store.migrate() == 3
    assert await store.schema() == Schema(3, 3)


# -- a relay --------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.req("S1.8")
@pytest.mark.promise("G2", "G4", "L5")
@pytest.mark.parametrize("direction", ["requests", "replies"])
async def test_connections_that_are_cut_anywhere_lose_and_invert_nothing(
    url, tables, proxy, direction
):
    dice, broker, keys, count = random.Random(direction), MemoryBroker(), 7, 0
    relay = Relay(proxy.url_for(url), broker, **QUICK, lease_seconds=2.0)
    async with relay:
        for _ in range(40):
            proxy.cut_after(dice.randrange(1, 9_000), direction)
            await add(url, *numbered(count, 10))
            count += 10
            await until(lambda: len(first_seen(broker)) >= count - 30, 30)
        proxy.heal()
        await until(lambda: len(first_seen(broker)) == count, 30)
        await until(lambda: all_done(url), 30)
    assert by_key(broker, keys) == expected(count, keys)


async def test_one_lost_connection_has_the_idle_ones_tried_before_they_are_used(store, proxy):
    """After a fail-over all of them are dead: one call pays for it, not as many as there are."""
    async with store.database.change(), store.database.change(), store.database.change():
        await store.streams()
    proxy.cut()
    with pytest.raises(StoreError):
        await store.streams()
    for _ in range(5):
        assert await store.streams() == []


@pytest.mark.slow
@pytest.mark.req("S1.8")
@pytest.mark.promise("G2", "G4")
async def test_backends_that_are_terminated_lose_and_invert_nothing(url, tables):
    broker, count = MemoryBroker(), 0
    async with Relay(url + "&application_name=victim", broker, **QUICK, lease_seconds=2.0):
        for _ in range(30):
            await add(url, *numbered(count, 10))
            count += 10
            run(
                url,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'victim'",
            )
            await until(lambda: len(first_seen(broker)) >= count - 50, 30)
        await until(lambda: len(first_seen(broker)) == count, 30)
        await until(lambda: all_done(url), 30)
    assert by_key(broker, 7) == expected(count, 7)


@pytest.mark.slow
@pytest.mark.req("S1.8")
@pytest.mark.promise("G2", "G4")
async def test_a_server_that_is_killed_and_comes_back_finds_the_relay_waiting(own_server):
    server, broker, notes = own_server("postgres18"), MemoryBroker(), Notes()
    await PostgresStore(server.url).migrate()
    relay = Relay(server.url, broker, **QUICK, lease_seconds=2.0, observers=[notes])
    async with relay:
        for turn in range(3):
            await add(server.url, *numbered(turn * 100, 100))
            if turn == 2:
                await until(lambda: len(broker.messages) > 210, 30)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
        await until(lambda: len(first_seen(broker)) == 300, 30)
        await until(lambda: all_done(server.url), 30)
        assert relay.is_running
    assert by_key(broker, 7) == expected(300, 7)
    assert notes.of(StoreTrouble)


@pytest.mark.req("S1.8")
async def test_a_relay_waits_for_a_server_that_is_away_at_the_start(url, tables, proxy):
    await add(url, event("e", "k"))
    proxy.refuse()
    broker, notes = MemoryBroker(), Notes()
    relay = Relay(proxy.url_for(url), broker, **QUICK, observers=[notes])
    running = asyncio.create_task(relay.run())
    await until(lambda: notes.of(StoreTrouble))
    proxy.accept()
    await until(lambda: first_seen(broker) == ["e"])
    assert len(notes.of(StoreTrouble)) == 1
    await relay.stop()
    await running


@pytest.mark.promise("G3", "L5")
async def test_a_settle_that_meets_a_lock_is_repeated_and_nothing_is_sent_again(url, tables):
    broker, notes = MemoryBroker(), Notes()
    await add(url, event("e", "k"))
    with psycopg.connect(url) as connection:
        connection.execute("SELECT 1 FROM postroom_outbox FOR UPDATE")
        async with Relay(url + "&lock_seconds=0.3", broker, **QUICK, observers=[notes]) as relay:
            await until(lambda: notes.of(StoreTrouble))
            connection.rollback()
            await until(lambda: relay.counts.done == 1)
    assert [m.record.id for m in broker.messages] == ["e"]
    assert {t.doing for t in notes.of(StoreTrouble)} == {"settling (each lane separately)"}


@pytest.mark.promise("G2", "R6")
async def test_a_long_transaction_elsewhere_does_not_stop_delivery(url, tables):
    await add(url, event("seen", "k"))
    broker = MemoryBroker()
    async with AsyncExitStack() as late:
        with psycopg.connect(url) as looker:
            looker.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            looker.execute("SELECT * FROM postroom_outbox")
            writer = await late.enter_async_context(writing(url))
            await Outbox().add(writer, event("late", "k"))
            async with Relay(url, broker, **QUICK) as relay:
                await until(lambda: relay.counts.done == 1)
                await add(url, *(event(f"e{n}", f"k{n}") for n in range(300)))
                await until(lambda: relay.counts.done == 301)
                await late.aclose()
                await until(lambda: relay.counts.done == 302)
            pending = "SELECT count(*) FROM postroom_outbox WHERE state = 'pending'"
            assert looker.execute(pending).fetchall() == [(1,)]
    assert first_seen(broker)[-1] == "late"


@pytest.mark.promise("L1")
async def test_who_is_frozen_in_a_settle_is_put_out_by_the_server(url, tables, monkeypatch):
    """Its locks go with its session, and its lanes are free for others."""
    monkeypatch.setattr(database, "_GRACE_SECONDS", 60)
    async with (
        opened(url + "&statement_seconds=0.5", migrate=False) as store,
        opened(url, migrate=False) as other,
    ):
        await add(url, event("e", "k"))
        hand = await Hand(store).take(ALL, 0.2)
        stop, fence = Stop(), settle.fence

        async def frozen(*args):
            lanes = await fence(*args)
            await stop()
            return lanes

        monkeypatch.setattr(settle, "fence", frozen)
        records = await hand.read()
        settling = asyncio.create_task(hand.settle(done=records, returned=records))
        await stop.reached.wait()
        await until(lambda: other.take("main", "bert", ALL, 60))
        stop.released.set()
        with pytest.raises(StoreRetryableError):
            await settling
        assert names(await Hand(other, "bert").read()) == ["e"]


# -- tables ---------------------------------------------------------------------------------------
async def test_missing_tables_are_named(url):
    with pytest.raises(SchemaError, match="postroom migrate --store postgresql://"):
        await PostgresStore(url).open()


async def test_tables_that_vanish_are_named(url):
    async with opened(url) as store:
        run(url, "DROP TABLE postroom_outbox CASCADE")
        with pytest.raises(SchemaError, match="postroom migrate"):
            await store.find(Filter())


async def test_a_database_that_is_not_there_is_named(url):
    with pytest.raises(StoreError, match='database "nowhere" does not exist'):
        await PostgresStore(url.replace("/postgres?", "/nowhere?")).open()
