"""Run it from the project's folder: python -m examples.orders_kafka.

It starts its own MariaDB and Kafka, and removes them at the end.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from examples.orders_kafka.dispatcher import Journal, dispatcher, is_healthy, statistics
from examples.orders_kafka.reader import LIFE, make_topic, read_all
from examples.orders_kafka.shop import (
    OutOfStockError,
    connect,
    move_order,
    open_shop,
    place_order,
)
from postroom import Relay, migrate
from tests.servers.kafka import Kafka
from tests.servers.mariadb import MariaDB

PARTITIONS = 6
ORDERS = 20
WITHIN_SECONDS = 60.0


async def trade(conn: Any, first: int) -> int:
    """Place, pay and ship twenty orders; every tenth fails. Returns how many were placed."""
    placed = []
    for number in range(first, first + ORDERS):
        order_id = f"order-{number}"
        try:
            await place_order(conn, order_id, 5_000 if number % 10 == 9 else number)
        except OutOfStockError:
            continue
        placed.append(order_id)
    for state in ("paid", "shipped"):
        for order_id in placed:
            await move_order(conn, order_id, state)
    return len(placed)


async def all_sent(relay: Relay) -> None:
    """Wait until every event is done."""
    async with asyncio.timeout(WITHIN_SECONDS):
        while True:
            counts = (await relay.store.stats()).counts
            if counts["done"] == sum(counts.values()):
                return
            await asyncio.sleep(0.1)


async def scenario(database: MariaDB, kafka: Kafka) -> bool:
    """Trade with Kafka, without it, and with it again; returns whether the promises held."""
    make_topic(kafka.address, "orders", PARTITIONS)
    await migrate(database.url)
    conn = await connect(database.url)
    await open_shop(conn)
    journal = Journal()
    relay = dispatcher(database.url, f"{kafka.url}?answer_seconds=1&publish_seconds=5", journal)
    await relay.start()
    healthy = await is_healthy(relay)
    print(f"the dispatcher is running: {relay.is_running}; Kafka is healthy: {healthy}")

    placed = await trade(conn, 0)
    await all_sent(relay)
    print(f"{placed} orders with Kafka: {await statistics(relay)}")

    print("Kafka is killed (SIGKILL)")
    await asyncio.to_thread(kafka.kill)
    placed += await trade(conn, ORDERS)
    async with asyncio.timeout(WITHIN_SECONDS):
        await journal.outage.wait()
    print(f"{placed} orders, the shop continues: {await statistics(relay)}")
    print(f"Kafka is healthy: {await is_healthy(relay)}")

    print("Kafka is started again")
    await asyncio.to_thread(kafka.restart)
    await all_sent(relay)
    placed += await trade(conn, 2 * ORDERS)
    await all_sent(relay)
    print(f"{placed} orders: {await statistics(relay)}")
    await relay.stop()
    conn.close()

    found = await asyncio.to_thread(read_all, kafka.address, "orders", PARTITIONS)
    wanted = placed * len(LIFE)
    print(
        f"a reader of the topic found {found.events} of {wanted} events, "
        f"{len(found.out_of_order)} orders out of order, {found.repeats} repeats"
    )
    return found.events == wanted and not found.out_of_order and relay.counts.dead == 0


def main() -> int:
    """Start the servers and run the scenario."""
    print("starting MariaDB and Kafka …", flush=True)
    with MariaDB() as database, Kafka() as kafka:
        kept = asyncio.run(scenario(database, kafka))
    print("every promise was kept" if kept else "A PROMISE WAS BROKEN")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
