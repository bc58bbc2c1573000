"""How fast RabbitMQ takes events, beside a plain aio-pika loop with the same messages and confirms.

    python -m bench.rabbitmq                        starts a RabbitMQ of its own
    python -m bench.rabbitmq --url amqp://…         one that is there

Both send persistent, mandatory messages with the same properties and headers in batches, and wait
for every confirm of a batch before the next. `one key` shows what the order of a single key costs:
one message in flight, so a round trip each. Rounds alternate; the table shows medians.
"""

import argparse
import asyncio
import json
import statistics
import time
from contextlib import ExitStack
from uuid import uuid4

import aio_pika
from aio_pika import DeliveryMode

from postroom.brokers.rabbitmq import RabbitBroker
from postroom.brokers.rabbitmq import connection as connection_module
from postroom.model.envelope import write_headers
from postroom.testing.broker_tools import RecordingReporter, make_record
from tests.servers.rabbitmq import RabbitMQ


class CountingReporter(RecordingReporter):
    """Counts confirms, as the relay's own reporter does at once for a whole batch."""

    def __init__(self):
        super().__init__()
        self.confirmed = 0

    def confirm(self, records, receipts=()):
        self.confirmed += len(records)

    def report(self, record, outcome):
        raise RuntimeError(f"{record.id}: {outcome}")


def build(events, keys, topic, size):
    return [
        make_record(
            n + 1, id=str(uuid4()), key=f"order-{n % keys}", topic=topic, payload=b"x" * size
        )
        for n in range(events)
    ]


async def plain(url, queue, records, batch):
    """A gather over `publish`, batch by batch."""
    connection = await aio_pika.connect(url)
    channel = await connection.channel()
    started = time.perf_counter()
    for at in range(0, len(records), batch):
        await asyncio.gather(
            *(
                channel.default_exchange.publish(
                    aio_pika.Message(
                        record.payload,
                        headers=dict(write_headers(record, "outbox")),
                        delivery_mode=DeliveryMode.PERSISTENT,
                        content_type=record.content_type,
                        message_id=record.id,
                        timestamp=record.occurred_at,
                        type=record.type,
                        app_id="postroom",
                    ),
                    record.topic,
                    mandatory=True,
                )
                for record in records[at : at + batch]
            )
        )
    seconds = time.perf_counter() - started
    await connection.close()
    return len(records) / seconds


async def ours(url, queue, records, batch):
    broker = RabbitBroker(url)
    await broker.open()
    await broker.health()
    reporter = CountingReporter()
    started = time.perf_counter()
    for at in range(0, len(records), batch):
        await broker.publish(records[at : at + batch], reporter)
    seconds = time.perf_counter() - started
    await broker.close()
    assert reporter.confirmed == len(records)
    return len(records) / seconds


async def by_public_api(url, queue, records, batch):
    fits, connection_module.fits = connection_module.fits, lambda _: False
    try:
        return await ours(url, queue, records, batch)
    finally:
        connection_module.fits = fits


async def one_key(url, queue, records, batch):
    first = records[0]
    run = [r._replace(key=first.key, key_hash=first.key_hash) for r in records[: batch * 2]]
    return await ours(url, queue, run, batch)


CONTESTANTS = {
    "plain aio-pika, gather": plain,
    "postroom": ours,
    "postroom, public API only": by_public_api,
    "postroom, one key": one_key,
}


async def measure(url, args):
    connection = await aio_pika.connect(url)
    channel = await connection.channel()
    figures = []
    for kind in args.queue_type:
        name = f"bench-{uuid4().hex[:8]}"
        queue = await channel.declare_queue(name, durable=True, arguments={"x-queue-type": kind})
        rates = {contestant: [] for contestant in CONTESTANTS}
        for _ in range(args.rounds):
            for contestant, run in CONTESTANTS.items():
                records = build(args.events, args.keys, name, args.size)
                rates[contestant].append(await run(url, name, records, args.batch))
                await queue.purge()
        await queue.delete(if_unused=False, if_empty=False)
        medians = {contestant: statistics.median(found) for contestant, found in rates.items()}
        base = medians["plain aio-pika, gather"]
        print(f"\n{kind} queue: {args.events:,} events of {args.size} B, {args.keys:,} keys,")
        print(f"batches of {args.batch}, {args.rounds} rounds (median, lowest, highest)")
        for contestant, found in rates.items():
            print(
                f"  {contestant:28}{medians[contestant]:>9,.0f}/s {min(found):>9,.0f}"
                f" {max(found):>9,.0f} {medians[contestant] / base:>7.1f} x"
            )
        figures.append({"queue_type": kind, "batch": args.batch, "rates": rates})
    await connection.close()
    return figures


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m bench.rabbitmq")
    parser.add_argument("--url")
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--size", type=int, default=200, help="bytes of a payload")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--queue-type", nargs="+", default=["quorum", "classic"])
    parser.add_argument("--json", help="append the results to this file, one object a line")
    args = parser.parse_args(argv)
    with ExitStack() as stack:
        url = args.url or stack.enter_context(RabbitMQ()).url
        figures = asyncio.run(measure(url, args))
    if args.json:
        with open(args.json, "a") as file:
            file.writelines(json.dumps(figure) + "\n" for figure in figures)


if __name__ == "__main__":
    main()
