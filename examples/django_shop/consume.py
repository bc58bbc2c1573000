"""The consumer: python -m examples.django_shop.consume DATABASE SOURCE.

In a project this is a management command. Handlers are plain functions that use the ORM; each runs
in an `atomic` block, in which postroom has written the inbox row.
"""

# ruff: noqa: ANN001 - an example, not a part of the package

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import close_old_connections, connection, transaction

from examples.django_shop.project import set_up
from postroom import Consumer, Event, Handlers


@contextmanager
def atomic() -> Iterator[Any]:
    """Open a transaction for a handler, in its thread."""
    close_old_connections()
    try:
        with transaction.atomic():
            yield connection
    finally:
        close_old_connections()


handlers = Handlers(name="payments", sync_transaction=atomic)


@handlers.on("order.created")
def pay(event, _connection, context) -> None:
    """Pay an order, and tell of it."""
    from examples.django_shop.models import Payment

    order = event.data
    Payment.objects.create(order=order["order"], total=order["total"])
    context.add(Event("order.paid", order, key=event.key, stream="payments"))


async def main(database: str, source: str) -> None:
    """Handle messages until a signal arrives."""
    consumer = Consumer(source, database, handlers)
    await consumer.start()
    print("ready", flush=True)
    await consumer.run()


if __name__ == "__main__":
    set_up(sys.argv[1])
    asyncio.run(main(*sys.argv[1:3]))
