"""The MongoDB store keeps the contract of stores: on replica sets of one and three, and alone."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
from pymongo import AsyncMongoClient

from postroom.outbox import Outbox
from postroom.store import Capabilities
from postroom.stores.mongo import MongoStore
from postroom.testing.store import StoreContract
from tests.contract import mongo_database


class MongoContract(StoreContract):
    @pytest.fixture
    async def another(self, url):
        async with AsyncExitStack() as stack:

            async def another():
                store = MongoStore.from_url(url)
                await store.migrate()
                await store.open()
                stack.push_async_callback(store.close)
                return store

            yield another

    @pytest.fixture
    async def store(self, another):
        return await another()

    @pytest.fixture
    def set_back(self, store):
        async def set_back(seconds):
            later = [{"$set": {"until": {"$add": ["$until", round(seconds * 1_000)]}}}]
            for collection in (store.connection.lease, store.connection.member):
                await collection.update_many({}, later)

        return set_back


class ReplicaSetContract(MongoContract):
    @pytest.fixture
    def write(self, url):
        return lambda store: mongo_database.in_transaction(url)

    @pytest.fixture
    def add(self, url):
        """Add as an application does: a conflict runs the callback again."""

        async def add(*events, strict=False):
            async def callback(session):
                await Outbox(ordering="strict" if strict else "keyed").add_many(session, events)

            async with AsyncMongoClient(url) as client, client.start_session() as session:
                await session.with_transaction(callback)

        return add


class TestReplicaSetOfOne(ReplicaSetContract):
    @pytest.fixture
    async def url(self, mongo_url):
        async with mongo_database.emptied(mongo_url) as url:
            yield url


class TestReplicaSetOfThree(ReplicaSetContract):
    @pytest.fixture
    async def url(self, mongo_cluster_url):
        async with mongo_database.emptied(mongo_cluster_url) as url:
            yield url


class WithoutTransactions(MongoContract):
    capabilities = Capabilities(transactions=False, notify=False)

    @pytest.fixture
    def write(self):
        return lambda store: store.transaction()


class TestStandalone(WithoutTransactions):
    @pytest.fixture
    async def url(self, mongo_standalone_url):
        async with mongo_database.emptied(mongo_standalone_url) as url:
            yield url


class TestWithoutTransactionsByChoice(WithoutTransactions):
    @pytest.fixture
    async def url(self, mongo_url):
        async with mongo_database.emptied(mongo_url) as url:
            yield f"{url}&transactions=false"
