"""A Django shop on PostgreSQL sends orders to Kafka; a Django service pays each of them once.

The relay is `postroom run`, the consumer a separate process that is killed halfway. Start the
servers first, from the project's folder, or name your own:

  docker compose -f examples/django_shop/compose.yaml up --detach --wait
  python -m examples.django_shop
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from examples.django_shop.project import set_up
from examples.places import arguments, kafka_topic, postgres_database, with_option
from postroom import migrate

ORDERS = 30
WITHIN_SECONDS = 60.0


@contextmanager
def process(*words: str, says: str = "") -> Iterator[subprocess.Popen[str]]:
    """Run a program of Python for the duration of the block; wait until it says something."""
    command = [sys.executable, "-m", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            if says:
                assert running.stdout is not None
                running.stdout.readline()
            yield running
        finally:
            running.terminate()
            running.wait(WITHIN_SECONDS)


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true, with a time limit."""
    deadline = time.monotonic() + WITHIN_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {WITHIN_SECONDS:g} s")
        time.sleep(0.05)


def scenario(database: str, broker: str, source: str) -> bool:
    """Place orders while the consumer runs, while it is killed, and again."""
    from django.db import connection

    from examples.django_shop.models import Order, Payment
    from examples.django_shop.shop import outbox_for, place_order

    with connection.schema_editor() as editor:
        editor.create_model(Order)
        editor.create_model(Payment)
    consume = ("examples.django_shop.consume", database, source)
    relay = ("postroom", "run", "--store", database, "--broker", broker, "--log-level", "warning")
    with outbox_for(database) as outbox, process(*relay):

        def buy() -> None:
            for n in range(ORDERS):
                place_order(outbox, "tea", n)

        with process(*consume, says="ready") as consumer:
            buy()
            until(lambda: Payment.objects.count() >= ORDERS // 2)
            consumer.kill()
            print(f"{Order.objects.count()} orders; the consumer was killed")
        try:
            place_order(outbox, "coffee", -1)
        except ValueError as error:
            print(f"rolled back: {error}")
        with process(*consume, says="ready"):
            buy()
            until(lambda: Payment.objects.count() >= Order.objects.count())
    paid = list(Payment.objects.values_list("order", flat=True))
    orders = list(Order.objects.values_list("pk", flat=True))
    twice = len(paid) - len(set(paid))
    print(f"{len(orders)} orders, {len(paid)} payments, paid twice: {twice}")
    connection.close()
    return sorted(paid) == sorted(orders)


def main() -> int:
    """Run the scenario in a new database, with a new topic."""
    given = arguments("django_shop", __doc__, "postgres", "kafka").parse_args()
    with postgres_database(given.postgres) as database, kafka_topic(given.kafka) as topic:
        asyncio.run(migrate(database))
        set_up(database)
        broker = with_option(given.kafka, topic=topic, create_topics="true")
        source = with_option(given.kafka, topic=topic, group=topic)
        kept = scenario(database, broker, source)
    print("every order was paid once" if kept else "A PROMISE WAS BROKEN")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
