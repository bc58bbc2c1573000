"""How fast events go to Kafka beside a bare producer in the same run.

    python -m bench.kafka                       starts a Kafka of its own
    python -m bench.kafka --servers host:9092   one that is there (two topics are made in it)

The bare loop is what one writes by hand: produce each message, then flush. It is shown with the
same headers and without any. Rounds alternate between the contestants; medians count.
"""

import argparse
import asyncio
import contextlib
import json
import platform
import statistics
import time
import uuid
from pathlib import Path

import confluent_kafka
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from postroom.brokers.kafka import KafkaBroker
from postroom.brokers.kafka.settings import KafkaSettings
from postroom.model.envelope import write_headers
from postroom.testing.broker_tools import make_record


class CountingReporter:
    """Takes outcomes, and does nothing else with them."""

    outbox_id = "bench"
    keeps_receipts = True

    def __init__(self):
        self.confirmed = 0

    def confirm(self, records, receipts=()):
        self.confirmed += len(records)

    def report(self, record, outcome):
        raise RuntimeError(f"{record.id}: {outcome}")

    async def begin(self, record):
        return True


def bare(producer, records, topic, *, headers):
    landed = []

    def report(error, message):
        if error is not None:
            raise RuntimeError(error)
        landed.append(message.offset())

    for record in records:
        producer.produce(
            topic, record.payload, record.key, on_delivery=report,
            headers=write_headers(record, "bench") if headers else None,
        )  # fmt: skip
    producer.flush()
    return len(landed)


async def speed(servers, args):
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, args.partitions, 1)])[topic].result(30)
    records = [
        make_record(n, key=f"order-{n % args.keys}", topic=topic, payload=b"x" * args.bytes)
        for n in range(args.batch)
    ]
    settings = KafkaSettings(servers=servers)
    config = {**settings.producer(), **settings.batching(500_000, one_by_one=False)}
    producer = Producer({**config, "log_level": 0})
    reporter = CountingReporter()
    brokers = {"postroom": KafkaBroker(f"kafka://{servers}")}
    if args.transactions:  # its many threads disturb the others: only when asked for
        brokers["postroom, transactions"] = KafkaBroker(
            f"kafka://{servers}", delivery="transactional"
        )
    for broker in brokers.values():
        await broker.open()

    async def ours(broker):
        before = reporter.confirmed
        await broker.publish(records, reporter)
        return reporter.confirmed - before

    async def theirs(**how):
        return bare(producer, records, topic, **how)

    contests = {
        "bare produce + flush, no headers": lambda: theirs(headers=False),
        "bare produce + flush, the same headers": lambda: theirs(headers=True),
        **{name: (lambda b=broker: ours(b)) for name, broker in brokers.items()},
    }
    rates = {name: [] for name in contests}
    for _ in range(args.rounds + 3):  # three to warm up
        for name, contest in contests.items():
            began = time.perf_counter()
            assert await contest() == args.batch
            rates[name].append(args.batch / (time.perf_counter() - began))
    for broker in brokers.values():
        await broker.close()
    reference = statistics.median(rates["bare produce + flush, the same headers"][3:])
    print(
        f"{args.batch} records of {args.bytes} B, {args.keys:,} keys, {args.partitions} "
        f"partitions, {args.rounds} rounds, Python {platform.python_version()}, "
        f"confluent-kafka {confluent_kafka.__version__}\n"
    )
    for name, found in rates.items():
        rate = statistics.median(found[3:])
        print(f"{name:45}{rate:>10,.0f} records/s{rate / reference:>8.2f}")
        if args.json:
            with Path(args.json).open("a") as file:
                result = {"suite": "kafka", "name": name, "rate": rate, "ratio": rate / reference}
                file.write(json.dumps(result) + "\n")


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m bench.kafka")
    parser.add_argument("--servers", help="a Kafka that is there; else one is started")
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--bytes", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--transactions", action="store_true", help="also in transactions")
    parser.add_argument("--json", help="append the results to this file, one object a line")
    args = parser.parse_args(argv)
    with contextlib.ExitStack() as stack:
        servers = args.servers
        if servers is None:
            from tests.servers.kafka import Kafka

            servers = stack.enter_context(Kafka()).address
        asyncio.run(speed(servers, args))


if __name__ == "__main__":
    main()
