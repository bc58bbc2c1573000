"""Orders, an outbox, a relay and a handler in one file. Run it: python examples/single_file.py.

The shop writes orders and events through the standard library's sqlite3; the handler is a plain
function. It uses a temporary folder, which it removes at the end.
"""

# ruff: noqa: ANN001, ANN201 - an example, not a part of the package

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from postroom import Event, Handlers, Relay, RelaySettings, Retry, SyncOutbox, migrate

TABLES = """
CREATE TABLE orders (id TEXT PRIMARY KEY, total INTEGER NOT NULL);
CREATE TABLE payments (order_id TEXT NOT NULL, total INTEGER NOT NULL);
"""

outbox = SyncOutbox(routes={"order.*": "orders"})
handlers = Handlers()
refused: set[str] = set()


class OutOfStockError(Exception):
    """An item is out of stock: the transaction is rolled back."""


def place_order(conn: sqlite3.Connection, order_id: str, total: int) -> None:
    """Write an order and its event: both are committed, or neither is."""
    with outbox.transaction(conn):
        conn.execute("INSERT INTO orders VALUES (?, ?)", (order_id, total))
        outbox.add(conn, Event("order.placed", {"total": total}, key=order_id))
        if total > 1_000:
            raise OutOfStockError


@handlers.on("order.placed")
def charge(event, tx):
    """Charge an order. The payment and the inbox row of this event are one commit."""
    if event.key == "order-2" and event.key not in refused:
        refused.add(event.key)
        raise Retry("the bank is busy", after=1)
    tx.execute("INSERT INTO payments VALUES (?, ?)", (event.key, event.data["total"]))


async def main(folder: Path) -> None:
    """Place four orders, of which one is rolled back, and deliver the committed events."""
    path = folder / "shop.db"
    await migrate(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as conn:
        conn.executescript(TABLES)
        rolled_back = 0
        for number, total in enumerate((10, 20, 5_000, 30), start=1):
            try:
                place_order(conn, f"order-{number}", total)
            except OutOfStockError:
                rolled_back += 1
        (orders,) = conn.execute("SELECT count(*) FROM orders").fetchone()
        (events,) = conn.execute("SELECT count(*) FROM postroom_outbox").fetchone()
        print(f"{orders} orders were committed, {rolled_back} was rolled back")
        print(f"{events} events wait in the outbox")

        relay = Relay(f"sqlite:///{path}", handlers, RelaySettings(poll_seconds=0.1))
        first = await relay.drain()
        print(f"first drain: {first.done} done, {first.failed} failed, to be retried")
        await asyncio.sleep(1.5)  # the delay that the handler requested
        second = await relay.drain()
        print(f"second drain: {second.done} done")

        for order_id, state, attempts in conn.execute(
            "SELECT key, state, attempts FROM postroom_outbox ORDER BY seq"
        ):
            print(f"  {order_id}: {state} after {attempts} attempt{'s' if attempts > 1 else ''}")
        charged = conn.execute("SELECT order_id FROM payments GROUP BY 1 HAVING count(*) = 1")
        print(f"{len(charged.fetchall())} orders are charged, each once")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(main(Path(name)))
