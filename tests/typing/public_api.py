"""The public API as a type checker sees it: `mypy --strict` must accept every line here."""

import sqlite3
from datetime import timedelta
from typing import Any, assert_type

from postroom import (
    Event,
    Exponential,
    Handlers,
    Inbox,
    Outbox,
    Record,
    Reject,
    Relay,
    RelaySettings,
    Retry,
    RetryPolicy,
    SyncInbox,
    SyncOutbox,
    migrate,
)

handlers = Handlers()


@handlers.on("order.created")
async def charge(event: Record, tx: Any) -> None:
    if event.attempts > 3:
        raise Reject("enough")
    raise Retry("later", after=timedelta(seconds=5))


@handlers.on("order.created", name="mail")
def mail(event: Record, tx: sqlite3.Connection) -> None:
    tx.execute("SELECT 1", ())
    assert_type(event.key, str | None)


async def write(conn: sqlite3.Connection) -> None:
    outbox = Outbox(routes={"order.*": "orders"})
    assert_type(await outbox.add(conn, Event("order.created", {"total": 10}, key="o1")), Event)
    assert_type(await outbox.add_many(conn, [Event("a"), Event("b")]), list[Event])
    async with outbox.transaction(conn) as same:
        assert_type(same, sqlite3.Connection)
    assert_type(await Inbox("payments").accept(conn, Event("a")), bool)


def write_sync(conn: sqlite3.Connection) -> None:
    assert_type(SyncOutbox().add(conn, Event("a")), Event)
    with SyncOutbox().transaction(conn) as same:
        assert_type(same, sqlite3.Connection)
    assert_type(SyncInbox("payments").accept(conn, Event("a")), bool)


async def deliver() -> None:
    settings = RelaySettings(batch_size=500, max_batch_size=500)
    policy = RetryPolicy(max_attempts=3, backoff=Exponential(0.1, timedelta(seconds=30)))
    relay = Relay("sqlite:///app.db", handlers, settings, retry=policy)
    await relay.start()
    assert_type(relay.is_running, bool)
    await relay.stop()
    counts = await relay.drain()
    assert_type(counts.done, int)
    assert_type(await migrate("sqlite:///app.db"), int)
    Relay(
        "sqlite:///app.db",
        "handlers:shop.app:handlers",
        retry=RetryPolicy(backoff=lambda n: n * 2.0),
    )
