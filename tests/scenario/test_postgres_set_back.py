"""A PostgreSQL that loses committed transactions: a replica that lagged is promoted, or a backend is
killed while commits do not wait for the disk. Numbers are given a second time. What is in the
database afterwards is sent, whatever a relay remembers of the numbers (G2).
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager, closing, suppress

import psycopg
import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.handlers.handlers import Handlers
from postroom.engine.relay.relay import Relay
from postroom.event import Event
from postroom.observer import EffectsLost, Vanished
from postroom.outbox import Outbox
from postroom.stores.postgres import PostgresStore
from postroom.stores.postgres.floors import Floors
from tests.scenario.place import QUICK, Notes, ids, until
from tests.scenario.postgres_place import opened
from tests.servers.postgres import PostgresReplica
from tests.servers.proxy import Proxy

LOST = [f"old{n}" for n in range(120)]
NEW = [f"new{n}" for n in range(200)]

WRITABLE = "target_session_attrs=read-write"


async def write(url, names):
    """Write events, a transaction for each."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        for name in names:
            async with connection.transaction():
                await Outbox().add(connection, Event("t", id=name, key=name))


def rows(url, sql):
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchall() if cursor.description else []


def numbers_of(url):
    return dict(rows(url, "SELECT id, seq FROM postroom_outbox"))


@asynccontextmanager
async def relaying(store, broker, **settings):
    notes = Notes()
    relay = Relay(store, broker, observers=[notes], **{**QUICK, **settings})
    async with relay:
        yield relay, notes


async def lose_and_go_on(url_before, url_after, proxies, relay, broker, harm):
    """Have LOST sent and not yet confirmed, do the harm, and write NEW before the relay is back."""
    hold = broker.hold()
    await write(url_before, LOST)
    await until(lambda: relay.vitals.in_flight == len(LOST))
    before = numbers_of(url_before)
    for proxy in proxies:
        proxy.refuse()
    hold.release()
    await until(lambda: set(ids(broker)) >= set(LOST))
    await asyncio.to_thread(harm)
    lost = {name: before[name] for name in before.keys() - numbers_of(url_after).keys()}
    await write(url_after, NEW)
    after = numbers_of(url_after)
    assert set(lost.values()) & {after[name] for name in NEW}, "no number was given twice"
    for proxy in proxies:
        proxy.accept()
    return {name for name in lost if name in LOST}


async def all_sent(url, broker, relay, notes, lost, keep_done_seconds):
    await until(lambda: set(NEW) <= set(ids(broker)), 60)
    await until(lambda: relay.vitals.in_flight == 0 and relay.counts.vanished, 60)
    unsettled = "SELECT id FROM postroom_outbox WHERE stage <> 'over'"
    await until(lambda: rows(url, unsettled) == [], 60)
    vanished = [name for fact in notes.of(Vanished) for name in fact.ids]
    assert set(vanished) <= lost
    assert relay.counts.vanished == len(vanished) > 0
    if keep_done_seconds:  # else those whose numbers are free may have been deleted as done
        assert set(vanished) == lost


@pytest.mark.promise("G2")
async def test_a_replica_that_lagged_is_promoted(own_server, keep_done_seconds=3600.0):  # E-1
    primary = own_server("postgres")
    with PostgresReplica(primary=primary) as replica, Proxy(primary.port) as old:
        with Proxy(replica.port) as new:
            hosts = f"127.0.0.1:{old.port},127.0.0.1:{new.port}"
            url = f"postgresql://postgres@{hosts}/postgres?{WRITABLE}"
            await PostgresStore(primary.url).migrate()
            store, broker = PostgresStore(url), MemoryBroker()
            await store.open()
            settings = {"keep_done_seconds": keep_done_seconds, "batch_size": 1_000}
            try:
                async with relaying(store, broker, **settings) as (relay, notes):
                    await write(primary.url, [f"early{n}" for n in range(10)])
                    await until(lambda: relay.counts.done == 10)
                    await asyncio.to_thread(replica.wait_caught_up)
                    await asyncio.to_thread(replica.cut)

                    def fail_over():
                        primary.kill()
                        replica.promote()

                    lost = await lose_and_go_on(
                        primary.url, replica.url, [old, new], relay, broker, fail_over
                    )
                    assert lost == set(LOST)
                    await all_sent(replica.url, broker, relay, notes, lost, keep_done_seconds)
            finally:
                await store.close()


def crash(url):
    """Kill a backend: PostgreSQL ends all connections and recovers under the same postmaster.

    What its log has in memory alone is lost. The process that writes it is frozen before, see
    `forgetful`; it goes on when the server has told it to end.
    """
    (writer,) = rows(url, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
    with psycopg.connect(url, autocommit=True) as connection:
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    while True:
        try:
            now = rows(url, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
            if now and now[0] != writer:  # it has recovered
                return
        except psycopg.OperationalError as error:
            if "recovery mode" in str(error):
                with suppress(ProcessLookupError):
                    os.kill(writer[0], signal.SIGCONT)


@asynccontextmanager
async def forgetful(own_server):
    """A server whose commits do not wait for the disk, and a store behind a proxy."""
    server = own_server("postgres")
    rows(server.url, "ALTER SYSTEM SET synchronous_commit = off")
    rows(server.url, "SELECT pg_reload_conf()")
    with Proxy(server.port) as proxy:
        async with opened(proxy.url_for(server.url)) as store:
            yield server.url, store, proxy


def stop_flushing(url):
    """From now on commits are in memory only; what was committed before is on the disk."""
    rows(url, "CHECKPOINT")
    writer = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"
    os.kill(rows(url, writer)[0][0], signal.SIGSTOP)


@pytest.mark.promise("G2")
async def test_a_crash_loses_commits_that_did_not_wait_for_the_disk(
    own_server, keep_done_seconds=0.0
):  # E-1
    async with forgetful(own_server) as (url, store, proxy):
        broker = MemoryBroker()
        settings = {"keep_done_seconds": keep_done_seconds, "batch_size": 1_000}
        async with relaying(store, broker, **settings) as (relay, notes):
            await until(lambda: relay.vitals.lanes == 64)
            stop_flushing(url)
            lost = await lose_and_go_on(url, url, [proxy], relay, broker, lambda: crash(url))
            assert lost == set(LOST)
            await all_sent(url, broker, relay, notes, lost, keep_done_seconds)


@pytest.mark.promise("G2", "R6")
async def test_a_floor_does_not_outlive_a_crash(own_server):  # E-3
    """The sequence goes back under the same postmaster, below floors that are in use."""
    async with forgetful(own_server) as (url, store, _proxy):
        store._floors = Floors(slow_seconds=0.0, slow_reads=1, pause=0.0)
        broker = MemoryBroker()
        async with relaying(store, broker, keep_done_seconds=0.0) as (relay, _):
            await until(lambda: relay.vitals.lanes == 64)
            stop_flushing(url)
            started = rows(url, "SELECT pg_postmaster_start_time()")
            await write(url, LOST)
            await until(lambda: relay.counts.done == len(LOST))
            lanes = store._floors._streams["main"].values()
            await until(lambda: any(lane.floor > len(LOST) for lane in lanes))
            floor = max(lane.floor for lane in lanes)
            await asyncio.to_thread(crash, url)
            assert rows(url, "SELECT pg_postmaster_start_time()") == started
            # How much of the log was lost is not ours to say: some page may have been written.
            new = NEW[:60]
            begins = rows(url, "SELECT last_value FROM postroom_outbox_seq_seq")[0][0]
            await write(url, new)
            assert begins < floor, "no number was given twice"
            await until(lambda: set(new) <= set(ids(broker)), 60)


@asynccontextmanager
async def with_replica(own_server):
    """A primary with a table for effects, its replica, and a URL that finds the primary."""
    primary = own_server("postgres")
    await PostgresStore(primary.url).migrate()
    rows(primary.url, "CREATE TABLE payments (n serial, id text)")
    with PostgresReplica(primary=primary) as replica:
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{replica.port}"
        yield primary, replica, f"postgresql://postgres@{hosts}/postgres?{WRITABLE}"


def own_transactions(url):
    """Transactions of the user's own, beside the store's."""

    @asynccontextmanager
    async def transaction():
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            async with connection.transaction():
                yield connection

    return transaction


@pytest.mark.promise("G2", "G4", "G6")
@pytest.mark.parametrize("whose", ["the store's", "the user's"])
async def test_effects_that_a_replica_lacks_are_done_again(own_server, whose):
    """Handlers commit on a primary that dies before their events are settled. The replica has the
    events and their starts, but not the effects: the relay must not settle them by its memory.
    """
    async with with_replica(own_server) as (primary, replica, writable):
        given = {"transaction": own_transactions(writable)} if whose == "the user's" else {}
        handlers, ready = Handlers(name="shop", time_limit_seconds=60.0, **given), asyncio.Event()
        begun, committed = set(), set()

        @handlers.on("paid")
        async def charge(event, tx):
            begun.add(event.id)
            await ready.wait()
            await tx.execute("INSERT INTO payments (id) VALUES (%s)", [event.id])
            committed.add(event.id)

        async def write_paid(*names):
            async with await psycopg.AsyncConnection.connect(primary.url) as connection:
                events = [Event("paid", id=f"{key}{n}", key=key) for key, n in names]
                await Outbox().add_many(connection, events)

        def paid(url):
            return [name for (name,) in rows(url, "SELECT id FROM payments ORDER BY n")]

        store = PostgresStore(writable)
        await store.open()
        try:
            async with relaying(store, handlers) as (relay, notes):
                ready.set()
                await write_paid(("early", 1))
                await until(lambda: relay.counts.done == 1)
                ready.clear()
                await write_paid(*((key, n) for n in (1, 2, 3) for key in "abc"))
                await until(lambda: begun >= {"a1", "b1", "c1"})
                await asyncio.to_thread(replica.wait_caught_up)
                await asyncio.to_thread(replica.cut)
                with closing(psycopg.connect(primary.url)) as stranger:
                    stranger.execute("LOCK TABLE postroom_lease IN EXCLUSIVE MODE")
                    ready.set()
                    await until(lambda: len(paid(primary.url)) == 4)
                    await asyncio.to_thread(primary.kill)
                await asyncio.to_thread(replica.promote)
                assert paid(replica.url) == ["early1"]
                await until(lambda: relay.counts.done == 10, 90)
                assert relay.counts.effects_lost == 3
                assert {name for fact in notes.of(EffectsLost) for name in fact.ids} == {
                    "a1", "b1", "c1"
                }  # fmt: skip
        finally:
            await store.close()
        found = paid(replica.url)
        assert sorted(found) == ["a1", "a2", "a3", "b1", "b2", "b3", "c1", "c2", "c3", "early1"]
        for key in "abc":
            assert [name for name in found if name.startswith(key)] == [
                f"{key}{n}" for n in (1, 2, 3)
            ]
        attempts = rows(replica.url, "SELECT DISTINCT attempts, state FROM postroom_outbox")
        assert attempts == [(1, "done")]  # what the database lost is charged to nobody
