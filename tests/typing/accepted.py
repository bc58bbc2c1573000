"""What type checkers accept: every line here passes `mypy --strict` and basedpyright."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, assert_type

import aiosqlite
import psycopg
import pymongo
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.client_session import ClientSession
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from postroom import (
    Bus,
    Consumer,
    ConsumerSettings,
    Context,
    Event,
    Exponential,
    Filter,
    Handlers,
    Inbox,
    MemoryBroker,
    MemoryStore,
    Outbox,
    Record,
    Reject,
    Relay,
    RelaySettings,
    Retry,
    RetryPolicy,
    Store,
    SyncContext,
    SyncInbox,
    SyncOutbox,
    migrate,
    open_store,
)
from postroom.brokers.kafka import KafkaBroker
from postroom.brokers.rabbitmq import RabbitBroker
from postroom.stores.mongo import MongoStore
from postroom.stores.mysql import MysqlStore
from postroom.stores.postgres import PostgresStore
from postroom.stores.sqlite import SqliteStore

# -- handlers -------------------------------------------------------------------------------------
handlers = Handlers(name="shop", time_limit_seconds=timedelta(minutes=1))


@handlers.on("order.created")
async def charge(event: Record, tx: Any) -> None:
    if event.attempts > 3:
        raise Reject("enough")
    raise Retry("later", after=timedelta(seconds=5))


@handlers.on("order.created", name="mail")
def mail(event: Record, tx: sqlite3.Connection) -> None:
    tx.execute("SELECT 1", ())
    assert_type(event.key, str | None)


@handlers.on("order.paid")
async def ship(event: Record, tx: psycopg.AsyncConnection[Any], context: Context) -> None:
    await context.add(Event("order.shipped"))


@handlers.on("order.shipped")
def thank(event: Record, tx: psycopg.Connection[Any], context: SyncContext) -> None:
    context.add(Event("mail.sent"))


@handlers.on("order.lost")
async def with_a_default(event: Record, tx: object, tries: int = 3) -> None: ...


@handlers.default
async def the_rest(event: Record, tx: None) -> None: ...


class Shop:
    async def on_order(self, event: Record, tx: Any) -> None: ...


handlers.on("order.returned")(Shop().on_order)


async def call_it(event: Record) -> None:
    await charge(event, tx=None)  # a registered function stays what it is


# -- connections ----------------------------------------------------------------------------------
async def write(
    conn: sqlite3.Connection,
    lite: aiosqlite.Connection,
    post: psycopg.AsyncConnection[Any],
    alchemy: AsyncConnection,
    session: AsyncSession,
    scoped: async_scoped_session[AsyncSession],
    mongo: AsyncClientSession,
    store: MemoryStore,
) -> None:
    outbox = Outbox(routes={"order.*": "orders"})
    assert_type(await outbox.add(conn, Event("order.created", {"total": 10}, key="o1")), Event)
    assert_type(await outbox.add_many(conn, [Event("a"), Event("b")]), list[Event])
    assert_type(await outbox.add(conn, Event("a"), on_duplicate="ignore"), Event | None)
    assert_type(await outbox.add(conn, Event("a"), on_duplicate="raise"), Event)
    assert_type(await outbox.add_many(conn, [Event("a")], on_duplicate="ignore"), list[Event])
    async with outbox.transaction(conn) as same:
        assert_type(same, sqlite3.Connection)
    inbox = Inbox("payments")
    assert_type(await inbox.accept(lite, Event("a")), bool)
    await outbox.add(lite, Event("a"))
    await outbox.add(post, Event("a"))
    await outbox.add(alchemy, Event("a"))
    await outbox.add(session, Event("a"))
    await outbox.add(scoped, Event("a"))
    await outbox.add(mongo, Event("a"))
    await outbox.add(store.begin(), Event("a"))
    await inbox.forget(post, older_than_seconds=timedelta(days=30))


def write_sync(
    conn: sqlite3.Connection,
    post: psycopg.Connection[Any],
    alchemy: Connection,
    session: Session,
    scoped: scoped_session[Session],
    mongo: ClientSession,
) -> None:
    outbox = SyncOutbox()
    assert_type(outbox.add(conn, Event("a")), Event)
    assert_type(outbox.add(conn, Event("a"), on_duplicate="ignore"), Event | None)
    with outbox.transaction(conn) as same:
        assert_type(same, sqlite3.Connection)
    assert_type(SyncInbox("payments").accept(conn, Event("a")), bool)
    outbox.add(post, Event("a"))
    outbox.add(alchemy, Event("a"))
    outbox.add(session, Event("a"))
    outbox.add(scoped, Event("a"))
    outbox.add(mongo, Event("a"))
    SyncInbox("payments").forget(post, older_than_seconds=30.0)


# -- options --------------------------------------------------------------------------------------
async def deliver() -> None:
    settings = RelaySettings(batch_size=500, max_batch_size=500, poll_seconds=timedelta(seconds=2))
    assert_type(settings.poll_seconds, float)
    policy = RetryPolicy(max_attempts=3, backoff=Exponential(0.1, timedelta(seconds=30)))
    relay = Relay("sqlite:///app.db", handlers, settings, retry=policy, lease_seconds=20)
    async with relay:
        assert_type(relay.is_running, bool)
    counts = await relay.drain()
    assert_type(counts.done, int)
    assert_type(await migrate("sqlite:///app.db"), int)
    Relay("memory:", MemoryBroker(), retry=RetryPolicy(backoff=lambda n: n * 2.0))
    ConsumerSettings(mode="durable", dedup_seconds=timedelta(days=7))
    Consumer("memory:", "memory:", handlers, name="shop", batch=10, stop_seconds=timedelta(0, 5))


def make() -> list[Store]:
    return [
        SqliteStore("sqlite:///app.db", busy_seconds=timedelta(seconds=1)),
        SqliteStore(Path("app.db"), synchronous="full"),
        PostgresStore("postgresql://db/shop", schema="billing", pool_size=20),
        MysqlStore("mysql://db/shop", ssl_mode="verify_identity", lock_seconds=3),
        MongoStore("mongodb://db/shop", embedded=["pages"]),
        MemoryStore(),
    ]


def send() -> None:
    Relay("memory:", KafkaBroker("kafka://h", topic="orders", config={"client.id": "shop"}))
    Relay("memory:", RabbitBroker("amqp://h", exchange="orders", routing_key="type"))
    bus = Bus("sqlite:///app.db", poll_seconds=timedelta(seconds=1))
    module = bus.module("orders", concurrency=3, time_limit_seconds=timedelta(seconds=5))

    @module.on("order.created")
    async def create(event: Record, tx: Any, context: Context) -> None: ...


async def look() -> None:
    async with open_store("sqlite:///app.db", prefix="billing_") as store:
        assert_type(await store.find(Filter(type="order.created")), list[Record])
    async with open_store(MemoryStore()) as given:
        assert_type(given, Store)
    async with SqliteStore(Path("app.db")) as own:
        assert_type(own, SqliteStore)


@asynccontextmanager
async def transactions() -> AsyncIterator[pymongo.AsyncMongoClient[dict[str, Any]]]:
    async with pymongo.AsyncMongoClient[dict[str, Any]]() as client:
        yield client


Handlers(name="shop", transaction=transactions)
Handlers(name="shop", transaction=False, sync_transaction=False)
