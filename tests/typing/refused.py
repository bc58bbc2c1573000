"""What type checkers refuse: both report every line that ends in `# refused`, and no other."""

import sqlite3
from datetime import timedelta
from typing import Any

import psycopg
from pymongo.database import Database
from sqlalchemy import Engine
from sqlalchemy.engine import Transaction
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import sessionmaker

from postroom import (
    Bus,
    Consumer,
    Context,
    Event,
    Handlers,
    Inbox,
    Outbox,
    Record,
    Relay,
    RelaySettings,
    SyncContext,
    SyncInbox,
    SyncOutbox,
    open_store,
)
from postroom.brokers.kafka import KafkaBroker
from postroom.brokers.rabbitmq import RabbitBroker
from postroom.sources.kafka import KafkaSource
from postroom.sources.rabbitmq import RabbitSource
from postroom.stores.mongo import MongoStore
from postroom.stores.mysql import MysqlStore
from postroom.stores.postgres import PostgresStore
from postroom.stores.sqlite import SqliteStore

# -- options --------------------------------------------------------------------------------------
Relay("memory:", "memory:", batch_sise=500)  # refused
Relay("memory:", "memory:", batch_size="500")  # refused
Relay("memory:", "memory:", batch_size=timedelta(seconds=1))  # refused
RelaySettings(poll_second=1)  # refused
Consumer("memory:", "memory:", "handlers:a:b", mode="fast")  # refused
Consumer("memory:", "memory:", "handlers:a:b", nmae="x")  # refused
Bus("sqlite:///app.db", stream="mail")  # refused
Bus("sqlite:///app.db").module("orders", concurency=3)  # refused
SqliteStore("sqlite:///app.db", synchronous="off")  # refused
SqliteStore("sqlite:///app.db", schema="a")  # refused
PostgresStore("postgresql://db/shop", pool=3)  # refused
MysqlStore("mysql://db/shop", ssl_mode="maybe")  # refused
MongoStore("mongodb://db/shop", embeded=["pages"])  # refused
KafkaBroker("kafka://h", compression="zip")  # refused
RabbitBroker("amqp://h", exchnage="orders")  # refused
KafkaSource("kafka://h", grup="a")  # refused
RabbitSource("amqp://h", queue=7)  # refused
open_store("sqlite:///app.db", prefx="a_")  # refused

# -- handlers -------------------------------------------------------------------------------------
handlers = Handlers()


@handlers.on("a")  # refused
async def without_tx(event: Record) -> None: ...


@handlers.on("a")  # refused
async def with_an_event(event: Event, tx: Any) -> None: ...


@handlers.on("a")  # refused
async def with_too_many(event: Record, tx: Any, context: Context, more: int) -> None: ...


@handlers.on("a")  # refused
async def with_the_other_context(event: Record, tx: Any, context: SyncContext) -> None: ...


@handlers.on("a")  # refused
def with_the_async_context(event: Record, tx: Any, context: Context) -> None: ...


@handlers.on("a")  # refused
def with_a_result(event: Record, tx: Any) -> int:
    return 1


@handlers.default  # refused
def nothing() -> None: ...


@handlers.on  # refused
async def without_a_type(event: Record, tx: Any) -> None: ...


# -- connections ----------------------------------------------------------------------------------
async def write(
    cursor: sqlite3.Cursor,
    engine: Engine,
    begun: Transaction,
    maker: sessionmaker[Any],
    database: Database[dict[str, Any]],
    conn: sqlite3.Connection,
) -> None:
    outbox = Outbox()
    await outbox.add("sqlite:///app.db", Event("a"))  # refused
    await outbox.add(None, Event("a"))  # refused
    await outbox.add(cursor, Event("a"))  # refused
    await outbox.add(engine, Event("a"))  # refused
    await outbox.add(begun, Event("a"))  # refused
    await outbox.add(maker, Event("a"))  # refused
    await outbox.add(psycopg.AsyncConnection.connect(), Event("a"))  # refused
    await outbox.add(conn, {"type": "a"})  # refused
    await outbox.add(conn, Event("a"), on_duplicate="skip")  # refused
    (await outbox.add(conn, Event("a"), on_duplicate="ignore")).id  # refused
    await Inbox("a").accept(cursor, Event("a"))  # refused
    async with outbox.transaction(engine):  # refused
        pass


def write_sync(post: psycopg.AsyncConnection[Any], session: AsyncSession) -> None:
    SyncOutbox().add(post, Event("a"))  # refused
    SyncOutbox().add(session, Event("a"))  # refused
    SyncInbox("a").accept(post, Event("a"))  # refused
