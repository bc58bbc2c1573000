"""How long from a commit to the destination's call, when the relay was idle.

    python -m bench.latency --store sqlite
    python -m bench.latency --store postgres18        starts a PostgreSQL of its own

`kick`: the writer is in the relay's process. `notify`: it is a process of its own, and a
PostgresNotifier wakes the relay. `poll`: it is a process of its own, and nobody wakes the relay.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from contextlib import closing

from bench.rounds import say
from postroom import Event, Relay, SyncOutbox, migrate
from postroom.brokers.memory import MemoryBroker

GAP_SECONDS = (0.05, 0.15)  # long enough to be idle again


class Clocked(MemoryBroker):
    """Notes when each event was handed over."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    async def publish(self, batch, reporter):
        now = time.time()
        for record in batch:
            self.seen.setdefault(record.id, now)
        await super().publish(batch, reporter)


def write(url, count, outbox, told):
    """Commit events one at a time, with pauses; tell the id and the time of each commit."""
    if url.startswith("sqlite"):
        import sqlite3

        conn = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)
    else:
        import psycopg

        conn = psycopg.connect(url)
    rng = random.Random(1)
    for n in range(count):
        event = Event("measured", {"n": n}, key=f"k{n}")
        conn.execute("INSERT INTO bench_business VALUES (1)")
        outbox.add(conn, event)
        conn.commit()
        told(event.id, time.time())
        outbox.kick()
        time.sleep(rng.uniform(*GAP_SECONDS))
    conn.close()


async def run(url, way, count):
    """Return the seconds of each event."""
    broker, committed = Clocked(), {}
    async with Relay(url, broker, poll_seconds=0.5):
        await asyncio.sleep(1.0)
        if way == "kick":
            await asyncio.to_thread(write, url, count, SyncOutbox(), committed.__setitem__)
        else:
            command = [sys.executable, "-m", "bench.latency", "--write", way, "--store", url]
            process = await asyncio.create_subprocess_exec(
                *command, "--count", str(count), stdout=asyncio.subprocess.PIPE
            )
            out, _ = await process.communicate()
            committed = dict(json.loads(line) for line in out.splitlines())
        async with asyncio.timeout(30):
            while len(broker.seen) < count:
                await asyncio.sleep(0.05)
    return [broker.seen[i] - at for i, at in committed.items()]


def writer(url, way, count):
    """The other process."""
    notifier = None
    if way == "notify":
        from postroom.stores.postgres import PostgresNotifier

        notifier = PostgresNotifier(url)
    outbox = SyncOutbox(notifier=notifier)
    write(url, count, outbox, lambda i, at: print(json.dumps([i, at]), flush=True))
    if notifier is not None:
        notifier.close()


def main():
    parser = argparse.ArgumentParser(prog="python -m bench.latency")
    parser.add_argument("--store", default="sqlite", help="sqlite, postgres or postgres18")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--write", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.write:
        writer(args.store, args.write, args.count)
        return
    if args.store == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            url = f"sqlite:///{folder}/app.db"
            show(measure(url, ["kick", "poll"], args.count))
    else:
        from tests.servers.catalog import SERVERS

        with SERVERS[args.store].make() as server:
            show(measure(server.url, ["kick", "notify", "poll"], args.count))


def measure(url, ways, count, rounds=1):
    """Return for each way the sorted milliseconds of each round; the ways take turns."""
    asyncio.run(migrate(url))
    make = "CREATE TABLE IF NOT EXISTS bench_business (n INTEGER)"
    if url.startswith("sqlite"):
        import sqlite3

        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as conn:
            conn.execute(make)
    else:
        import psycopg

        with psycopg.connect(url) as conn:
            conn.execute(make)
    took = {way: [] for way in ways}
    for number in range(rounds):
        for way in ways:
            took[way].append(sorted(1_000 * one for one in asyncio.run(run(url, way, count))))
        say(f"round {number + 1} of {rounds}")
    return took


def percentile(rounds, part):
    """The value below which this part of all rounds lies."""
    every = sorted(one for found in rounds for one in found)
    return every[min(int(len(every) * part), len(every) - 1)]


def show(took):
    print("commits, each after a pause; milliseconds to the destination's call\n")
    print(f"{'':10}{'median':>10}{'p99':>10}{'worst':>10}")
    for way, rounds in took.items():
        figures = [percentile(rounds, part) for part in (0.5, 0.99, 1)]
        print(f"{way:10}" + "".join(f"{figure:>10.2f}" for figure in figures))


if __name__ == "__main__":
    main()
