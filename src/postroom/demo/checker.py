"""The checker: compares the committed events of the shop with those that the receiver got.

It reads the shop's business tables and the receiver's database. It uses no data of the outbox or
the relays.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import click

_SHOWN = 3


class Arrival(NamedTuple):
    event_id: str
    order_id: str
    relay: str


@dataclass(frozen=True)
class Promise:
    """A guarantee, and the violations that were found."""

    name: str
    kept: str  # remark if it holds
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The comparison of the two databases."""

    written: int
    rolled_back: int
    delivered: int
    repeated_by_kill: int
    repeated_otherwise: int
    applied: int
    orders: int
    never_seen: Promise
    nothing_lost: Promise
    applied_once: Promise
    order_kept: Promise
    same_end: Promise

    @property
    def promises(self) -> tuple[Promise, ...]:
        return (
            self.never_seen, self.nothing_lost, self.applied_once, self.order_kept, self.same_end,
        )  # fmt: skip

    @property
    def is_good(self) -> bool:
        return not any(promise.problems for promise in self.promises)


# -- looking ----------------------------------------------------------------------------------
def examine(shop: Path, receiver: Path) -> Report:
    """Compare the shop's business tables with the receiver's."""
    with closing(_open(shop)) as conn:
        written = conn.execute("SELECT event_id, order_id FROM changes ORDER BY n").fetchall()
        undone = {i for (i,) in conn.execute("SELECT event_id FROM undone")}
        shop_orders = dict(conn.execute("SELECT id, status FROM orders"))
    with closing(_open(receiver)) as conn:
        arrivals = [
            Arrival(*row)
            for row in conn.execute("SELECT event_id, order_id, relay FROM arrivals ORDER BY n")
        ]
        effects = conn.execute("SELECT event_id, order_id FROM effects ORDER BY n").fetchall()
        receiver_orders = dict(conn.execute("SELECT id, status FROM orders"))

    ids = [event_id for event_id, _ in written]
    first: dict[str, Arrival] = {}
    repeats: list[Arrival] = []
    for arrival in arrivals:
        if arrival.event_id in first:
            repeats.append(arrival)
        else:
            first[arrival.event_id] = arrival
    by_kill = sum(arrival.relay != first[arrival.event_id].relay for arrival in repeats)
    return Report(
        written=len(ids),
        rolled_back=len(undone),
        delivered=len(first),
        repeated_by_kill=by_kill,
        repeated_otherwise=len(repeats) - by_kill,
        applied=len(effects),
        orders=len(shop_orders),
        never_seen=_never_seen(set(ids), undone, [*first, *(i for i, _ in effects)]),
        nothing_lost=_nothing_lost(ids, first),
        applied_once=_applied_once(ids, Counter(event_id for event_id, _ in effects)),
        order_kept=_order_kept(
            written, [(a.event_id, a.order_id) for a in first.values()], effects
        ),
        same_end=_same_end(shop_orders, receiver_orders),
    )


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _never_seen(written: set[str], undone: set[str], seen: Iterable[str]) -> Promise:
    problems = []
    for event_id in dict.fromkeys(seen):
        if event_id in undone:
            problems.append(f"{event_id} was rolled back but delivered")
        elif event_id not in written:
            problems.append(f"{event_id} was delivered but never written")
    return Promise("never seen", "none of them was delivered", tuple(problems))


def _nothing_lost(written: Sequence[str], seen: Iterable[str]) -> Promise:
    there = set(seen)
    lost = [f"{event_id} never arrived" for event_id in written if event_id not in there]
    return Promise("nothing lost", "all written events, and no others", tuple(lost))


def _applied_once(written: Sequence[str], applied: Counter[str]) -> Promise:
    problems = [f"{i} was applied {n} times" for i, n in applied.items() if n > 1]
    problems += [f"{i} was never applied" for i in written if not applied[i]]
    return Promise("applied once", "duplicates had no effect", tuple(problems))


def _order_kept(
    written: Sequence[tuple[str, str]],
    arrived: Sequence[tuple[str, str]],
    applied: Sequence[tuple[str, str]],
) -> Promise:
    """Check that each order's events first arrived, and were applied, in the order of writing."""
    problems: dict[str, None] = {}
    place = {event_id: n for n, (event_id, _) in enumerate(written)}
    for doing, events in (("arrived", arrived), ("was applied", applied)):
        latest: dict[str, str] = defaultdict(str)
        for event_id, order_id in events:
            before = latest[order_id]
            if event_id not in place:
                continue
            if before and place[event_id] < place[before]:
                problems[f"{order_id}: {event_id} {doing} after the later {before}"] = None
            else:
                latest[order_id] = event_id
    return Promise("order kept", "orders, events in order of writing", tuple(problems))


def _same_end(shop: dict[str, str], receiver: dict[str, str]) -> Promise:
    problems = [
        f"{order_id} is {shop.get(order_id, 'unknown')} in the shop and "
        f"{receiver.get(order_id, 'unknown')} at the receiver"
        for order_id in sorted({*shop, *receiver})
        if shop.get(order_id) != receiver.get(order_id)
    ]
    return Promise("same end", "orders have the same status in both", tuple(problems))


# -- telling ----------------------------------------------------------------------------------
def print_report(report: Report, *, as_json: bool) -> None:
    """Print the report as text or JSON."""
    if as_json:
        click.echo(json.dumps(to_json(report), indent=2))
        return
    for text in render(report):
        color = "green" if "✓" in text else "red" if "✗" in text else None
        click.secho(_printable(text), fg=color)


def to_json(report: Report) -> dict[str, object]:
    return {
        "written": report.written,
        "rolled_back": report.rolled_back,
        "delivered": report.delivered,
        "repeated_by_kill": report.repeated_by_kill,
        "repeated_otherwise": report.repeated_otherwise,
        "applied": report.applied,
        "orders": report.orders,
        "promises": {p.name.replace(" ", "_"): not p.problems for p in report.promises},
        "problems": [problem for p in report.promises for problem in p.problems],
    }


def render(report: Report) -> list[str]:
    """Return the report as a table, at most 80 columns wide."""
    hit = "sent, but not settled at the kill" if report.repeated_by_kill else "none in flight"
    lines = [
        _row("written", report.written, "each in the transaction of its order"),
        _checked("rolled back on purpose", report.rolled_back, report.never_seen),
        _checked("delivered", report.delivered, report.nothing_lost),
        _row("sent again after the kill", report.repeated_by_kill, hit),
    ]
    if report.repeated_otherwise:
        lines.append(
            _row("sent again for other reasons", report.repeated_otherwise, "a slow machine?")
        )
    lines += [
        _checked("applied once", report.applied, report.applied_once),
        _checked("order kept", report.orders, report.order_kept),
        _checked("same end", report.orders, report.same_end),
    ]
    for promise in report.promises:
        if promise.problems:
            more = len(promise.problems) - _SHOWN
            lines += ["", f"{promise.name}: failed"]
            lines += [f"  {problem}" for problem in promise.problems[:_SHOWN]]
            lines += [f"  … and {more:,} more"] if more > 0 else []
    return lines


def _row(label: str, number: int, remark: str, mark: str = " ") -> str:
    return f"  {label:<29}{number:>7,}  {mark} {remark}"


def _checked(label: str, number: int, promise: Promise) -> str:
    if promise.problems:
        return _row(label, number, f"failed {len(promise.problems):,} times, see below", "✗")
    return _row(label, number, promise.kept, "✓")


def _printable(text: str) -> str:
    """Replace characters that this terminal cannot show."""
    encoding = sys.stdout.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.replace("✓", "+").replace("✗", "X").replace("…", "...")
    return text.encode(encoding, "replace").decode(encoding)
