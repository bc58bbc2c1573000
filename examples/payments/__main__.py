"""Orders and payments: two services on PostgreSQL, with RabbitMQ between them.

Orders are placed while RabbitMQ is running, while it is stopped, and after it was started again;
the payment service is killed between a commit and its acknowledgement. Start the servers first,
from the project's folder, or name your own:

  docker compose -f examples/payments/compose.yaml up --detach --wait
  python -m examples.payments
"""

# ruff: noqa: ANN201 - an example, not a part of the package

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Callable
from contextlib import asynccontextmanager

import aio_pika
import httpx
import psycopg
from sqlalchemy import create_engine

from examples.payments import orders, payment
from examples.places import Outage, arguments, new_name, postgres_database, with_option
from postroom import migrate

EACH = 20
WITHIN_SECONDS = 60.0


@asynccontextmanager
async def payment_service(database: str, queue: str, *options: str):
    """Run the payment service in a separate process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "examples.payments.payment", database, queue, *options,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(WITHIN_SECONDS):
            assert process.stdout is not None
            await process.stdout.readline()  # ready: its queue exists and is bound
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true, with a time limit."""
    async with asyncio.timeout(WITHIN_SECONDS):
        while True:
            if await asyncio.to_thread(condition):
                return
            await asyncio.sleep(0.05)


def count(database: str, sql: str) -> int:
    """Return the result of a count query."""
    with psycopg.connect(database) as connection:
        row = connection.execute(sql).fetchone()
        return int(row[0]) if row else 0


async def story(database: str, correlation_id: str) -> None:
    """Print what an order caused, as an operator would."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "postroom", "story", correlation_id, "--store", database,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    await process.wait()


async def scenario(database: str, rabbit: str, outage: Outage) -> bool:
    """Place orders while services run, crash and restart."""
    await migrate(database)
    engine = create_engine(database.replace("postgresql:", "postgresql+psycopg:"))
    payment.Base.metadata.create_all(engine)
    engine.dispose()
    # Use a quorum queue with several nodes. On one node of RabbitMQ 3.10 it may find no leader
    # after a kill for as long as clients ask for it.
    exchange = new_name()
    bound = with_option(rabbit, exchange=exchange, declare="on", connect_seconds="2")
    queue = with_option(bound, queue=exchange, queue_type="classic")
    app = orders.create(database, bound)

    def paid() -> int:
        return count(database, "SELECT count(*) FROM payments")

    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://orders") as client,
    ):
        placed = 0

        async def buy() -> None:
            nonlocal placed
            for _ in range(EACH):
                placed += 1
                order = {"id": f"order-{placed}", "total": placed}
                (await client.post("/orders", json=order)).raise_for_status()

        async with payment_service(database, queue, "--die", "10") as first:
            await buy()
            async with asyncio.timeout(WITHIN_SECONDS):
                killed = await first.wait()
        print(f"{placed} orders; the payment service died between commit and ack ({killed})")
        async with payment_service(database, queue) as second:
            await until(lambda: paid() == placed)
            print(f"{placed} orders, {paid()} payments: a new one continued")
            if outage:
                await asyncio.to_thread(outage.begin)
                await buy()
                print(f"RabbitMQ is killed; {placed} orders, {paid()} payments")
                await asyncio.to_thread(outage.end)
            await buy()
            await until(lambda: paid() == placed)
            second.send_signal(signal.SIGTERM)
            said, _ = await second.communicate()
    repeats = int((re.findall(r"repeats (\d+)", said.decode()) or ["-1"])[0])
    twice = paid() - count(database, "SELECT count(DISTINCT order_id) FROM payments")
    announced = count(database, "SELECT count(*) FROM postroom_outbox WHERE stream = 'payments'")
    await story(database, "order order-1")
    await remove(rabbit, exchange)
    print(f"orders: {placed}, payments: {paid()}, repeats seen: {repeats}, paid twice: {twice}")
    return paid() == placed == announced and twice == 0 and repeats > 0


async def remove(rabbit: str, name: str) -> None:
    """Delete the queue and the exchange of this run."""
    async with await aio_pika.connect(rabbit) as connection:
        channel = await connection.channel()
        await channel.queue_delete(name)
        await channel.exchange_delete(name)


def main() -> int:
    """Run the scenario in a new database."""
    given = arguments("payments", __doc__, "postgres", "rabbitmq").parse_args()
    with postgres_database(given.postgres) as database:
        outage = Outage(given.stop, given.start)
        kept = asyncio.run(scenario(database, given.rabbitmq, outage))
    print("every order was paid once" if kept else "A PROMISE WAS BROKEN")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
