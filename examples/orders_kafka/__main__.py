"""Orders in MariaDB, their events in Kafka, and a reader that checks order and completeness.

Kafka is killed halfway. Start the servers first, from the project's folder, or name your own:

  docker compose -f examples/orders_kafka/compose.yaml up --detach --wait
  python -m examples.orders_kafka
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from examples.orders_kafka.dispatcher import Journal, dispatcher, is_healthy, statistics
from examples.orders_kafka.reader import LIFE, read_all
from examples.orders_kafka.shop import (
    OutOfStockError,
    connect,
    move_order,
    open_shop,
    place_order,
)
from examples.places import (
    Outage,
    arguments,
    kafka_topic,
    mariadb_database,
    servers_of,
    with_option,
)
from postroom import Relay, migrate

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


async def scenario(database: str, kafka: str, topic: str, outage: Outage) -> bool:
    """Trade with Kafka, without it, and with it again; returns whether the promises held."""
    await migrate(database)
    conn = await connect(database)
    await open_shop(conn)
    journal = Journal()
    broker = with_option(kafka, topic=topic, answer_seconds="1", publish_seconds="5")
    relay = dispatcher(database, broker, journal)
    await relay.start()
    healthy = await is_healthy(relay)
    print(f"the dispatcher is running: {relay.is_running}; Kafka is healthy: {healthy}")

    placed = await trade(conn, 0)
    await all_sent(relay)
    print(f"{placed} orders with Kafka: {await statistics(relay)}")

    if outage:
        print("Kafka is killed")
        await asyncio.to_thread(outage.begin)
    placed += await trade(conn, ORDERS)
    if outage:
        async with asyncio.timeout(WITHIN_SECONDS):
            await journal.outage.wait()
        print(f"{placed} orders, the shop continues: {await statistics(relay)}")
        print(f"Kafka is healthy: {await is_healthy(relay)}")

        print("Kafka is started again")
        await asyncio.to_thread(outage.end)
    await all_sent(relay)
    placed += await trade(conn, 2 * ORDERS)
    await all_sent(relay)
    print(f"{placed} orders: {await statistics(relay)}")
    await relay.stop()
    conn.close()

    found = await asyncio.to_thread(read_all, servers_of(kafka), topic, PARTITIONS)
    wanted = placed * len(LIFE)
    print(
        f"a reader of the topic found {found.events} of {wanted} events, "
        f"{len(found.out_of_order)} orders out of order, {found.repeats} repeats"
    )
    return found.events == wanted and not found.out_of_order and relay.counts.dead == 0


def main() -> int:
    """Run the scenario in a new database, with a new topic."""
    given = arguments("orders_kafka", __doc__, "mariadb", "kafka").parse_args()
    with (
        mariadb_database(given.mariadb) as database,
        kafka_topic(given.kafka, partitions=PARTITIONS) as topic,
    ):
        outage = Outage(given.stop, given.start)
        kept = asyncio.run(scenario(database, given.kafka, topic, outage))
    print("every promise was kept" if kept else "A PROMISE WAS BROKEN")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
