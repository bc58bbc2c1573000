"""A message in the middle of a batch whose row the database refuses: it costs its key (F1, G7)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from sqlite3 import connect

import psycopg
import pytest
from pymongo import AsyncMongoClient

from postroom.observer import Alarm
from postroom.stores.mongo import MongoStore
from postroom.stores.mysql import MysqlStore
from postroom.stores.postgres import PostgresStore
from postroom.stores.sqlite import SqliteStore
from tests.contract.mongo_database import emptied
from tests.contract.mysql_database import own_database
from tests.scenario.place import until
from tests.scenario.postgres_place import own_schema
from tests.scenario.test_consumer_detours import Scene, message

pytestmark = pytest.mark.server
EVIL = "inbox/payments/bad-7"
RULE = f"ALTER TABLE postroom_outbox ADD CONSTRAINT stranger CHECK (id <> '{EVIL}')"


# Each yields what makes a store, and what makes its database refuse one row.
@asynccontextmanager
async def sqlite(request):
    path = request.getfixturevalue("tmp_path") / "shop.db"

    async def refuse():
        with connect(path) as connection:
            connection.execute(
                "CREATE TRIGGER stranger BEFORE INSERT ON postroom_outbox "
                f"WHEN NEW.id = '{EVIL}' BEGIN SELECT RAISE(ABORT, 'not this one'); END"
            )
        connection.close()

    yield lambda: SqliteStore(path), refuse


@asynccontextmanager
async def postgres(request):
    with own_schema(request.getfixturevalue("postgres_url")) as url:

        async def refuse():
            async with await psycopg.AsyncConnection.connect(url) as connection:
                await connection.execute(RULE)

        yield lambda: PostgresStore(url), refuse


@asynccontextmanager
async def mysql(request):
    with own_database(request.getfixturevalue("mariadb_url")) as database:

        async def refuse():
            await asyncio.to_thread(database.run, RULE)

        yield lambda: MysqlStore(database.url), refuse


@asynccontextmanager
async def mongo(request):
    async with (
        emptied(request.getfixturevalue("mongo_url")) as url,
        AsyncMongoClient(url) as client,
    ):
        database = client.get_default_database()
        info = await database.command("listCollections", filter={"name": "postroom_outbox"})
        validator = info["cursor"]["firstBatch"][0]["options"]["validator"]

        async def refuse():
            rule = {"$and": [validator, {"_id": {"$ne": EVIL}}]}
            await database.command("collMod", "postroom_outbox", validator=rule)

        try:
            yield lambda: MongoStore(url), refuse
        finally:
            await database.command("collMod", "postroom_outbox", validator=validator)


STORES = {"sqlite": sqlite, "postgres": postgres, "mysql": mysql, "mongo": mongo}


@pytest.fixture(params=sorted(STORES))
async def make(request):
    async with STORES[request.param](request) as (make, refuse):
        store = make()
        await store.migrate()
        await store.close()
        await refuse()
        yield make


@pytest.mark.promise("G4", "G7", "F1")
async def test_what_is_kept_beside_it_is_handled(make):
    """Durable mode: `Consumer._keep`."""
    scene = Scene()
    scene.broken = False
    scene.queue.send(message("o", 1), message("bad", 7), message("bad", 8), message("o", 2))
    async with scene.consumer(make(), mode="durable"):
        await until(lambda: scene.done == ["o-1", "o-2"], 30)
        scene.queue.send(message("bad", 9), message("o", 3))
        await until(lambda: scene.done == ["o-1", "o-2", "o-3"], 30)
        assert len(scene.queue.acked) == 3
    alarms = [fact.about for fact in scene.told if isinstance(fact, Alarm)]
    assert alarms == ["message bad-7 can be neither handled nor stored"]


@pytest.mark.promise("G4", "G7", "F1")
async def test_a_key_that_cannot_be_set_aside_waits_in_place(make):
    """Direct mode: `Detours.keep`."""
    scene = Scene(wait=0.2)
    scene.queue.send(*(message("bad", n) for n in range(15)))
    async with scene.consumer(make(), max_in_flight=20):
        await until(lambda: scene.alarms(), 30)
        scene.queue.send(message("o", 1))
        await until(lambda: scene.of("o") == ["o-1"], 30)
        assert scene.of("bad") == []
        scene.broken = False
        await until(lambda: len(scene.of("bad")) == 15, 30)
    assert scene.of("bad") == [f"bad-{n}" for n in range(15)]
