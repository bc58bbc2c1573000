"""Results as a page: tables in Markdown, from a file that `python -m bench --json` wrote.

    python -m bench.page results.jsonl                                  print them
    python -m bench.page results.jsonl --into docs/explanation/performance.md
                                        put them between the page's two marks
    python -m bench.page results.jsonl --into … --plots bench/results
                                        and the plots of growth into a folder beside the page

The last result of its name counts. Those of quick runs are left out unless they are asked for.
"""

import argparse
import shutil
import sys
from itertools import groupby
from pathlib import Path

from bench.result import load_file, number

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
TITLES = {
    "add": "What `add` costs",
    "relay": "A relay beside the bare driver",
    "handlers": "Handlers in a relay beside bare connections",
    "consume": "A consumer beside loops without an inbox",
    "latency": "From commit to destination",
    "growth": "What grows, and what does not",
    "peers": "Beside other packages, workers written by hand, and Debezium",
    "limits": "To real brokers, beside the bare drivers",
}


def latest(results, *, quick=False):
    """The last result of each name, in the order in which the names came first."""
    found = {}
    for one in results:
        if one.quick == quick:
            found[one.suite, one.part, one.name, one.against, one.unit] = one
    return sorted(found.values(), key=lambda one: list(TITLES).index(one.suite))


def page(results, pictures=()):
    """All tables, after the machine, the dates and the versions; and the pictures of growth."""
    if not results:
        return "No results.\n"
    lines = about(results)
    for suite, of_suite in groupby(results, key=lambda one: one.suite):
        lines += ["", f"### {TITLES[suite]}"]
        for part, of_part in groupby(of_suite, key=lambda one: one.part):
            lines += block(part, list(of_part))
        if suite == "growth":
            for picture in pictures:
                lines += ["", f"![{Path(picture).stem.replace('-', ' ')}]({picture})"]
    return "\n".join(lines) + "\n"


def about(results):
    days = sorted({one.measured_at for one in results})
    versions = {}
    for one in results:
        versions |= {k: v for k, v in one.versions.items() if k != "store"}
    stores = sorted({one.versions["store"] for one in results if "store" in one.versions})
    loads = [float(one.load.split()[0]) for one in results if one.load]
    listed = ", ".join(f"{name} {value}" for name, value in sorted(versions.items()))
    return [
        f"Measured from {days[0]} to {days[-1]} on {results[0].machine}.",
        "The machine's load at the end of a part, the benchmark's own and whatever else ran, was",
        f"{min(loads):.1f} to {max(loads):.1f}.",
        "",
        f"{listed}; {', '.join(stores)}.",
    ]


def block(part, results):
    one = results[0]
    what = f"{one.events:,} events, batches of {one.batch}, " if one.batch > 1 else ""
    lines = ["", f"**{part}**: {what}{one.rounds} rounds" + (", quick" if one.quick else ""), ""]
    lines += ["| | | spread | | reference | spread | ratio |", "|---|--:|---|---|--:|---|--:|"]
    notes = {}
    for one in results:
        mark = ""
        if one.note:
            notes.setdefault(one.note, len(notes) + 1)
            mark = f" ({notes[one.note]})"
        lines.append(
            f"| {one.name}{mark} | {number(one.ours)} {one.unit} | {span(one.spread)} | "
            f"{one.against} | {number(one.reference)} | {span(one.reference_spread)} | "
            f"**{one.ratio:.2f}** |"
        )
    if notes:
        lines += ["", *(f"{count}. {note}" for note, count in notes.items())]
    return lines


def span(values):
    return "–".join(number(value) for value in values)


def copied(plots, path):
    """Copy the plots into the folder of the page's name; returns their addresses for the page."""
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    found = sorted(Path(plots).glob("*.svg"))
    for plot in found:
        shutil.copy(plot, folder)
    return [f"{folder.name}/{plot.name}" for plot in found]


def insert(text, tables):
    """Put the tables between the marks of a page."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"the page has no place for them: {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{tables}{END}{after}"


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m bench.page")
    parser.add_argument("results", help="the file that --json wrote")
    parser.add_argument("--into", metavar="PAGE", help="a page with the two marks")
    parser.add_argument("--plots", metavar="FOLDER", help="where `python -m bench` put its plots")
    parser.add_argument("--quick", action="store_true", help="those of quick runs instead")
    args = parser.parse_args(argv)
    results = latest(load_file(args.results), quick=args.quick)
    if not args.into:
        print(page(results))
        return 0
    path = Path(args.into)
    pictures = copied(args.plots, path) if args.plots else ()
    path.write_text(insert(path.read_text(), page(results, pictures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
