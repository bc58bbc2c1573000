"""Connections that break and servers that die, on MariaDB: nothing lost, nothing out of order."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.errors import SchemaError, StoreError, StoreRetryableError, StoreUnknownError
from postroom.event import Event
from postroom.lookup import Filter
from postroom.observer import StoreTrouble
from postroom.outbox import Outbox
from postroom.store import Schema
from postroom.stores.mysql import MysqlStore, session, settle
from postroom.testing.store.tools import ALL, Hand, event
from tests.contract.mysql_database import own_database
from tests.scenario.place import QUICK, Notes, Stop, first_seen, until
from tests.servers.proxy import Proxy


@pytest.fixture
def database(mariadb_url):
    with own_database(mariadb_url) as database:
        yield database


@pytest.fixture
def proxy(database):
    with Proxy(database.server["port"]) as proxy:
        yield proxy


async def add(database, *added):
    async with database.writing() as connection:
        await Outbox().add_many(connection, added)


def expected(count, keys):
    return {f"k{key}": [f"e{n}" for n in range(count) if n % keys == key] for key in range(keys)}


def by_key(broker, keys):
    """What was first seen of each key, in order."""
    seen = first_seen(broker)
    return {f"k{key}": [i for i in seen if int(i[1:]) % keys == key] for key in range(keys)}


# -- one call -------------------------------------------------------------------------------------
@pytest.mark.promise("L5")
async def test_a_commit_whose_answer_is_lost_is_unknown_and_can_be_repeated(database, proxy):
    async with database.store(url=proxy.url_for(database.url)) as store:
        await add(database, event("e", "k"))
        hand = await Hand(store).take()
        settlement = hand.settlement(done=await hand.read())
        fence = settle.fence

        async def then_silence(*args):
            lanes = await fence(*args)
            proxy.swallow("replies")
            return lanes

        settle.fence = then_silence
        try:
            settling = asyncio.create_task(store.settle(settlement))
            await until(lambda: all_done(database))
            proxy.heal()
            with pytest.raises(StoreUnknownError, match="unknown"):
                await settling
        finally:
            settle.fence = fence
        assert (await store.get("e")).state == "done"
        settlement.leases = await store.retake("main", "anna", hand.held, 60)
        assert await store.settle(settlement) == set(ALL)
        assert (await store.get("e")).state == "done"


@pytest.mark.promise("L5")
async def test_a_connection_lost_before_the_commit_has_changed_nothing(database, proxy):
    async with database.store(url=proxy.url_for(database.url)) as store:
        await add(database, event("e", "k"))
        hand = await Hand(store).take()
        records = await hand.read()
        fence = settle.fence

        async def then_cut(*args):
            lanes = await fence(*args)
            proxy.cut()
            return lanes

        settle.fence = then_cut
        try:
            with pytest.raises(StoreError):
                await hand.settle(done=records)
        finally:
            settle.fence = fence
        assert (await store.get("e")).state == "pending"
        hand.held = await store.retake("main", "anna", hand.held, 60)
        assert await hand.settle(done=records) == set(ALL)


async def test_a_server_that_says_nothing_is_given_up_in_time(database, proxy, monkeypatch):
    monkeypatch.setattr(session, "GRACE_SECONDS", 0.2)
    url = proxy.url_for(database.url)
    async with database.store(url=url, statement_seconds=0.3, connect_seconds=0.5) as store:
        hand = await Hand(store).take()
        proxy.swallow("replies")
        async with asyncio.timeout(5):
            with pytest.raises(StoreError, match="lost"):  # in a transaction: nothing is committed
                await store.release("main", "bert", hand.held)
            with pytest.raises(StoreError, match="lost"):
                await hand.read()
        proxy.heal()
        assert await hand.read() == []


async def test_a_statement_that_takes_too_long_is_stopped_by_the_server(database):
    async with database.store(statement_seconds=0.2) as store:
        async with store.session() as one:
            with pytest.raises(StoreRetryableError, match="timed out"):
                await one.query("SELECT SLEEP(10) FROM postroom_meta")
            assert not one.broken


async def test_a_session_that_has_rested_for_long_is_not_used_again(database):
    """The server ends it after some time: its next statement would fail."""
    async with database.store() as store:
        async with store.session() as first:
            pass
        async with store.session() as again:
            assert again is first
        first.idle_since -= session.IDLE_SECONDS / 2
        async with store.session() as fresh:
            assert fresh is not first
        assert first.broken


async def test_a_session_whose_statement_was_cancelled_is_not_used_again(database):
    """The answer is still to come: the next statement would take it for its own."""
    async with database.store(pool_size=1) as store:
        async with store.session() as one:
            waiting = asyncio.create_task(one.query("SELECT SLEEP(60)"))
            await until(lambda: threads(database, "User sleep"))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert one.broken
        async with store.session() as other:
            assert await other.query("SELECT 7") == ((7,),)


async def test_a_cancelled_call_costs_one_connection_and_no_more(database):
    async with database.store(pool_size=1) as store:
        with database.connection() as (_, cursor):
            await add(database, event("e", "k"))
            await store.take("main", "anna", ALL, 60)
            cursor.execute("SELECT lane FROM postroom_lease FOR UPDATE")
            waiting = asyncio.create_task(store.bury(["e"], "no use"))  # takes its lane away
            await until(lambda: threads(database, "Update") or threads(database, "Updating"))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert [record.state for record in await store.find(Filter())] == ["pending"]


async def test_a_server_that_is_away_is_a_store_error(database, proxy):
    url = proxy.url_for(database.url)
    proxy.refuse()
    store = MysqlStore(url + "?connect_seconds=2")
    for call in (store.open, store.migrate, store.schema):
        with pytest.raises(StoreError, match="lost|connect"):
            await call()
    await store.close()


@pytest.mark.req("S4.1")
async def test_a_migration_that_is_cut_off_can_be_run_again(database, proxy):
    """It is cut off after more and more bytes of the server's answers, until it comes through."""
    store = MysqlStore(proxy.url_for(database.url))
    cuts = 0
    for count in range(150, 4_000, 45):
        proxy.cut_after(count, "replies")
        try:
            await store.migrate()
        except StoreError:
            cuts += 1
            continue
        break
    proxy.heal()
    assert cuts > 5
    assert await store.migrate() == 2
    assert await store.schema() == Schema(2, 2)
    async with database.store() as direct:
        await add(database, event("e", "k"))
        assert [r.id for r in await direct.find(Filter())] == ["e"]
        assert len(await direct.identity()) == 36


# -- a relay --------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.req("S1.8")
@pytest.mark.promise("G2", "G4", "L5")
@pytest.mark.parametrize("direction", ["requests", "replies"])
async def test_connections_that_are_cut_anywhere_lose_and_invert_nothing(
    database, proxy, direction
):
    dice, broker, keys, count = random.Random(direction), MemoryBroker(), 7, 0
    await MysqlStore(database.url).migrate()
    relay = Relay(proxy.url_for(database.url), broker, **QUICK, lease_seconds=2.0)
    async with relay:
        for _ in range(40):
            proxy.cut_after(dice.randrange(1, 9_000), direction)
            more = range(count, count + 10)
            await add(database, *(Event("t", id=f"e{n}", key=f"k{n % keys}") for n in more))
            count += 10
            await until(lambda: len(first_seen(broker)) >= count - 30, 30)
        proxy.heal()
        await until(lambda: len(first_seen(broker)) == count, 30)
        await until(lambda: all_done(database), 30)
    assert by_key(broker, keys) == expected(count, keys)


@pytest.mark.slow
@pytest.mark.req("S1.8")
@pytest.mark.promise("G2", "G4")
async def test_connections_that_are_killed_lose_and_invert_nothing(database):
    broker, keys, count = MemoryBroker(), 7, 0
    await MysqlStore(database.url).migrate()
    async with Relay(database.url, broker, **QUICK, lease_seconds=2.0):
        for _ in range(30):
            more = range(count, count + 10)
            await add(database, *(Event("t", id=f"e{n}", key=f"k{n % keys}") for n in more))
            count += 10
            kill_connections(database)
        await until(lambda: len(first_seen(broker)) == count, 30)
        await until(lambda: all_done(database), 30)
    assert by_key(broker, keys) == expected(count, keys)


@pytest.mark.slow
@pytest.mark.req("S1.8")
@pytest.mark.promise("G2", "G4")
async def test_a_server_that_dies_and_comes_back_finds_the_relay_waiting(own_server):
    server, broker, notes, keys = own_server("mariadb"), MemoryBroker(), Notes(), 7
    with own_database(server.url) as database:
        await MysqlStore(database.url).migrate()
        relay = Relay(database.url, broker, **QUICK, lease_seconds=2.0, observers=[notes])
        async with relay:
            for turn in range(3):
                more = range(turn * 100, turn * 100 + 100)
                await add(database, *(Event("t", id=f"e{n}", key=f"k{n % keys}") for n in more))
                if turn == 2:
                    await until(lambda: len(broker.messages) > 210)
                await asyncio.to_thread(server.restart)
            await until(lambda: len(first_seen(broker)) == 300, 30)
            await until(lambda: all_done(database), 30)
            assert relay.is_running
        assert by_key(broker, keys) == expected(300, keys)
    assert notes.of(StoreTrouble)


@pytest.mark.req("S1.8")
async def test_a_relay_waits_for_a_server_that_is_away_at_the_start(database, proxy):
    await MysqlStore(database.url).migrate()
    await add(database, event("e", "k"))
    proxy.refuse()
    broker, notes = MemoryBroker(), Notes()
    relay = Relay(proxy.url_for(database.url), broker, **QUICK, observers=[notes])
    running = asyncio.create_task(relay.run())
    await until(lambda: notes.of(StoreTrouble))
    proxy.accept()
    await until(lambda: first_seen(broker) == ["e"])
    assert len(notes.of(StoreTrouble)) == 1
    await relay.stop()
    await running


@pytest.mark.promise("G3", "L5")
async def test_a_settle_that_meets_a_lock_is_repeated_and_nothing_is_sent_again(database):
    broker, notes = MemoryBroker(), Notes()
    store = MysqlStore(database.url + "?lock_seconds=1")
    await store.migrate()
    await add(database, event("e", "k"))
    with database.connection() as (connection, cursor):
        cursor.execute("SELECT 1 FROM postroom_outbox FOR UPDATE")
        async with Relay(store, broker, **QUICK, observers=[notes]) as relay:
            await until(lambda: notes.of(StoreTrouble))
            connection.rollback()
            await until(lambda: relay.counts.done == 1)
    assert [m.record.id for m in broker.messages] == ["e"]
    assert {t.doing for t in notes.of(StoreTrouble)} == {"settling (each lane separately)"}


@pytest.mark.promise("G2", "R6")
async def test_a_long_transaction_elsewhere_does_not_stop_delivery(database):
    await MysqlStore(database.url).migrate()
    await add(database, event("seen", "k"))
    broker = MemoryBroker()
    async with AsyncExitStack() as late:
        with database.connection() as (_, looker):
            looker.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            looker.execute("SELECT * FROM postroom_outbox")
            writer = await late.enter_async_context(database.writing())
            await Outbox().add(writer, event("late", "k"))
            async with Relay(database.url, broker, **QUICK) as relay:
                await until(lambda: relay.counts.done == 1)
                await add(database, *(event(f"e{n}", f"k{n}") for n in range(300)))
                await until(lambda: relay.counts.done == 301)
                await late.aclose()
                await until(lambda: relay.counts.done == 302)
            looker.execute("SELECT COUNT(*) FROM postroom_outbox WHERE state = 'pending'")
            assert looker.fetchall() == ((1,),)
    assert first_seen(broker)[-1] == "late"


@pytest.mark.promise("L1")
async def test_who_is_frozen_in_a_settle_is_put_out_by_the_server(database, monkeypatch):
    """Its locks go with its session, and its lanes are free for others."""
    monkeypatch.setattr(session, "IDLE_SECONDS", 1)
    async with database.store() as store, database.store() as other:
        await add(database, event("e", "k"))
        hand = Hand(store)
        hand.held = await store.take("main", "anna", ALL, 0.2)
        stop, fence = Stop(), settle.fence

        async def frozen(*args):
            lanes = await fence(*args)
            await stop()
            return lanes

        monkeypatch.setattr(settle, "fence", frozen)
        settling = asyncio.create_task(hand.settle(done=await hand.read()))
        async with asyncio.timeout(10):
            await stop.reached.wait()
        await until(lambda: other.take("main", "bert", ALL, 60))
        stop.released.set()
        with pytest.raises(StoreError):
            await settling
        assert (await other.get("e")).state == "pending"


# -- rights ---------------------------------------------------------------------------------------
async def test_missing_tables_and_databases_are_named(database):
    with pytest.raises(SchemaError, match="postroom migrate"):
        await MysqlStore(database.url).open()
    with pytest.raises(SchemaError, match="CREATE DATABASE"):
        await MysqlStore(database.url + "_not").open()


async def test_tables_that_vanish_are_named(database):
    async with database.store() as store:
        database.run("DROP TABLE postroom_outbox")
        with pytest.raises(SchemaError, match="postroom migrate"):
            await store.find(Filter())


async def test_a_password_that_is_wrong_is_told_with_the_grant(database):
    url = database.url.replace("//root@", "//nobody:wrong@")
    with pytest.raises(StoreError, match="GRANT SELECT, INSERT, UPDATE, DELETE") as caught:
        await MysqlStore(url).open()
    assert "wrong" not in str(caught.value)


async def test_a_relay_needs_these_rights_and_no_others(database):
    await MysqlStore(database.url).migrate()
    user = f"u{database.name[-12:]}"  # never a number
    await add(database, event("e", "k"))
    try:
        database.run(
            f"CREATE USER {user} IDENTIFIED BY 'pw'",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database.name}.* TO {user}",
        )
        url = database.url.replace("//root@", f"//{user}:pw@")
        broker = MemoryBroker()
        assert (await Relay(url, broker).drain()).done == 1
        with pytest.raises(StoreError, match="lacks|denied"):
            store = MysqlStore(url)
            await store.open()
            try:
                async with store.session() as one:
                    await one.execute("CREATE TABLE more (id INT)")
            finally:
                await store.close()
        database.run(f"REVOKE UPDATE ON {database.name}.* FROM {user}")
        await add(database, event("f", "k"))
        store = MysqlStore(url)
        await store.open()
        try:
            with pytest.raises(StoreError, match="UPDATE command denied.*GRANT"):
                await store.bury(["f"], "no")
        finally:
            await store.close()
    finally:
        database.run(f"DROP USER IF EXISTS {user}")


@pytest.mark.req("S4.2")
async def test_a_writer_needs_to_insert_and_no_more(database):
    import asyncmy

    await MysqlStore(database.url).migrate()
    user = f"u{database.name[-12:]}"  # never a number
    try:
        database.run(
            f"CREATE USER {user} IDENTIFIED BY 'pw'",
            f"GRANT INSERT ON {database.name}.postroom_outbox TO {user}",
            f"GRANT SELECT, INSERT, UPDATE ON {database.name}.postroom_counter TO {user}",
        )
        login = {**database.arguments, "user": user, "password": "pw"}
        connection = await asyncmy.connect(**login, charset="utf8mb4")
        async with connection:
            await connection.begin()
            await Outbox().add(connection, event("plain", "k"))
            await Outbox(ordering="strict").add(connection, event("strict", "k"))
            await connection.commit()
    finally:
        database.run(f"DROP USER IF EXISTS {user}")
    assert database.run("SELECT id, kseq FROM postroom_outbox ORDER BY seq") == [
        (b"plain", None),
        (b"strict", 1),
    ]


async def test_a_read_only_server_is_told_apart(own_server):
    server = own_server("mariadb")
    with own_database(server.url) as database:
        await MysqlStore(database.url).migrate()
        database.run(
            "CREATE USER relay IDENTIFIED BY 'pw'",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database.name}.* TO relay",
            "SET GLOBAL read_only = 1",
        )
        store = MysqlStore(database.url.replace("//root@", "//relay:pw@"))
        await store.open()
        try:
            with pytest.raises(StoreError, match="primary"):
                await store.take("main", "anna", ALL, 60)
        finally:
            await store.close()
            database.run("SET GLOBAL read_only = 0")


# -- looking --------------------------------------------------------------------------------------
def all_done(database):
    return database.run("SELECT 1 FROM postroom_outbox WHERE state <> 'done'") == []


def threads(database, state):
    return database.run(
        "SELECT id FROM information_schema.processlist "
        f"WHERE db = '{database.name}' AND state LIKE '{state}%' AND id <> CONNECTION_ID()"
    )


def kill_connections(database):
    found = database.run(
        "SELECT id FROM information_schema.processlist "
        f"WHERE db = '{database.name}' AND id <> CONNECTION_ID()"
    )
    for (number,) in found:
        try:
            database.run(f"KILL {number}")
        except Exception as error:  # gone already
            assert error.args[0] == 1094
