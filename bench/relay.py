"""How fast a relay empties an outbox, beside a bare driver doing the same work.

    python -m bench.relay --store sqlite              the comparison
    python -m bench.relay --store sqlite --growth     and with big tables around it
    python -m bench.relay --store postgres            starts a PostgreSQL of its own
    python -m bench.relay --store postgresql://…      one that is there (its outbox is emptied!)
    python -m bench.relay --store postgres --broker kafka     to a real Kafka: see bench.relay_kafka

The destination does nothing, so that what is measured is the relay and its store. Rounds alternate
between the contestants; the table shows medians and the spread over the rounds. `python -m bench`
runs this for all stores, and everything else.
"""

import argparse
import asyncio
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial

from bench.crew import Crew
from bench.grounds import open_ground
from bench.result import append, beside, table, versions
from bench.rounds import Contest, alternate, say
from postroom.brokers.memory import NullBroker
from postroom.engine.relay.relay import Relay

OURS = "relay, keep_done_seconds=0"
DEFAULT = "relay, default (kept for a day)"
CROWDS = {
    "done": ("1,000,000 done rows", 1_000_000),
    "scheduled": ("500,000 scheduled", 500_000),
    "followers": ("100,000 followers of a block", 100_000),
}


def drain(store, batch, keep_done=0, broker=NullBroker, **options):
    """Let a relay empty the outbox; returns how many it delivered."""

    async def run():
        relay = Relay(
            store, broker(), batch_size=batch, max_batch_size=batch, keep_done_seconds=keep_done,
            **options,
        )  # fmt: skip
        return (await relay.drain()).done

    return asyncio.run(run())


@contextmanager
def running(store, broker):
    """A relay in a process of its own, as one runs it; it deletes what is done."""
    command = [sys.executable, "-m", "postroom", "run", "--store", store, "--broker", broker]
    command += ["--keep-done-seconds", "0", "--log-level", "error"]
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def contests(ground, events, keys, batch):
    """The bare driver, and a relay that deletes and one that keeps; on prepared rows."""
    say(f"preparing {events:,} events")
    ground.prepare("plain", events, keys)
    return [
        contest(ground, ground.name, lambda: ground.bare(batch), events),
        contest(ground, OURS, lambda: drain(ground.store(), batch), events),
        contest(ground, DEFAULT, lambda: drain(ground.store(), batch, 86_400), events),
    ]


def passing(ground, crew, events):
    """Pour events into an empty outbox; returns the rate from the commit to the last publish."""
    ground.prepare("empty", 0, 1)
    ground.reset("empty")
    with crew:
        ground.pour(events)
        began = time.perf_counter()
        crew.wait(events)
        rate = events / (time.perf_counter() - began)
        say(f"shares of the relays: {', '.join(f'{share:,}' for share in crew.shares)}")
    return rate


def contest(ground, name, run, events, prepared="plain"):
    return Contest(name, run, lambda: ground.reset(prepared), events)


def claims(ground):
    """The worker that claims events one by one, where the ground has it."""
    return [Contest(name, run, ready) for name, ready, run in getattr(ground, "peers", ())]


def grown(ground, events, keys, batch):
    """The same with big tables around the events, and with one hot key."""
    say("preparing a hot key")
    ground.prepare("hot", events, keys, hot=0.5)
    cases = [("one hot key (half)", "hot")]
    for kind, (words, number) in CROWDS.items():
        say(f"preparing {words}")
        ground.prepare(kind, events, keys, crowd=kind, number=number)
        cases.append((words, kind))
    return [
        contest(ground, f"{OURS}, {words}", lambda: drain(ground.store(), batch), events, kind)
        for words, kind in cases
    ]


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m bench.relay")
    parser.add_argument("--store", default="sqlite", help="sqlite, a server's name, or a URL")
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--broker", help="kafka, or kafka://…: send to it, from PostgreSQL")
    parser.add_argument("--relays", default="", help="also so many processes that run, as 1,2,4")
    parser.add_argument("--growth", action="store_true", help="also with big tables around it")
    parser.add_argument("--dir", help="where SQLite files go (default: the system's)")
    parser.add_argument("--json", help="append the results to this file, one object a line")
    args = parser.parse_args(argv)
    if args.broker:
        from bench import relay_kafka

        return relay_kafka.compare(args)
    ground = open_ground(args.store, args.dir)
    crews = {}
    try:
        size = args.events, args.keys, args.batch
        chosen = contests(ground, *size) + claims(ground)
        if args.growth:
            chosen += grown(ground, *size)
        for count in filter(None, args.relays.split(",")):
            name = f"{count} relay processes, keep_done_seconds=0"
            crews[name] = Crew(ground, int(count), args.batch)
            chosen.append(Contest(name, partial(passing, ground, crews[name], args.events)))
        figures = alternate(chosen, args.rounds)
    finally:
        ground.close()
    results = [
        beside(
            figures, name, ground.name, suite="relay", part=ground.version, events=args.events,
            batch=args.batch, relays=int(name.split()[0]) if name in crews else 1,
            versions=versions(store=ground.version),
        )
        for name in figures
    ]  # fmt: skip
    print(table(results))
    if args.json:
        append(args.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
