"""A shop with faults to look at on the dashboard, in one process, until Ctrl-C.

A thousand invoices were rejected and would be accepted now. A few customers' orders fail, and block
their keys. The destination of mails is unreachable for a part of every two minutes. Reports are
paused.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from postroom.broker import Outcome, Verdict
from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.engine.service import end
from postroom.event import Event
from postroom.outbox import SyncOutbox
from postroom.record import Record
from postroom.retry import RetryPolicy
from postroom.settings import RelaySettings
from postroom.stores.sqlite import SqliteStore

INVOICES = 1_000
_EVERY_SECONDS = 0.2
_ROUND_SECONDS, _OUTAGE = 120.0, (30.0, 60.0)
_STREAMS = {
    "orders": "order.created", "invoices": "invoice.created", "mail": "mail.sent",
    "reports": "report.made",
}  # fmt: skip
_FAILING = ("customer-13", "customer-17")


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[SqliteStore]:
    """Run the shop while the block runs; yields its store."""
    store = SqliteStore(f"sqlite:///{path}")
    await store.migrate()
    brokers = {stream: MemoryBroker() for stream in _STREAMS}
    seen: set[str] = set()

    def judge(record: Record) -> Outcome | None:
        if record.stream == "orders" and record.key in _FAILING:
            text = f"connection refused by billing-{record.lane % 3}:8443"
            return Outcome(Verdict.FAILED, text)
        if record.type == "invoice.created" and record.id not in seen:
            seen.add(record.id)
            return Outcome(Verdict.REJECTED, f"tax service: unknown region {record.seq % 90}")
        return None

    for broker in brokers.values():
        broker.script(judge)
    relays = [
        Relay(
            store, brokers[stream],
            settings=RelaySettings(
                stream=stream, name=f"{stream}-{number}", lease_seconds=10.0,
                retry=RetryPolicy(max_attempts=1_000),
            ),
        )
        for stream in _STREAMS
        for number in (1, 2)
    ]  # fmt: skip
    async with store:
        await store.set_control(
            "stream", "reports", pause=True, reason="waits for the new template", by="night-shift"
        )
        await asyncio.to_thread(_write, path, [_event("invoices", n) for n in range(INVOICES)])
        for relay in relays:
            await relay.start()
        work = [asyncio.create_task(_sell(path)), asyncio.create_task(_break(brokers["mail"]))]
        try:
            yield store
        finally:
            await end(*work)
            for relay in relays:
                await relay.stop()


async def _sell(path: Path) -> None:
    """Add a few events every moment."""
    number, chance = INVOICES, random.Random(1)
    while True:
        streams = chance.choices(["orders", "mail", "reports"], [8, 3, 1], k=chance.randint(1, 6))
        events = [_event(stream, number + place) for place, stream in enumerate(streams)]
        number += len(events)
        await asyncio.to_thread(_write, path, events)
        await asyncio.sleep(_EVERY_SECONDS)


async def _break(broker: MemoryBroker) -> None:
    """Make a destination unreachable for a part of every round."""
    first, last = _OUTAGE
    while True:
        await asyncio.sleep(first)
        broker.go_down("mail.example.org does not answer")
        await asyncio.sleep(last - first)
        broker.come_back()
        await asyncio.sleep(_ROUND_SECONDS - last)


def _event(stream: str, number: int) -> Event:
    customer = f"customer-{number % 40}"
    payload = {"number": number, "customer": {"name": customer, "email": f"{customer}@example.org"}}
    kind = _STREAMS[stream]
    order = f"order-{number // 3}"
    return Event(
        kind, payload, id=f"{kind}-{number}", key=customer, stream=stream, correlation_id=order,
        headers={"tenant": "north"},
    )  # fmt: skip


def _write(path: Path, events: list[Event]) -> None:
    outbox = SyncOutbox()
    with closing(sqlite3.connect(path, timeout=30)) as conn, outbox.transaction(conn):
        for event in events:
            outbox.add(conn, event)
