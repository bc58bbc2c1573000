"""A MariaDB whose replica lagged and is promoted: committed transactions are lost and their
AUTO_INCREMENT numbers are given a second time. What is in the database afterwards is sent, whatever
a relay remembers of the numbers (G2).
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import asyncmy
import pymysql
import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.event import Event
from postroom.observer import Vanished
from postroom.outbox import Outbox
from postroom.stores.mysql import MysqlStore
from tests.scenario.place import QUICK, Notes, ids, until
from tests.servers.mariadb import MariaDBPrimary, MariaDBReplica
from tests.servers.proxy import Proxy

EARLY = [f"early{n}" for n in range(10)]
LOST = [f"old{n}" for n in range(120)]
NEW = [f"new{n}" for n in range(200)]


def arguments(server):
    return {"host": "127.0.0.1", "port": server.port, "user": "root", "database": "postroom"}


async def write(server, names):
    """Write events, a transaction for each."""
    connection = await asyncmy.connect(**arguments(server), charset="utf8mb4")
    try:
        for name in names:
            await connection.begin()
            await Outbox().add(connection, Event("t", id=name, key=name))
            await connection.commit()
    finally:
        await connection.ensure_closed()


def rows(server, sql):
    with pymysql.connect(**arguments(server), autocommit=True) as one, one.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def names(server, where="TRUE"):
    found = rows(server, f"SELECT CAST(id AS CHAR), seq FROM postroom_outbox WHERE {where}")
    return dict(found)


@asynccontextmanager
async def relaying(url, broker, **settings):
    """A relay that reaches the database by one address, whichever server answers there."""
    store, notes = MysqlStore(url), Notes()
    await store.open()
    try:
        async with Relay(store, broker, observers=[notes], **{**QUICK, **settings}) as relay:
            yield relay, notes
    finally:
        await store.close()


@pytest.mark.server
@pytest.mark.promise("G2")
async def test_a_replica_that_lagged_is_promoted(keep_done_seconds=3600.0):  # E-1
    with (
        MariaDBPrimary() as primary,
        MariaDBReplica(primary=primary) as replica,
        Proxy(primary.port) as address,
    ):
        await MysqlStore(primary.url).migrate()
        broker = MemoryBroker()
        settings = {"keep_done_seconds": keep_done_seconds, "batch_size": 1_000}
        url = address.url_for(primary.url)
        async with relaying(url, broker, **settings) as (relay, notes):
            await write(primary, EARLY)
            await until(lambda: relay.counts.done == len(EARLY))
            await asyncio.to_thread(replica.wait_caught_up)
            await asyncio.to_thread(replica.cut)

            # Sent and not yet confirmed when the primary dies.
            hold = broker.hold()
            await write(primary, LOST)
            await until(lambda: relay.vitals.in_flight == len(LOST))
            before = names(primary)
            address.refuse()
            hold.release()
            await until(lambda: set(ids(broker)) >= set(LOST))

            # The fail-over, and new events before the relay is back.
            await asyncio.to_thread(primary.kill)
            await asyncio.to_thread(replica.promote)
            assert set(names(replica)) == set(EARLY)
            await write(replica, NEW)
            after = names(replica)
            given_twice = {before[name] for name in LOST} & {after[name] for name in NEW}
            assert len(given_twice) == len(LOST)
            address.target = ("127.0.0.1", replica.port)
            address.accept()

            await until(lambda: names(replica, "state <> 'done'") == {}, 60)
            assert set(NEW) - set(ids(broker)) == set(), "done, and never sent"
            assert set(names(replica)) == {*EARLY, *NEW}
            await until(lambda: relay.vitals.in_flight == 0 and relay.counts.vanished)
            vanished = [name for fact in notes.of(Vanished) for name in fact.ids]
            assert sorted(vanished) == sorted(LOST)
            assert relay.counts.vanished == len(LOST)
