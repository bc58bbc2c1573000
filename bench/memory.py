"""How much memory a relay needs with big events behind a broker that is not there.

    python -m bench.memory                              2,000 events of 500 KB
    python -m bench.memory --store postgresql://…       one that is there (its outbox is emptied!)

Each relay runs in a process of its own, which says how much it has held at most: before there was
anything to read, and after it has tried so many times to send. What is read is bounded by bytes, so
the second must be near the first, and far from what all events have together. The last one sends
them all, to a destination that takes everything.
"""

import argparse
import asyncio
import json
import platform
import resource
import subprocess
import sys
from pathlib import Path

import psycopg

from bench.grounds import open_ground
from bench.grounds.postgres import PostgresGround
from postroom.brokers.memory import NullBroker
from postroom.engine.relay.relay import Relay
from postroom.observer import Attempt, Delivered
from tests.servers.process import free_port

EVENTS = """
INSERT INTO postroom_outbox (id, stream, lane, key_hash, type, topic, key, payload, content_type,
                             size, occurred_at, created_at, state, stage)
SELECT 'big-' || n, 'main', mod(get_byte(hash, 0), 64), hash, 'big', 'big', 'k' || mod(n, 100),
       to_json(repeat(md5(n::text), %(bytes)s / 32))::text, 'application/json', %(bytes)s + 2,
       now(), now(), 'pending', 'ready'
FROM generate_series(1, %(events)s) AS n, decode(md5(mod(n, 100)::text), 'hex') AS hash
"""
TAKES_ALL = "a destination that takes everything"


class Tally:
    """Counts what was tried and found the broker away, and what was delivered."""

    def __init__(self):
        self.outages = self.delivered = 0
        self.stirred = asyncio.Event()

    def observe(self, fact):
        if isinstance(fact, Attempt) and fact.verdict == "outage":
            self.outages += 1
        elif isinstance(fact, Delivered):
            self.delivered += len(fact.records)
        self.stirred.set()

    async def until(self, done):
        while not done(self):
            self.stirred.clear()
            await self.stirred.wait()


def peak():
    """The most that this process has held, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def serve(args):
    """One relay: say the peak when it is ready, wait for a line, work, say the peak again."""
    tally = Tally()
    broker = NullBroker() if args.serve == "null" else args.serve
    relay = Relay(
        args.store, broker, observers=[tally], outage_seconds=0.05, max_outage_seconds=0.2
    )
    async with relay:
        print(peak(), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        if args.serve == "null":
            await tally.until(lambda t: t.delivered >= args.events)
        else:
            await tally.until(lambda t: t.outages >= args.tries)
        print(peak(), tally.outages, tally.delivered, flush=True)


def measure(ground, args):
    destinations = {
        "a Kafka that is not there": f"kafka://127.0.0.1:{free_port()}?answer_seconds=0.5",
        "a RabbitMQ that is not there": f"amqp://127.0.0.1:{free_port()}",
        TAKES_ALL: "null",
    }
    for name, destination in destinations.items():
        with psycopg.connect(ground.url, autocommit=True) as connection:
            connection.execute("TRUNCATE postroom_outbox, postroom_block")
            yield name, *relay_beside(connection, ground.url, destination, args)


def relay_beside(connection, url, destination, args):
    command = [sys.executable, "-m", "bench.memory", "--serve", destination, "--store", url]
    command += ["--events", str(args.events), "--tries", str(args.tries)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        before = float(process.stdout.readline())
        connection.execute(EVENTS, {"bytes": args.bytes, "events": args.events})
        process.stdin.write("go\n")
        process.stdin.flush()
        after, outages, delivered = process.stdout.readline().split()
        process.stdin.close()
    return before, float(after), int(outages), int(delivered)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m bench.memory")
    parser.add_argument("--store", default="postgres", help="postgres, postgres18, or a URL")
    parser.add_argument("--events", type=int, default=2_000)
    parser.add_argument("--bytes", type=int, default=500_000, help="of each event's payload")
    parser.add_argument("--tries", type=int, default=20, help="to reach the broker")
    parser.add_argument("--json", help="append the results to this file, one object a line")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve:
        return asyncio.run(serve(args))
    ground = open_ground(args.store)
    try:
        if not isinstance(ground, PostgresGround):
            raise SystemExit("the events are written in PostgreSQL's way")
        show(args, ground.version, measure(ground, args))
    finally:
        ground.close()


def show(args, version, results):
    total = args.events * args.bytes / 1_000_000
    print(
        f"{args.events:,} events of {args.bytes:,} bytes, {total:,.0f} MB in all; "
        f"Python {platform.python_version()}, {version}\n"
    )
    print(f"{'a relay before':40}{'ready':>8}{'at most':>10}{'grew by':>10}{'tries':>8}{'sent':>8}")
    for name, before, after, outages, delivered in results:
        print(
            f"{name:40}{before:>5,.0f} MB{after:>7,.0f} MB{after - before:>7,.0f} MB"
            f"{outages:>8,}{delivered:>8,}",
            flush=True,
        )
        if args.json:
            with Path(args.json).open("a") as file:
                result = {
                    "suite": "memory", "name": name, "events": args.events, "bytes": args.bytes,
                    "ready_mb": before, "peak_mb": after, "tries": outages, "sent": delivered,
                }  # fmt: skip
                file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    sys.exit(main())
