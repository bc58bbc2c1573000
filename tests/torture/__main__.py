"""Torture: real processes, real servers, real faults, and an independent checker.

python -m tests.torture smoke                             about a minute
python -m tests.torture cell postgres kafka --events 50000 --faults 100 --seed 7
python -m tests.torture matrix --events 50000 --faults 100 --into results.jsonl
python -m tests.torture soak postgres kafka --minutes 60  one seed after the other
python -m tests.torture shrink postgres kafka --seed 7    the fewest faults that still break it
python -m tests.torture table results.jsonl               a summary for people

Prints one line of JSON for each cell; exit code 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import traceback
from pathlib import Path

from tests.torture.doom import die_with_parent

SMOKE = (("sqlite", "handlers"), ("postgres", "kafka"))


def main():
    args = arguments().parse_args()
    if args.verb in ("relay", "consumer", "produce", "foreign"):
        die_with_parent()
    else:  # leave servers and disks in order
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    return 0 if VERBS[args.verb](args) else 1


def arguments():
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("smoke", "matrix", "cell", "soak", "shrink"):
        verb = verbs.add_parser(name)
        if name in ("cell", "soak", "shrink"):
            verb.add_argument("store")
            verb.add_argument("broker")
        verb.add_argument("--events", type=int, default=800 if name == "smoke" else 5_000)
        verb.add_argument("--faults", type=int, default=4 if name == "smoke" else 20)
        verb.add_argument("--seed", type=int, default=1)
        verb.add_argument("--only", type=numbers, help="fire these faults of the plan only")
        verb.add_argument("--kinds", type=words, help="draw from these kinds of faults only")
        verb.add_argument("--mode", default="direct", help="of the consumers: direct, durable")
        verb.add_argument("--keep", action="store_true", help="leave histories and logs behind")
        verb.add_argument("--minutes", type=float, default=60)
        verb.add_argument(
            "--into", type=Path, help="append summaries; pairs in it are not run again"
        )
    verbs.add_parser("table").add_argument("results", type=Path)
    for name, where in (("relay", ("store", "broker")), ("consumer", ("source", "store"))):
        member = verbs.add_parser(name)
        for place in (*where, "history"):
            member.add_argument(place)
        member.add_argument("--name", required=True)
        member.add_argument("--lease", type=float, required=True)
        if name == "consumer":
            member.add_argument("--mode", required=True)
        member.add_argument("--hours", type=float, default=0.0, help="how wrong its clock is")
    producer = verbs.add_parser("produce")
    for name in ("store", "history"):
        producer.add_argument(name)
    producer.add_argument("--name", required=True)
    for name in ("--seed", "--events", "--keys", "--oversize"):
        producer.add_argument(name, type=int, required=True)
    producer.add_argument("--gate", type=Path, required=True)
    stranger = verbs.add_parser("foreign")
    for name in ("store", "broker", "history"):
        stranger.add_argument(name)
    stranger.add_argument("--name", required=True)
    for name in ("--seed", "--count", "--events"):
        stranger.add_argument(name, type=int, required=True)
    stranger.add_argument("--gate", type=Path, required=True)
    return parser


def numbers(text):
    return [int(part) for part in text.split(",")]


def words(text):
    return [part.strip() for part in text.split(",")]


def run_cell(args, store, broker, *, seed, only=None):
    from tests.torture.cell import Cell, report
    from tests.torture.grounds import ground

    with ground(store, broker) as place:
        cell = Cell(
            place, seed=seed, events=args.events, count=args.faults, only=only, kinds=args.kinds,
            mode=args.mode, keep=args.keep, progress=say,
        )  # fmt: skip
        return report({"cell": f"{store} {broker}", **cell.run()}, args.into)


def cell(args):
    return run_cell(args, args.store, args.broker, seed=args.seed, only=args.only)


def smoke(args):
    return all([run_cell(args, *pair, seed=args.seed) for pair in SMOKE])


def matrix(args):
    from tests.torture.grounds import BROKERS, STORES

    there = args.into.read_text() if args.into and args.into.exists() else ""
    done = {json.loads(line)["cell"] for line in there.splitlines()}
    pairs = [(store, broker) for store in STORES for broker in BROKERS]
    well = True
    for pair in pairs:
        if " ".join(pair) not in done:
            try:
                well &= run_cell(args, *pair, seed=args.seed)
            except Exception:  # the others are worth their hours all the same
                traceback.print_exc()
                well = False
    return well


def soak(args):
    until, seed, well = time.monotonic() + 60 * args.minutes, args.seed, True
    while well and time.monotonic() < until:
        well = run_cell(args, args.store, args.broker, seed=seed)
        seed += 1
    return well


def shrink(args):
    from tests.torture.shrinking import shrink as fewest

    def breaks(only):
        say(f"with the faults {','.join(map(str, only))}")
        return not run_cell(args, args.store, args.broker, seed=args.seed, only=only)

    everything = args.only or list(range(args.faults))
    if not breaks(everything):
        say("nothing breaks with this seed")
        return True
    few = fewest(everything, breaks)
    print(f"--seed {args.seed} --faults {args.faults} --only {','.join(map(str, few))}")
    return False


def table(args):
    print(
        "| store, destination | events | foreign | mischief | faults | kinds | dead | copies | unknown | fenced | takes "
        "| drained in | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    lines = [json.loads(line) for line in args.results.read_text().splitlines()]
    for one in sorted(lines, key=lambda one: one["cell"]):
        print(
            f"| {one['cell']} | {one['events']:,} | {one['foreign']} | {one['mischief']} | {one['faults']} | {len(one['kinds'])} | "
            f"{one['dead']} | {one['copies']} | {one['unknown commits']} | {one['fenced']} | "
            f"{one['takes']:,} | {one['laps']['drain']:.1f} s | {one['seconds']:.0f} |"
        )
    return not any(one["violations"] for one in lines)


def relay(args):
    from tests.torture.relaying import relay

    relay(
        args.store, args.broker, Path(args.history), name=args.name, lease=args.lease,
        hours=args.hours,
    )  # fmt: skip
    return True


def consumer(args):
    from tests.torture.consuming import consume

    consume(
        args.source, args.store, Path(args.history), name=args.name, lease=args.lease,
        mode=args.mode,
    )  # fmt: skip
    return True


def produce(args):
    from tests.torture.producing import produce

    produce(
        args.store, Path(args.history), name=args.name, seed=args.seed, events=args.events,
        keys=args.keys, oversize=args.oversize, gate=args.gate,
    )  # fmt: skip
    return True


def foreign(args):
    from tests.torture.foreign import foreign

    foreign(
        args.store, args.broker, Path(args.history), name=args.name, seed=args.seed,
        count=args.count, events=args.events, gate=args.gate,
    )  # fmt: skip
    return True


def say(text):
    """Show progress on a terminal; stay quiet elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


VERBS = {
    "smoke": smoke, "cell": cell, "matrix": matrix, "soak": soak, "shrink": shrink, "table": table,
    "relay": relay, "consumer": consumer, "produce": produce, "foreign": foreign,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
