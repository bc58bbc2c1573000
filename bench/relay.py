"""How fast a relay empties an outbox, beside a bare driver doing the same work.

    python -m bench.relay --store sqlite              the comparison
    python -m bench.relay --store sqlite --growth     and with big tables around it
    python -m bench.relay --store postgres            starts a PostgreSQL of its own
    python -m bench.relay --store postgresql://…      one that is there (its outbox is emptied!)
    python -m bench.relay --store postgres --broker kafka     to a real Kafka: see bench.relay_kafka

The destination does nothing, so that what is measured is the relay and its store. Rounds alternate
between the contestants; the table shows medians and the spread over the rounds.
"""

import argparse
import asyncio
import json
import platform
import resource
import statistics
import subprocess
import sys
import time

from bench.grounds import open_ground
from postroom.brokers.memory import NullBroker
from postroom.engine.relay import Relay

CROWDS = {
    "done": ("1,000,000 done rows", 1_000_000),
    "scheduled": ("500,000 scheduled", 500_000),
    "followers": ("100,000 followers of a block", 100_000),
}


def drain(ground, batch, keep_done):
    async def run():
        relay = Relay(
            ground.store(), NullBroker(), batch_size=batch, max_batch_size=batch,
            keep_done_seconds=keep_done,
        )  # fmt: skip
        return (await relay.drain()).done

    return asyncio.run(run())


class Crew:
    """Relays in processes of their own, which wait for each round's beginning."""

    def __init__(self, url, count, batch):
        command = [sys.executable, "-m", "bench.relay", "--worker", "--store", url]
        self._processes = [
            subprocess.Popen(
                [*command, "--batch", str(batch)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(count)
        ]  # fmt: skip
        for process in self._processes:
            process.stdout.readline()

    def drain(self):
        for process in self._processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        return sum(int(process.stdout.readline()) for process in self._processes)

    def close(self):
        for process in self._processes:
            process.stdin.close()
            process.wait()
            process.stdout.close()


def work(args):
    """The other side of Crew: drain whenever a line comes."""
    print("ready", flush=True)
    for _ in sys.stdin:
        relay = Relay(
            args.store, NullBroker(), batch_size=args.batch, max_batch_size=args.batch,
            keep_done_seconds=0,
        )  # fmt: skip
        print(asyncio.run(relay.drain()).done, flush=True)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m bench.relay")
    parser.add_argument("--store", default="sqlite", help="sqlite, a server's name, or a URL")
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--broker", help="kafka, or kafka://…: send to it, from PostgreSQL")
    parser.add_argument("--relays", help="also with so many processes, as 2,4 (not on SQLite)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--growth", action="store_true", help="also with big tables around it")
    parser.add_argument("--dir", help="where SQLite files go (default: the system's)")
    parser.add_argument("--json", help="append the results to this file, one object a line")
    args = parser.parse_args(argv)
    if args.worker:
        return work(args)
    if args.broker:
        from bench import relay_kafka

        return relay_kafka.compare(args)
    ground = open_ground(args.store, args.dir)
    try:
        return measure(args, ground)
    finally:
        ground.close()


def measure(args, ground):
    def prepare(name, **crowd):
        print(f"preparing: {name} …", file=sys.stderr)
        ground.prepare(name, args.events, args.keys, **crowd)

    def relay(keep_done):
        return lambda: drain(ground, args.batch, keep_done)

    prepare("plain")
    contests = [
        (ground.name, "plain", lambda: ground.bare(args.batch)),
        ("relay, keep_done=0", "plain", relay(0)),
        ("relay, default (kept for a day)", "plain", relay(86_400)),
    ]
    if args.growth:
        prepare("hot", hot=0.5)
        contests.append(("relay, keep_done=0, one hot key (half)", "hot", relay(0)))
        for kind, (words, number) in CROWDS.items():
            prepare(kind, crowd=kind, number=number)
            contests.append((f"relay, keep_done=0, {words}", kind, relay(0)))

    crews = [Crew(ground.url, int(n), args.batch) for n in (args.relays or "").split(",") if n]
    for n, crew in zip((args.relays or "").split(","), crews, strict=False):
        contests.append((f"{n} relay processes, keep_done=0", "plain", crew.drain))

    rates = {name: [] for name, _, _ in contests}
    for round_number in range(args.rounds):
        for name, prepared, work in contests:
            ground.reset(prepared)
            began = time.perf_counter()
            sent = work()
            rates[name].append(sent / (time.perf_counter() - began))
            if sent != args.events:
                print(f"{name}: sent {sent} of {args.events}", file=sys.stderr)
                return 1
        for name, make_ready, work in getattr(ground, "peers", ()):
            make_ready()
            began = time.perf_counter()
            rates.setdefault(name, []).append(work() / (time.perf_counter() - began))
        print(f"round {round_number + 1} of {args.rounds}, {memory()} so far", file=sys.stderr)
    for crew in crews:
        crew.close()
    show(args, ground, rates)
    return 0


def memory():
    """The most that this process has held, which is the relay's and the measuring's together."""
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB of memory"


def show(args, ground, rates):
    reference = statistics.median(rates[ground.name])
    ours = statistics.median(rates["relay, keep_done=0"])
    print(
        f"\n{args.events:,} events, {args.keys:,} keys, batch {args.batch}, {args.rounds} rounds, "
        f"Python {platform.python_version()}, {ground.version}; {memory()} at most\n"
    )
    print(f"{'':52}{'events/s':>10}  {'spread':>17}  {'of bare':>7}  {'of plain':>8}")
    for name, found in rates.items():
        median = statistics.median(found)
        spread = f"{min(found):,.0f}–{max(found):,.0f}"
        print(
            f"{name:52}{median:>10,.0f}  {spread:>17}  {median / reference:>7.2f}  "
            f"{median / ours:>8.2f}"
        )
        if args.json:
            result = {
                "suite": "relay", "name": name, "ours": median, "reference": reference,
                "ratio": median / reference, "spread": [min(found), max(found)],
                "events": args.events, "batch": args.batch, "relays": 1,
                "versions": {"python": platform.python_version(), "store": ground.version},
            }  # fmt: skip
            with open(args.json, "a") as file:
                file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    sys.exit(main())
