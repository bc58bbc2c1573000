"""A store of one's own on each database, for the commands to work on."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import psycopg
import pytest
from pymongo import MongoClient

from postroom.broker import Outcome, Verdict
from postroom.brokers import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.outbox import Outbox
from postroom.registry import load_store, migrate
from postroom.retry import Constant, RetryPolicy
from tests.contract.mongo_database import url_of
from tests.contract.mysql_database import own_database


class Place:
    """A store by its URL, and hands that write and deliver."""

    def __init__(self, url):
        self.url = url

    def __call__(self, work):
        """Run an async function of an open store."""

        async def run():
            store = load_store(self.url)
            await store.open()
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run())

    def migrate(self):
        asyncio.run(migrate(self.url))

    def add(self, *events, strict=False):
        async def work(store):
            async with store.transaction() as tx:
                await Outbox(ordering="strict" if strict else "keyed").add_many(tx, events)

        self(work)

    def deliver(self, *, broken=(), error="no such host 4711"):
        """Deliver what is due; what is broken becomes a dead letter. Returns what was sent."""

        async def work(store):
            broker = MemoryBroker()
            broker.script(lambda r: Outcome(Verdict.REJECTED, error) if r.id in broken else None)
            retry = RetryPolicy(max_attempts=1, backoff=Constant(0))
            await Relay(store, broker, retry=retry, lease_seconds=2.0).drain()
            return [message.record.id for message in broker.messages]

        return self(work)


@pytest.fixture
def sqlite_place(tmp_path):
    return Place(f"sqlite:///{tmp_path}/app.db")


@pytest.fixture
def postgres_place(postgres_url):
    schema = f"cli_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute(f"CREATE SCHEMA {schema}")
        yield Place(f"{postgres_url}?options=-csearch_path%3D{schema}")
        server.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture
def mariadb_place(mariadb_url):
    with own_database(mariadb_url) as database:
        yield Place(database.url)


@pytest.fixture
def mongo_place(mongo_url):
    name = f"cli_{uuid4().hex[:12]}"
    url = url_of(mongo_url, name)
    yield Place(url)
    with MongoClient(url) as client:
        client.drop_database(name)
