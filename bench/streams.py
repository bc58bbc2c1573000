"""Whether a dead RabbitMQ with a backlog slows the Kafka stream that the same process serves.

    python -m bench.streams                         1,000,000 events behind the dead one
    python -m bench.streams --backlog 100000        fewer

A PostgreSQL and a Kafka are started for the run. In every round the same events go to Kafka twice:
alone, from an outbox with nothing else in it; and beside a second relay in the same process, from
an outbox in which the backlog of that one's stream stands too, and whose RabbitMQ is not there.
Rounds alternate; medians count.
"""

import argparse
import asyncio
import platform
import statistics
import sys
import time
import uuid
from contextlib import AsyncExitStack, ExitStack
from urllib.parse import urlsplit

from confluent_kafka.admin import AdminClient, NewTopic

from bench.grounds import open_ground
from bench.grounds.events import PAYLOAD_TEXT, rows
from bench.grounds.postgres import PostgresGround
from postroom.brokers.kafka import KafkaBroker
from postroom.engine.relay.relay import Relay
from postroom.observer import BreakerChanged
from postroom.transactions import resolve_sync
from tests.servers.kafka import Kafka
from tests.servers.process import free_port

ALONE = "alone"
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
            ground.store(), KafkaBroker(f"kafka://{servers}", topic=topic),
            batch_size=500, max_batch_size=500, keep_done_seconds=0,
        )  # fmt: skip
        began = time.perf_counter()
        done = (await relay.drain()).done
        return done, done / (time.perf_counter() - began)


def crowded(ground, backlog):
    """Return an outbox in a database of its own, with so many events of the stream `mail`."""
    import psycopg

    name = f"bench_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(ground.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    other = PostgresGround(urlsplit(ground.url)._replace(path=f"/{name}").geturl())
    print(f"writing {backlog:,} events …", file=sys.stderr)
    with psycopg.connect(other.url, autocommit=True) as connection:
        connection.execute(BACKLOG, (PAYLOAD_TEXT, backlog))
    return other


def refill(ground, events):
    """Write the events for Kafka again; what a round has delivered is deleted."""
    import psycopg

    with psycopg.connect(ground.url, autocommit=True) as connection:
        with connection.transaction():
            resolve_sync(connection, "postroom_").insert(list(rows(events, 1_000)))
        connection.execute("VACUUM ANALYZE postroom_outbox")
        connection.execute("CHECKPOINT")


def measure(ground, servers, args):
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, 6, 1)])[topic].result(30)
    other = crowded(ground, args.backlog)
    grounds = {ALONE: ground, f"beside a dead RabbitMQ, {args.backlog:,} behind it": other}
    rates = {name: [] for name in grounds}
    try:
        for number in range(args.rounds):
            for name, one in grounds.items():
                refill(one, args.events)
                done, rate = asyncio.run(deliver(one, servers, topic, beside=one is other))
                if done != args.events:
                    raise SystemExit(f"{name}: sent {done} of {args.events}")
                rates[name].append(rate)
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
    finally:
        other.close()
    return rates


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m bench.streams")
    parser.add_argument("--store", default="postgres", help="postgres, postgres18, or a URL")
    parser.add_argument("--events", type=int, default=20_000, help="of the stream to Kafka")
    parser.add_argument("--backlog", type=int, default=1_000_000, help="behind the dead RabbitMQ")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(argv)
    with ExitStack() as stack:
        servers = stack.enter_context(Kafka()).address
        ground = open_ground(args.store)
        stack.callback(ground.close)
        if not isinstance(ground, PostgresGround):
            raise SystemExit("the backlog is written in PostgreSQL's way")
        rates = measure(ground, servers, args)
    print(f"\n{args.events:,} events to Kafka, batch 500, Python {platform.python_version()}\n")
    reference = statistics.median(rates[ALONE])
    for name, found in rates.items():
        median = statistics.median(found)
        spread = f"{min(found):,.0f}–{max(found):,.0f}"
        print(f"{name:48}{median:>10,.0f} events/s  {spread:>15}  {median / reference:>5.2f}")


if __name__ == "__main__":
    main()
