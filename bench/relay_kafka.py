"""From PostgreSQL to Kafka: a relay beside the loop that one writes by hand, in one run.

    python -m bench.relay_kafka                             starts both servers for this run
    python -m bench.relay_kafka --store postgresql://… --broker kafka://…   (the outbox is emptied!)
    python -m bench.relay --store postgres --broker kafka   the same

The bare loop reads a batch in order, produces it, flushes, deletes the rows, and does so again. It
has no leases, no fence and no order after a failure. The producer's settings are the relay's own:
linger, acks, idempotence, compression, the size of batches. There are two of it: one sends key and
value alone, the other sends the headers of a relay's message too, the same bytes on the wire.
Rounds alternate between the contestants; the table shows medians, the spread over the rounds, and
each one's part of either bare loop.
"""

import argparse
import asyncio
import json
import platform
import statistics
import sys
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka
import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.grounds import open_ground
from bench.grounds.postgres import COLUMNS, PostgresGround
from postroom.brokers.kafka import KafkaBroker
from postroom.brokers.kafka.settings import KafkaSettings
from postroom.engine.relay.relay import Relay

BARE = "bare psycopg + confluent-kafka"
SAME_BYTES = "the same with a relay's headers"
_PLACES = {name.strip(): n for n, name in enumerate(COLUMNS.split(","))}
_ID, _TYPE, _KEY = _PLACES["id"], _PLACES["type"], _PLACES["key"]
_FORM, _VERSION, _WHEN = (
    _PLACES["content_type"], _PLACES["schema_version"], _PLACES["occurred_at"]
)  # fmt: skip


def headers_of(row):
    """What a relay's message says of such an event, written as one would by hand."""
    return [
        ("postroom-id", row[_ID]),
        ("postroom-type", row[_TYPE]),
        ("content-type", row[_FORM]),
        ("postroom-schema-version", str(row[_VERSION])),
        ("postroom-occurred-at", row[_WHEN].isoformat()),
        ("postroom-key", row[_KEY]),
    ]


def bare(url, config, topic, batch, headers):
    """Read, produce, flush, delete; returns how many were delivered."""
    producer = Producer(config)  # a relay makes its own, too
    landed = 0

    def report(error, _):
        nonlocal landed
        if error is not None:
            raise RuntimeError(error)
        landed += 1

    key, payload = _PLACES["key"], _PLACES["payload"]
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.cursor(binary=True)
        while True:
            found = cursor.execute(
                f"SELECT {COLUMNS} FROM postroom_outbox WHERE stage = 'ready' "
                "ORDER BY seq LIMIT %s",
                (batch,),
            ).fetchall()
            if not found:
                return landed
            for row in found:
                producer.produce(
                    topic, row[payload], row[key], on_delivery=report,
                    headers=headers_of(row) if headers else None,
                )  # fmt: skip
            producer.flush()
            cursor.execute(
                "DELETE FROM postroom_outbox WHERE seq = ANY(%s)", ([row[0] for row in found],)
            )


def drain(ground, broker, batch, keep_done, **options):
    async def run():
        relay = Relay(
            ground.store(), broker(), batch_size=batch, max_batch_size=batch,
            keep_done_seconds=keep_done, **options,
        )  # fmt: skip
        return (await relay.drain()).done

    return asyncio.run(run())


def measure(ground, servers, args):
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, 6, 1)])[topic].result(30)
    settings = KafkaSettings(servers=servers)
    batching = settings.batching(500_000, one_by_one=False)
    config = {**settings.producer(), **batching, "log_level": 0}

    def broker():
        return KafkaBroker(f"kafka://{servers}", topic=topic)

    contests = {
        BARE: lambda: bare(ground.url, config, topic, args.batch, headers=False),
        SAME_BYTES: lambda: bare(ground.url, config, topic, args.batch, headers=True),
        "relay, keep_done_seconds=0": lambda: drain(ground, broker, args.batch, 0),
        "relay, keep_done_seconds=0, groups=4": lambda: drain(
            ground, broker, args.batch, 0, groups=4
        ),
        "relay, default (kept for a day)": lambda: drain(ground, broker, args.batch, 86_400),
    }
    ground.prepare("plain", args.events, args.keys)
    rates = {name: [] for name in contests}
    for number in range(args.rounds):
        for name, contest in contests.items():
            ground.reset("plain")
            began = time.perf_counter()
            sent = contest()
            rates[name].append(sent / (time.perf_counter() - began))
            if sent != args.events:
                raise SystemExit(f"{name}: sent {sent} of {args.events}")
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
    return rates


def show(args, version, rates):
    medians = {name: statistics.median(found) for name, found in rates.items()}
    print(
        f"\n{args.events:,} events, {args.keys:,} keys, batch {args.batch}, {args.rounds} rounds, "
        f"Python {platform.python_version()}, {version}, "
        f"confluent-kafka {confluent_kafka.__version__}\n"
    )
    print(f"{'':36}{'events/s':>10}  {'spread':>17}  {'of bare':>7}  {'of the same bytes':>17}")
    for name, found in rates.items():
        median = medians[name]
        spread = f"{min(found):,.0f}–{max(found):,.0f}"
        parts = median / medians[BARE], median / medians[SAME_BYTES]
        print(f"{name:36}{median:>10,.0f}  {spread:>17}  {parts[0]:>7.2f}  {parts[1]:>17.2f}")
        if args.json:
            with Path(args.json).open("a") as file:
                result = {
                    "suite": "relay_kafka", "name": name, "ours": median,
                    "reference": medians[BARE], "ratio": parts[0], "ratio_same_bytes": parts[1],
                    "spread": [min(found), max(found)], "events": args.events, "batch": args.batch,
                }  # fmt: skip
                file.write(json.dumps(result) + "\n")


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m bench.relay_kafka")
    parser.add_argument("--store", default="postgres", help="postgres, postgres18, or a URL")
    parser.add_argument("--broker", default="kafka", help="kafka, or a URL")
    parser.add_argument("--events", type=int, default=40_000)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="append the results to this file, one object a line")
    return compare(parser.parse_args(argv))


def compare(args):
    """Run the contest; `args` may come from bench.relay."""
    with ExitStack() as stack:
        servers = args.broker.removeprefix("kafka://")
        if args.broker == "kafka":
            from tests.servers.kafka import Kafka

            servers = stack.enter_context(Kafka()).address
        ground = open_ground(args.store)
        stack.callback(ground.close)
        if not isinstance(ground, PostgresGround):
            raise SystemExit("the bare loop speaks PostgreSQL only")
        show(args, ground.version, measure(ground, servers, args))
    return 0


if __name__ == "__main__":
    sys.exit(main())
