"""Run it from the project's folder: python -m examples.checkout.

It starts its own MongoDB and Kafka, and removes them at the end.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from urllib.request import Request, urlopen

from pymongo import MongoClient

from examples.checkout.api import serving
from examples.checkout.runner import Runner, running
from postroom import Relay, migrate
from postroom.observer import BreakerChanged, Fact
from tests.servers.kafka import Kafka
from tests.servers.mongo import Mongo

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


async def scenario(mongo: Mongo, kafka: Kafka) -> bool:
    """Check out without Kafka, with it, without it, and with it again."""
    await migrate(mongo.url)
    journal = Journal()
    destination = f"{kafka.url}?key=id&create_topics=true&answer_seconds=1&publish_seconds=5"
    relay = Relay(mongo.url, destination, observers=[journal], max_outage_seconds=2.0)
    await relay.start()  # it starts although Kafka is not running yet
    with serving(mongo.url) as api, running(kafka.address, mongo.url) as runner:
        taken = await asyncio.to_thread(buy, api, 0)
        await until(lambda: journal.state == "open")
        print(f"{taken} checkouts before Kafka was started: {await states(relay)}")

        await asyncio.to_thread(kafka.start)
        print("Kafka is started")
        await until(delivered(relay, runner, taken))
        taken += await asyncio.to_thread(buy, api, CHECKOUTS)
        await until(delivered(relay, runner, taken))
        print(f"{taken} checkouts, {runner.shipped} shipped: {await states(relay)}")

        await asyncio.to_thread(kafka.kill)
        print("Kafka is killed (SIGKILL)")
        taken += await asyncio.to_thread(buy, api, 2 * CHECKOUTS)
        await until(lambda: journal.state == "open")
        print(f"{taken} checkouts, {runner.shipped} shipped: {await states(relay)}")

        await asyncio.to_thread(kafka.restart)
        print("Kafka is started again")
        await until(delivered(relay, runner, taken))
        taken += await asyncio.to_thread(buy, api, 3 * CHECKOUTS)
        await until(delivered(relay, runner, taken))
        print(f"{taken} checkouts, {runner.shipped} shipped: {await states(relay)}")
    await relay.stop()
    with MongoClient(mongo.url) as client:
        database = client.get_default_database()
        orders = {order["_id"] for order in database["orders"].find()}
        shipments = [shipment["order"] for shipment in database["shipments"].find()]
    print(
        f"{len(orders)} orders, {len(shipments)} shipments, {runner.repeats} messages were repeats"
    )
    return len(orders) == taken and sorted(shipments) == sorted(orders)


def main() -> int:
    """Start the servers and run the scenario."""
    print("starting MongoDB …", flush=True)
    kafka = Kafka()
    try:
        with Mongo() as mongo:
            kept = asyncio.run(scenario(mongo, kafka))
    finally:
        with suppress(Exception):
            kafka.stop()
    print("every order was shipped once" if kept else "A PROMISE WAS BROKEN")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
