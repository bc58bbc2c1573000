"""Whether a dead RabbitMQ with a backlog slows the Kafka stream that the same process serves.

    python -m bench.streams                         100,000 events behind the dead one
    python -m bench.streams --backlog 1000000       as many as the promise says

A PostgreSQL and a Kafka are started for the run. In every round the same events go to Kafka twice:
alone, and beside a second relay in the same process whose RabbitMQ is not there. Medians count.
"""

import argparse
import asyncio
import platform
import statistics
import sys
import time
import uuid
from contextlib import AsyncExitStack, ExitStack

from confluent_kafka.admin import AdminClient, NewTopic

from bench.grounds import open_ground
from bench.grounds.events import PAYLOAD_TEXT
from postroom.brokers.kafka import KafkaBroker
from postroom.engine.relay import Relay
from postroom.observer import BreakerChanged
from tests.servers.kafka import Kafka
from tests.servers.process import free_port

BACKLOG = """
INSERT INTO postroom_outbox (id, stream, lane, key_hash, type, topic, key, payload, content_type,
                             size, occurred_at, created_at, state, stage)
SELECT 'mail-' || n, 'mail', mod(get_byte(hash, 0), 64), hash, 'mail', 'mail', 'm' || mod(n, 1000),
       %s, 'application/json', 200, now(), now(), 'pending', 'ready'
FROM generate_series(1, %s) AS n, decode(md5(mod(n, 1000)::text), 'hex') AS hash
"""


class Opened:
    """Tells when the breaker of a stream opens."""

    def __init__(self):
        self.opened = asyncio.Event()

    def observe(self, fact):
        if isinstance(fact, BreakerChanged) and fact.state == "open":
            self.opened.set()


async def deliver(ground, servers, topic, *, beside):
    """Send all of the main stream to Kafka; returns how many, and the rate."""
    async with AsyncExitStack() as stack:
        if beside:
            journal = Opened()
            dead = Relay(
                ground.store(), f"amqp://127.0.0.1:{free_port()}", stream="mail",
                observers=[journal], keep_done_seconds=0,
            )  # fmt: skip
            await stack.enter_async_context(dead)
            await journal.opened.wait()
        relay = Relay(
            ground.store(), KafkaBroker(servers, topic=topic), batch_size=500, max_batch_size=500,
            keep_done_seconds=0,
        )  # fmt: skip
        began = time.perf_counter()
        done = (await relay.drain()).done
        return done, done / (time.perf_counter() - began)


def measure(ground, servers, args):
    import psycopg

    topic = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, 6, 1)])[topic].result(30)
    ground.prepare("plain", args.events, 1_000)
    words = f"beside a dead RabbitMQ, {args.backlog:,} behind it"
    rates = {"alone": [], words: []}
    for number in range(args.rounds):
        for name, found in rates.items():
            ground.reset("plain")
            if name == words:
                with psycopg.connect(ground.url, autocommit=True) as connection:
                    connection.execute(BACKLOG, (PAYLOAD_TEXT, args.backlog))
                    connection.execute("VACUUM ANALYZE postroom_outbox")
                    connection.execute("CHECKPOINT")
            done, rate = asyncio.run(deliver(ground, servers, topic, beside=name == words))
            if done != args.events:
                raise SystemExit(f"{name}: sent {done} of {args.events}")
            found.append(rate)
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
    return rates


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m bench.streams")
    parser.add_argument("--store", default="postgres", help="postgres, postgres18, or a URL")
    parser.add_argument("--events", type=int, default=20_000, help="of the stream to Kafka")
    parser.add_argument("--backlog", type=int, default=100_000, help="behind the dead RabbitMQ")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(argv)
    with ExitStack() as stack:
        servers = stack.enter_context(Kafka()).address
        ground = open_ground(args.store)
        stack.callback(ground.close)
        rates = measure(ground, servers, args)
    print(f"\n{args.events:,} events to Kafka, batch 500, Python {platform.python_version()}\n")
    reference = statistics.median(rates["alone"])
    for name, found in rates.items():
        median = statistics.median(found)
        spread = f"{min(found):,.0f}–{max(found):,.0f}"
        print(f"{name:48}{median:>10,.0f} events/s  {spread:>15}  {median / reference:>5.2f}")


if __name__ == "__main__":
    main()
