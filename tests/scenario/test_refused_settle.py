"""A row in the middle of a batch whose outcome the database refuses: it costs that event (X-H2)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from sqlite3 import connect

import psycopg
import pytest
from pymongo import AsyncMongoClient

from postroom.broker import Outcome, Verdict
from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.observer import Alarm
from postroom.outbox import Outbox
from postroom.stores.mongo import MongoStore
from postroom.stores.mysql import MysqlStore
from postroom.stores.postgres import PostgresStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing.store.tools import event
from tests.contract.mongo_database import emptied, in_transaction
from tests.contract.mysql_database import own_database
from tests.scenario.place import QUICK, Notes, first_seen, until
from tests.scenario.postgres_place import own_schema, writing

pytestmark = pytest.mark.server
EVIL = "evil"
COUNT = 30


class Ground:
    """A store, a writer, and a rule of a stranger: this event must not get these states."""

    def __init__(self, make, write, refuse, allow):
        self.make, self.write, self.refuse, self.allow = make, write, refuse, allow


@asynccontextmanager
async def sqlite(request):
    path = request.getfixturevalue("tmp_path") / "shop.db"

    async def run(statement):
        with connect(path) as connection:
            connection.execute(statement)
        connection.close()

    @asynccontextmanager
    async def write():
        connection = connect(path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")
        connection.close()

    def refuse(states):
        return run(
            "CREATE TRIGGER stranger BEFORE UPDATE ON postroom_outbox "
            f"WHEN NEW.id = '{EVIL}' AND NEW.state IN ({states}) "
            "BEGIN SELECT RAISE(ABORT, 'not this one'); END"
        )

    yield Ground(lambda: SqliteStore(path), write, refuse, lambda: run("DROP TRIGGER stranger"))


@asynccontextmanager
async def postgres(request):
    with own_schema(request.getfixturevalue("postgres_url")) as url:

        async def run(statement):
            async with await psycopg.AsyncConnection.connect(url) as connection:
                await connection.execute(statement)

        yield Ground(
            lambda: PostgresStore(url),
            lambda: writing(url),
            lambda states: run(
                "ALTER TABLE postroom_outbox ADD CONSTRAINT stranger "
                f"CHECK (id <> '{EVIL}' OR state NOT IN ({states}))"
            ),
            lambda: run("ALTER TABLE postroom_outbox DROP CONSTRAINT stranger"),
        )


@asynccontextmanager
async def mysql(request):
    with own_database(request.getfixturevalue("mariadb_url")) as database:

        async def run(statement):
            await asyncio.to_thread(database.run, statement)

        yield Ground(
            lambda: MysqlStore(database.url),
            database.writing,
            lambda states: run(
                "ALTER TABLE postroom_outbox ADD CONSTRAINT stranger "
                f"CHECK (id <> '{EVIL}' OR state NOT IN ({states}))"
            ),
            lambda: run("ALTER TABLE postroom_outbox DROP CONSTRAINT stranger"),
        )


@asynccontextmanager
async def mongo(request):
    async with emptied(request.getfixturevalue("mongo_url")) as url:
        async with AsyncMongoClient(url) as client:
            database = client.get_default_database()
            info = await database.command("listCollections", filter={"name": "postroom_outbox"})
            validator = info["cursor"]["firstBatch"][0]["options"].get("validator", {})

            async def refuse(states):
                listed = [state.strip(" '") for state in states.split(",")]
                wrong = {"_id": EVIL, "status": {"$in": listed}}
                rule = {"$and": [validator, {"$nor": [wrong]}]} if validator else {"$nor": [wrong]}
                await database.command("collMod", "postroom_outbox", validator=rule)

            async def allow():
                await database.command("collMod", "postroom_outbox", validator=validator)

            try:
                yield Ground(lambda: MongoStore(url), lambda: in_transaction(url), refuse, allow)
            finally:
                await allow()


STORES = {"sqlite": sqlite, "postgres": postgres, "mysql": mysql, "mongo": mongo}


@pytest.fixture(params=sorted(STORES))
async def ground(request):
    async with STORES[request.param](request) as ground:
        store = ground.make()
        await store.migrate()
        await store.close()
        yield ground


@asynccontextmanager
async def relaying(ground, **outbox):
    """A batch of events, the evil one in the middle, which fails at the destination."""
    broker, notes = MemoryBroker(), Notes()
    broker.script(lambda r: Outcome(Verdict.FAILED, "no") if r.id == EVIL else None)
    async with ground.write() as tx:
        names = [EVIL if n == COUNT // 2 else f"e{n}" for n in range(COUNT)]
        await Outbox(**outbox).add_many(tx, [event(name, f"key of {name}") for name in names])
    store = ground.make()
    relay = Relay(store, broker, observers=[notes], **(QUICK | {"lease_seconds": 2.0}))
    await relay.start()
    try:
        yield relay, store, broker, notes
    finally:
        async with asyncio.timeout(20):  # stop_seconds, and what a loaded machine takes
            await relay.stop()


def neighbours_are_done(store):
    async def look():
        return (await store.stats("main")).counts["done"] == COUNT - 1

    return look


@pytest.mark.promise("G7", "F1")
async def test_it_becomes_a_dead_letter_and_its_neighbours_are_done(ground):
    await ground.refuse("'failed'")
    async with relaying(ground) as (relay, store, broker, notes):
        await until(neighbours_are_done(store), 30.0)
        await until(lambda: is_state(store, "dead"), 30.0)
        record = await store.get(EVIL)
        assert "refused" in record.last_error
        await until(lambda: any(EVIL in alarm.about for alarm in notes.of(Alarm)))
    assert len(first_seen(broker)) == COUNT - 1
    counts = relay.counts  # it is counted as what was written, and not as what was refused
    assert (counts.done, counts.failed, counts.dead) == (COUNT - 1, 0, 1)


@pytest.mark.promise("G7")
async def test_if_even_that_is_refused_an_alarm_names_it_and_the_others_go_on(ground):
    await ground.refuse("'failed', 'dead'")
    async with relaying(ground) as (_, store, broker, notes):
        await until(neighbours_are_done(store), 30.0)
        await until(lambda: is_told(notes), 30.0)
        assert (await store.get(EVIL)).state == "pending"
        async with ground.write() as tx:
            await Outbox().add(tx, event("later", "another key"))
        await until(lambda: "later" in first_seen(broker), 30.0)
        alarms = [a for a in notes.of(Alarm) if EVIL in a.about]
        await ground.allow()  # somebody mends the table
        await until(lambda: is_state(store, "failed", "dead"), 30.0)
        assert [a for a in notes.of(Alarm) if "cannot be settled" in a.about] == alarms


@pytest.mark.promise("B6")
async def test_a_strict_event_is_not_given_up_for_it(ground):
    """Consumers would wait for its number."""
    await ground.refuse("'failed'")
    async with relaying(ground, ordering="strict") as (_, store, _, notes):
        await until(neighbours_are_done(store), 30.0)
        await until(lambda: is_told(notes), 30.0)
        assert (await store.get(EVIL)).state == "pending"
        await ground.allow()
        await until(lambda: is_state(store, "failed"), 30.0)


@pytest.mark.promise("G7")
async def test_a_drain_and_a_stop_end_although_it_is_set_aside(ground):
    await ground.refuse("'failed', 'dead'")
    async with relaying(ground) as (relay, store, _, notes):
        await until(lambda: is_told(notes), 30.0)
        async with asyncio.timeout(20):
            counts = await relay.drain()
    assert counts.done == COUNT - 1
    assert counts.dead == 0


def is_told(notes):
    return any(f"{EVIL} cannot be settled" in alarm.about for alarm in notes.of(Alarm))


async def is_state(store, *states):
    return (await store.get(EVIL)).state in states
