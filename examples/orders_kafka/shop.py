"""The shop: it uses MariaDB and the outbox, and does not depend on Kafka.

The events of one order keep their order because every change locks the order's row, by its INSERT
or UPDATE, before it adds the event.
"""

from __future__ import annotations

from typing import Any

import asyncmy

from postroom import Event, Outbox, Url

TABLE = """
CREATE TABLE orders (
    id VARCHAR(40) PRIMARY KEY,
    total INT NOT NULL,
    state VARCHAR(20) NOT NULL
)
"""

outbox = Outbox(default_topic="orders")


class OutOfStockError(Exception):
    """An item is out of stock: the transaction is rolled back."""


async def connect(url: str) -> Any:
    """Open a connection for the shop."""
    at = Url.parse(url)
    return await asyncmy.connect(
        host=at.host, port=at.port, user=at.user, password=at.password or "", db=at.database
    )


async def open_shop(conn: Any) -> None:
    """Create the shop's own table; the outbox has its own migration."""
    async with conn.cursor() as cursor:
        await cursor.execute(TABLE)


async def place_order(conn: Any, order_id: str, total: int) -> None:
    """Save an order and its event: both are committed, or neither is."""
    async with outbox.transaction(conn), conn.cursor() as cursor:
        await cursor.execute("INSERT INTO orders VALUES (%s, %s, 'placed')", (order_id, total))
        await outbox.add(conn, _event("order.placed", order_id, total=total))
        if total > 1_000:
            raise OutOfStockError(order_id)


async def move_order(conn: Any, order_id: str, state: str) -> None:
    """Change an order and add the event."""
    async with outbox.transaction(conn), conn.cursor() as cursor:
        await cursor.execute("UPDATE orders SET state = %s WHERE id = %s", (state, order_id))
        await outbox.add(conn, _event(f"order.{state}", order_id))


def _event(kind: str, order_id: str, **facts: Any) -> Event:
    return Event(kind, {"order": order_id, **facts}, aggregate_type="order", aggregate_id=order_id)
