"""All benchmarks: postroom beside bare drivers and peers, in alternating rounds of one run.

    python -m bench                                  everything; hours
    python -m bench --quick                          everything, smaller and fewer rounds; minutes
    python -m bench relay peers                      these suites only
    python -m bench --json results.jsonl --resume    go on after the last part that is in the file

The servers are those of the tests, with fsync on; they are started here and stopped again.
"""

import argparse
import fnmatch
import signal
import sys
import time
import traceback

from bench import suites
from bench.result import append, load_file, table
from bench.rounds import say
from bench.yard import Yard


def main(argv=None):
    args = parse(argv)
    if args.list:
        for suite in args.suites:
            print(f"{suite}: {', '.join(suites.parts(suite))}")
        return 0
    if args.resume and not args.json:
        raise SystemExit("--resume needs the file of results: --json FILE")
    earlier = load_file(args.json) if args.resume else []
    yard = Yard(
        quick=args.quick, rounds=args.rounds or (2 if args.quick else 5), batch=args.batch,
        soak_events=args.soak, plots=args.plots,
    )  # fmt: skip
    try:
        results, failed = run(args, yard, earlier)
    except KeyboardInterrupt:
        say("stopped; the parts that were through are printed above, --resume goes on from them")
        return 130
    print(table(results))
    for name, error in failed.items():
        print(f"\n{name} failed: {error}")
    return 1 if failed else 0


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("suites", nargs="*", help=f"some of: {', '.join(suites.SUITES)}")
    parser.add_argument("--quick", action="store_true", help="small sizes, two rounds")
    parser.add_argument("--json", metavar="FILE", help="append each result as a line of JSON")
    parser.add_argument("--resume", action="store_true", help="skip the parts that are in the file")
    parser.add_argument("--only", metavar="GLOB", help="parts whose name is like this")
    parser.add_argument("--rounds", type=int, help="default: 5, with --quick 2")
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--soak", type=int, default=10_000_000, help="events of the soak")
    parser.add_argument("--plots", metavar="FOLDER", help="write SVG plots of growth here")
    parser.add_argument("--list", action="store_true", help="list the parts of the suites")
    args = parser.parse_args(argv)
    if unknown := set(args.suites) - set(suites.SUITES):
        parser.error(f"no suite {', '.join(sorted(unknown))}; some of: {', '.join(suites.SUITES)}")
    args.suites = args.suites or list(suites.SUITES)
    return args


def wanted(suite, args, earlier):
    """The parts still to be measured. What was measured quickly does not stand for a full run."""
    there = {(one.suite, one.part) for one in earlier if one.quick == args.quick}
    return {
        name: measure
        for name, measure in suites.parts(suite).items()
        if fnmatch.fnmatch(name, args.only or "*") and (suite, name) not in there
    }


def run(args, yard, earlier):
    """Measure part after part. One that fails is told of, and the others still run."""
    results, failed = list(earlier), {}
    for suite in args.suites:
        for name, measure in wanted(suite, args, earlier).items():
            say(f"{suite}: {name}")
            began = time.monotonic()
            try:
                found = measure(yard)
            except Exception as error:
                traceback.print_exc()
                failed[f"{suite}: {name}"] = error
                continue
            finally:
                yard.release()
            say(f"{suite}: {name} took {time.monotonic() - began:,.0f} s")
            print(table(found), flush=True)
            results += found
            if args.json:
                append(args.json, found)
    return results, failed


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the servers are stopped
    sys.exit(main())
