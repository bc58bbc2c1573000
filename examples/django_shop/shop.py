"""The producer: a view would call `place_order`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction

from examples.django_shop.models import Order
from postroom import Event, SyncOutbox
from postroom.stores.postgres import PostgresNotifier


@contextmanager
def outbox_for(database: str) -> Iterator[SyncOutbox]:
    """Yield the outbox; its notifier wakes the relay, which is another process."""
    notifier = PostgresNotifier(database)
    try:
        yield SyncOutbox(notifier=notifier)
    finally:
        notifier.close()


def place_order(outbox: SyncOutbox, name: str, total: int) -> None:
    """Save an order and its event: both are committed, or neither is."""
    with transaction.atomic():
        order = Order.objects.create(name=name, total=total)
        event = Event("order.created", {"order": order.pk, "total": total}, key=str(order.pk))
        outbox.add(connection, event)
        if total < 0:
            raise ValueError("a negative total")
