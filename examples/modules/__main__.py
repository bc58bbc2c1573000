"""Three modules of one shop exchange events. Run it: python -m examples.modules.

Each module has its own tables in one SQLite file, and writes only to those. An order is placed,
billed and shipped. Billing crashes during its first attempt, and every event is delivered twice.
At the end the program prints the tables of the modules and the story of each order.
"""

# ruff: noqa: ANN001, ANN201, ANN202 - an example, not a part of the package

import asyncio
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from postroom import Bus, Constant, Event, Filter, RetryPolicy, open_store

TABLES = """
CREATE TABLE orders (id TEXT PRIMARY KEY, state TEXT NOT NULL);
CREATE TABLE invoices (order_id TEXT NOT NULL, total INTEGER NOT NULL);
CREATE TABLE parcels (order_id TEXT NOT NULL);
"""


def shop(url):
    """Build the modules and return their bus."""
    bus = Bus(url, retry=RetryPolicy(backoff=Constant(0.01)))
    orders, billing, shipping = (bus.module(n) for n in ("orders", "billing", "shipping"))
    crashes = {"order-2"}

    @billing.on("order.placed")
    async def bill(event, tx, context):
        order = event.data
        await tx.execute("INSERT INTO invoices VALUES (?, ?)", (order["id"], order["total"]))
        await context.add(Event("invoice.paid", {"id": order["id"]}, key=order["id"]))
        if order["id"] in crashes:
            crashes.remove(order["id"])
            raise RuntimeError("the printer is on fire")  # invoice and event are rolled back

    @shipping.on("invoice.paid")
    async def ship(event, tx, context):
        await tx.execute("INSERT INTO parcels VALUES (?)", (event.data["id"],))
        await context.add(Event("parcel.sent", {"id": event.data["id"]}, key=event.key))

    @orders.on("parcel.sent")
    async def close(event, tx):
        await tx.execute("UPDATE orders SET state = 'sent' WHERE id = ?", (event.data["id"],))

    return bus


def place(bus, path, order_id, total):
    """Write an order and its event in one transaction."""
    outbox = bus.module("orders").sync_outbox
    with closing(sqlite3.connect(path)) as conn, outbox.transaction(conn):
        conn.execute("INSERT INTO orders VALUES (?, 'placed')", (order_id,))
        event = Event("order.placed", {"id": order_id, "total": total}, id=f"placed-{order_id}",
                      key=order_id, correlation_id=f"story-of-{order_id}")  # fmt: skip
        outbox.add(conn, event)


async def deliver_everything_again(bus):
    """Send all events again: repeats are normal."""
    for module in bus.modules:
        async with open_store(module.store) as store:
            for stream in ("main", f"inbox.{module.name}"):
                found = await store.find(Filter(stream=stream))
                await store.replay([record.id for record in found])


async def tell(bus, correlation_id):
    """Print the events of all modules that belong together, as an operator would."""
    stores = [f"--store={module.store.url}" for module in bus.modules]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "postroom", "story", correlation_id, *stores,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    await process.wait()


async def run(path):
    bus = shop(f"sqlite:///{path}")
    await bus.migrate()
    with closing(sqlite3.connect(path)) as conn:
        conn.executescript(TABLES)
    for n in range(1, 4):
        place(bus, path, f"order-{n}", 10 * n)
    await bus.drain()
    await deliver_everything_again(bus)
    await bus.drain()
    with closing(sqlite3.connect(path)) as conn:
        for table in ("orders", "invoices", "parcels"):
            rows = conn.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
            print(f"{table}: {rows}")
        ((invoices, billed),) = conn.execute(
            "SELECT count(*), count(DISTINCT order_id) FROM invoices"
        )
    print(f"billed twice: {invoices - billed}")
    for n in range(1, 4):
        print(f"\nstory-of-order-{n}", flush=True)
        await tell(bus, f"story-of-order-{n}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder, "shop.db")))
