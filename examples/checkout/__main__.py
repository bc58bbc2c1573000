"""A checkout API on MongoDB, a relay to Kafka, and a runner that ships each order once.

Baskets are checked out while Kafka is stopped, while it runs, and again. Start the servers first,
from the project's folder, or name your own:

  docker compose -f examples/checkout/compose.yaml up --detach --wait
  python -m examples.checkout
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from urllib.request import Request, urlopen

from pymongo import MongoClient

from examples.checkout.api import serving
from examples.checkout.runner import Runner, running
from examples.places import Outage, arguments, kafka_topic, mongo_database, with_option
from postroom import Relay, migrate
from postroom.observer import BreakerChanged, Fact

CHECKOUTS = 15
WITHIN_SECONDS = 60.0


class Journal:
    """Prints when Kafka becomes unreachable and when it is back."""

    def __init__(self) -> None:
        self.state = "closed"

    def observe(self, fact: Fact) -> None:
        """Receive a fact from the relay."""
        if isinstance(fact, BreakerChanged):
            self.state = fact.state
            print(f"  relay: Kafka is {'unreachable' if fact.state == 'open' else 'back'}")


def buy(api: str, first: int) -> int:
    """Check out fifteen baskets over HTTP; returns how many were accepted."""
    taken = 0
    for number in range(first, first + CHECKOUTS):
        basket = json.dumps({"order": f"order-{number}", "total": number}).encode()
        with urlopen(Request(f"{api}/checkout", basket, method="POST")) as answer:
            taken += answer.status == 201
    return taken


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true, with a time limit."""
    async with asyncio.timeout(WITHIN_SECONDS):
        while True:
            if condition():
                return
            await asyncio.sleep(0.05)


def delivered(relay: Relay, runner: Runner, number: int) -> Callable[[], bool]:
    """Return a condition: this number of orders is shipped, and their events are done."""
    return lambda: runner.shipped == number == relay.counts.done


async def states(relay: Relay) -> str:
    """Return the number of events in each state, from the database."""
    counts = (await relay.store.stats()).counts
    return ", ".join(f"{number} {state}" for state, number in sorted(counts.items()) if number)


async def scenario(database: str, kafka: str, topic: str, outage: Outage) -> bool:
    """Check out without Kafka, with it, without it, and with it again."""
    await migrate(database)
    journal = Journal()
    destination = with_option(
        kafka, key="id", create_topics="true", answer_seconds="1", publish_seconds="5"
    )
    relay = Relay(database, destination, observers=[journal], max_outage_seconds=2.0)
    if outage:
        await asyncio.to_thread(outage.begin)
    await relay.start()  # it starts although Kafka is not running yet
    with serving(database, topic) as api, running(kafka, topic, database) as runner:
        taken = await asyncio.to_thread(buy, api, 0)
        if outage:
            await until(lambda: journal.state == "open")
            print(f"{taken} checkouts before Kafka was started: {await states(relay)}")
            await asyncio.to_thread(outage.end)
            print("Kafka is started")
        await until(delivered(relay, runner, taken))
        taken += await asyncio.to_thread(buy, api, CHECKOUTS)
        await until(delivered(relay, runner, taken))
        print(f"{taken} checkouts, {runner.shipped} shipped: {await states(relay)}")

        if outage:
            await asyncio.to_thread(outage.begin)
            print("Kafka is killed")
        taken += await asyncio.to_thread(buy, api, 2 * CHECKOUTS)
        if outage:
            await until(lambda: journal.state == "open")
            print(f"{taken} checkouts, {runner.shipped} shipped: {await states(relay)}")
            await asyncio.to_thread(outage.end)
            print("Kafka is started again")
        await until(delivered(relay, runner, taken))
        taken += await asyncio.to_thread(buy, api, 3 * CHECKOUTS)
        await until(delivered(relay, runner, taken))
        print(f"{taken} checkouts, {runner.shipped} shipped: {await states(relay)}")
    await relay.stop()
    with MongoClient(database) as client:
        shop = client.get_default_database()
        orders = {order["_id"] for order in shop["orders"].find()}
        shipments = [shipment["order"] for shipment in shop["shipments"].find()]
    print(
        f"{len(orders)} orders, {len(shipments)} shipments, {runner.repeats} messages were repeats"
    )
    return len(orders) == taken and sorted(shipments) == sorted(orders)


def main() -> int:
    """Run the scenario in a new database, with a new topic."""
    given = arguments("checkout", __doc__, "mongo", "kafka").parse_args()
    with mongo_database(given.mongo) as database, kafka_topic(given.kafka) as topic:
        outage = Outage(given.stop, given.start)
        kept = asyncio.run(scenario(database, given.kafka, topic, outage))
    print("every order was shipped once" if kept else "A PROMISE WAS BROKEN")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
