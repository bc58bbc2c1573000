"""The payment service: python -m examples.payments.payment DATABASE QUEUE [--die N].

It takes orders from RabbitMQ. The inbox row, the payment and the event `payment.made` are one
commit; the message is acknowledged after it. With `--die N` the process kills itself after its
Nth commit, before the acknowledgement: the message is redelivered and recognised as done.
"""

# ruff: noqa: ANN001, ANN202 - an example, not a part of the package

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from postroom import Consumer, Event, Handlers


class Base(DeclarativeBase):
    """The tables of the payment service."""


class Payment(Base):
    """A payment. Only the inbox prevents an order from being paid twice."""

    __tablename__ = "payments"

    number: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str]
    total: Mapped[int]


def create(database: str, queue: str, die_after: int = 0) -> Consumer:
    """Return the service; its handlers run in SQLAlchemy sessions."""
    engine = create_async_engine(database.replace("postgresql:", "postgresql+psycopg:"))
    sessions = async_sessionmaker(engine)
    commits = 0

    @asynccontextmanager
    async def transaction():
        nonlocal commits
        async with sessions.begin() as session:
            yield session
        commits += 1
        if commits == die_after:
            os.kill(os.getpid(), signal.SIGKILL)

    handlers = Handlers(name="payments", transaction=transaction)

    @handlers.on("order.created")
    async def pay(event, session, context):
        order = event.data
        session.add(Payment(order_id=order["id"], total=order["total"]))
        await context.add(Event("payment.made", order, key=order["id"], stream="payments"))

    return Consumer(queue, database, handlers)


async def main() -> None:
    """Report when the queue exists, run until a signal arrives, and print the number of repeats."""
    parser = argparse.ArgumentParser()
    parser.add_argument("database")
    parser.add_argument("queue")
    parser.add_argument("--die", type=int, default=0)
    args = parser.parse_args()
    consumer = create(args.database, args.queue, args.die)
    await consumer.start()
    print("ready", flush=True)
    await consumer.run()
    print(f"repeats {consumer.counts.repeats}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
