"""A place on a MongoDB, with a database of its own for each test."""

from __future__ import annotations

import uuid

from pymongo import AsyncMongoClient

from postroom.outbox import Outbox
from postroom.stores.mongo import MongoStore
from postroom.transactions.mongo import without_transaction
from tests.contract.mongo_database import url_of
from tests.scenario.place import Place


class MongoPlace(Place):
    def __init__(self, server_url, **options):
        super().__init__()
        self.url = url_of(server_url, f"scene_{uuid.uuid4().hex[:12]}")
        self.options = options
        self.store = self.another()
        self.client = AsyncMongoClient(self.url)
        self.database = self.client.get_default_database()

    def another(self):
        return MongoStore(self.url, **self.options)

    async def open(self):
        await self.store.migrate()
        await self.store.open()
        await self.database.create_collection("effects")

    async def close(self):
        await super().close()
        await self.store.close()
        await self.client.drop_database(self.database.name)
        await self.client.close()

    async def write(self, *events, outbox=None):
        outbox = outbox or self.outbox
        async with self.client.start_session() as session:
            async with outbox.transaction(session):
                await outbox.add_many(session, events)

    async def write_quietly(self, *events):
        async def callback(session):
            await Outbox().add_many(session, events)

        async with self.client.start_session() as session:
            await session.with_transaction(callback)

    async def roll_back(self, *events):
        async with self.client.start_session() as session:
            await session.start_transaction()
            await self.outbox.add_many(session, events)
            await session.abort_transaction()

    async def effect(self, tx, name):
        effects = tx.client.get_default_database()["effects"]
        await effects.insert_one({"name": name}, session=tx)

    async def effects(self):
        return [one["name"] async for one in self.database["effects"].find().sort({"$natural": 1})]


class StandalonePlace(MongoPlace):
    """A MongoDB without transactions: every write stands for itself."""

    async def write(self, *events, outbox=None):
        outbox = outbox or self.outbox
        await outbox.add_many(without_transaction(self.database), events)
        outbox.kick()

    async def write_quietly(self, *events):
        await Outbox().add_many(without_transaction(self.database), events)
