"""Where the microseconds of an event go: a sampler beside a relay, a consumer or a writer.

    python -m bench.profile                                  everything
    python -m bench.profile postgres18 postgres18-kafka      some of them
    python -m bench.profile postgres18-kafka --functions 15  with the busiest functions

A timer interrupts the loop's thread a thousand times a second and notes in which package it is.
*waiting* is what the database, the broker or the disk took while the loop had nothing else to do.
Processor time of other threads and of the servers is given beside it: on a machine with few cores
that is time which the loop waits for, too. All in microseconds for each event.
"""

import argparse
import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

import psycopg

from bench import consume, relay
from bench.grounds import open_ground
from bench.rounds import say
from bench.sending import KafkaTopic, RabbitQueue
from bench.yard import Yard
from postroom import Event, SyncOutbox, migrate
from postroom.brokers.memory import NullBroker

EVERY_SECONDS = 0.001
WAITS = {"select", "wait"}
TICKS = os.sysconf("SC_CLK_TCK")
WAITING = "waiting"
LEAST_SHOWN = 0.2


class Job(NamedTuple):
    """What is profiled: `ready` makes its start, unmeasured; `work` deals with all the events."""

    work: Callable[[], object]
    ready: Callable[[], object]
    events: int
    servers: list


class Sampler:
    """Counts the seconds of this thread by package and by function, wherever a timer meets it.

    A timer that meets a call into C is heard when the call returns: each sample stands for all the
    time since the last one.
    """

    def __init__(self):
        self.rooms, self.functions = Counter(), Counter()

    def __enter__(self):
        self._last = time.perf_counter()
        signal.signal(signal.SIGALRM, self._note)
        signal.setitimer(signal.ITIMER_REAL, EVERY_SECONDS, EVERY_SECONDS)
        return self

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def _note(self, _, frame):
        now = time.perf_counter()
        passed, self._last = now - self._last, now
        code = frame.f_code
        room = WAITING if code.co_name in WAITS else room_of(code.co_filename)
        self.rooms[room] += passed
        self.functions[f"{room}: {code.co_qualname}"] += passed


def room_of(filename):
    """Name the package that a file belongs to, and of postroom the part."""
    parts = Path(filename).parts
    if "postroom" in parts:
        inner = parts[len(parts) - parts[::-1].index("postroom") :]
        return "postroom." + ".".join(Path(*inner[:2]).with_suffix("").parts)
    if "site-packages" in parts:
        return parts[parts.index("site-packages") + 1].removesuffix(".py").partition("_")[0]
    return "bench" if "bench" in parts else "Python's own library"


def processor_seconds(server):
    """What the processes of a server have used, those below them that have ended included."""
    total = 0
    for pid in server.pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total / TICKS


def profile(name, job, functions):
    """Do the job under the sampler and print its table."""
    for sampler in (nullcontext(), Sampler()):  # the first is for imports, plans and caches
        job.ready()
        before = [processor_seconds(server) for server in job.servers]
        began, own, others = time.perf_counter(), time.thread_time(), time.process_time()
        with sampler:
            job.work()
        seconds, own = time.perf_counter() - began, time.thread_time() - own
        others = time.process_time() - others - own
        used = [processor_seconds(server) for server in job.servers]
    each = 1e6 / job.events
    print(f"\n{name}: {seconds * each:.1f} µs for each of {job.events:,} events\n")
    print("| where | µs |\n|---|---|")
    for room, spent in sampler.rooms.most_common():
        if spent * each >= LEAST_SHOWN:
            print(f"| {room} | {spent * each:.1f} |")
    print(f"| processor time of this thread | {own * each:.1f} |")
    print(f"| processor time of other threads | {others * each:.1f} |")
    for server, was, now in zip(job.servers, before, used, strict=True):
        print(f"| processor time of {server.name} | {(now - was) * each:.1f} |")
    for function, spent in sampler.functions.most_common(functions):
        print(f"{spent * each:8.1f}  {function}")


def relaying(store, broker, yard):
    """A relay that empties an outbox."""
    servers = [] if store == "sqlite" else [yard.server(store)]
    ground = yard.enter(closing(open_ground("sqlite" if store == "sqlite" else servers[0].url)))
    make, clear = NullBroker, lambda: None
    if broker:
        servers.append(yard.server(broker))
        place = KafkaTopic(servers[1].address) if broker == "kafka" else RabbitQueue(servers[1].url)
        make, clear = place.broker, place.clear
    events = yard.size(100_000, 20_000)
    ground.prepare("plain", events, 1_000)

    def work():
        return relay.drain(ground.store(), yard.batch, 0, make)

    def ready():
        ground.reset("plain")
        clear()

    return Job(work, ready, events, servers)


def consuming(broker, yard):
    """A consumer with its inbox in PostgreSQL."""
    servers = [yard.server("postgres18"), yard.server(broker)]
    url, events = servers[0].url, yard.size(5_000, 1_000)
    consume.prepare(url)
    ground = consume.GROUNDS[broker](servers[1].url)

    def work():
        return asyncio.run(consume.ours(ground, url, events, 10))

    def ready():
        asyncio.run(ground.fill(events, consume.BODY))

    return Job(work, ready, events, servers)


def adding(yard):
    """A writer: one event in each transaction."""
    server, events = yard.server("postgres18"), yard.size(10_000, 2_000)
    asyncio.run(migrate(server.url))
    outbox = SyncOutbox()
    connection = yard.enter(psycopg.connect(server.url))

    def work():
        for n in range(events):
            with outbox.transaction(connection):
                outbox.add(connection, Event("order.created", {"n": n}, key=f"order-{n % 1000}"))

    return Job(work, lambda: None, events, [server])


JOBS = {
    **{
        f"{store}{'-' if broker else ''}{broker}": (relaying, store, broker)
        for store, broker in (
            ("sqlite", ""), ("postgres18", ""), ("mariadb", ""), ("mongo", ""),
            ("postgres18", "kafka"), ("mariadb", "kafka"), ("mongo", "kafka"),
            ("postgres18", "rabbitmq"),
        )
    },
    "consume-kafka": (consuming, "kafka"),
    "consume-rabbitmq": (consuming, "rabbitmq"),
    "add": (adding,),
}  # fmt: skip


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m bench.profile", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("jobs", nargs="*", help=f"some of: {', '.join(JOBS)}")
    parser.add_argument("--quick", action="store_true", help="fewer events")
    parser.add_argument("--functions", type=int, default=0, help="show so many functions as well")
    args = parser.parse_args(argv)
    if unknown := set(args.jobs) - set(JOBS):
        parser.error(f"no {', '.join(sorted(unknown))}; some of: {', '.join(JOBS)}")
    for name in args.jobs or JOBS:
        make, *words = JOBS[name]
        yard = Yard(quick=args.quick)
        try:
            job = make(*words, yard)
            say(f"profiling {name}")
            profile(name, job, args.functions)
        finally:
            yard.release()


if __name__ == "__main__":
    main()
