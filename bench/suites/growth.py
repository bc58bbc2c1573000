"""Whether the cost of an event grows with what lies around it: tables, backlog, relays, time."""

import time
from functools import partial
from statistics import median

import psycopg

from bench import plot, relay
from bench.connect import resident_mb
from bench.crew import Crew
from bench.grounds import open_ground
from bench.result import beside, versions
from bench.rounds import Contest, alternate, say

KEYS = 1_000
SLOW_SECONDS = 0.001
STEP = 25_000
ONE = "1 relay process"
SHARED = "each relay has its share of the lanes; the order of keys was checked in each of them"


def _results(yard, ground, part, figures, reference, names, events, **more):
    """Each case beside the plain one, with the milliseconds of a batch."""
    results = []
    for name in names:
        note = f"{1_000 * yard.batch / median(figures[name]):.2f} ms a batch"
        results.append(
            beside(
                figures, name, reference, suite="growth", part=part, events=events,
                batch=yard.batch, quick=yard.quick, versions=versions(store=ground.version),
                **{"note": note, **more},
            )
        )  # fmt: skip
    return results


def crowd(part, kind, sizes, yard):
    """The same events among more and more rows of another kind."""
    ground = open_ground(yard.server("postgres18").url)
    events = yard.size(50_000, 5_000)
    chosen, curve = [], {}
    for size in [0, *(yard.size(size, size // 20) for size in sizes)]:
        name = f"{size:,} {kind}"
        say(f"preparing {name}")
        ground.prepare(f"{kind}_{size}", events, KEYS, crowd=kind if size else None, number=size)
        work = partial(_drain, ground, yard)
        chosen.append(relay.contest(ground, name, work, events, f"{kind}_{size}"))
        curve[name] = size
    figures = _run(ground, chosen, yard)
    _plot(yard, part, f"among so many {kind}", {curve[n]: found for n, found in figures.items()})
    names = list(figures)
    return _results(yard, ground, part, figures, names[0], names[1:], events)


def hot(yard):
    """Half of all events belong to one key."""
    ground = open_ground(yard.server("postgres18").url)
    events = yard.size(50_000, 5_000)
    ground.prepare("plain", events, KEYS)
    ground.prepare("hot", events, KEYS, hot=0.5)
    work = partial(_drain, ground, yard)
    names = "uniform keys", "one hot key (half)"
    chosen = [
        relay.contest(ground, name, work, events, prepared)
        for name, prepared in zip(names, ("plain", "hot"), strict=True)
    ]
    figures = _run(ground, chosen, yard)
    return _results(yard, ground, "hot", figures, names[0], names[1:], events)


def backlog(yard):
    """A backlog is emptied, small or big."""
    ground = open_ground(yard.server("postgres18").url)
    chosen, sizes = [], {}
    for size in yard.size((10_000, 50_000, 100_000, 1_000_000), (2_000, 20_000)):
        name = f"a backlog of {size:,}"
        say(f"preparing {name}")
        ground.prepare(f"backlog_{size}", 0, KEYS, crowd="backlog", number=size)
        work = partial(_drain, ground, yard)
        chosen.append(relay.contest(ground, name, work, size, f"backlog_{size}"))
        sizes[name] = size
    figures = _run(ground, chosen, yard)
    _plot(yard, "backlog", "events in the backlog", {sizes[n]: f for n, f in figures.items()})
    reference = next(name for name, size in sizes.items() if size >= yard.size(50_000, 2_000))
    return [
        _results(yard, ground, "backlog", figures, reference, [name], size)[0]
        for name, size in sizes.items()
        if name != reference
    ]


def relays(yard):
    """One to eight relay processes, to a void and to a destination that takes 1 ms a batch."""
    ground = open_ground(yard.server("postgres18").url)
    events = yard.size(200_000, 10_000)
    chosen = []
    for slow in (0.0, SLOW_SECONDS):
        for count in yard.size((1, 2, 4, 8), (1, 2)):
            name = ONE if count == 1 else f"{count} relay processes"
            name += ", 1 ms a batch" if slow else ""
            crew = Crew(ground, count, yard.batch, slow)
            chosen.append(Contest(name, partial(relay.passing, ground, crew, events)))
    figures = _run(ground, chosen, yard)
    results = []
    for name in figures:
        if not name.startswith(ONE):
            results += _results(
                yard, ground, "relays", figures, ONE + name.partition(" processes")[2], [name],
                events, relays=int(name.split()[0]), note=SHARED,
            )  # fmt: skip
    return results


def open_transaction(yard):
    """A transaction stays open elsewhere while events pass, so that no dead row can be removed."""
    ground = open_ground(yard.server("postgres18").url)
    total, step = yard.size(500_000, 20_000), yard.size(STEP, 5_000)
    curves = {}

    def passing(name):
        curve, done, began = [], 0, time.perf_counter()
        with Crew(ground, 1, yard.batch) as crew:
            while done < total:
                ground.pour(step)
                before = time.perf_counter()
                done += step
                crew.wait(done)
                curve.append((done, step / (time.perf_counter() - before)))
        curves[name] = curve
        say(f"{name}: {ground.size_mb():,.0f} MB after {time.perf_counter() - began:.0f} s")
        return median(rate for _, rate in curve[-len(curve) // 4 :])

    def held(name):
        with psycopg.connect(ground.url) as other:
            other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            other.execute("CREATE TEMPORARY TABLE bench_open (n int)")  # so it has a number, too
            return passing(name)

    ground.prepare("empty", 0, KEYS)
    names = "nothing open", "a transaction open"
    chosen = [
        Contest(name, partial(work, name), lambda: ground.reset("empty"))
        for name, work in zip(names, (passing, held), strict=True)
    ]
    figures = _run(ground, chosen, yard, min(yard.rounds, 3))
    plot.write(
        yard.plots, "open-transaction", "A transaction is left open elsewhere", "events passed",
        "events/s", curves=curves,
    )  # fmt: skip
    return _results(
        yard, ground, "open-transaction", figures, names[0], names[1:], total,
        note="the rate of the last quarter of the events", series=tuple(curves[names[1]]),
    )  # fmt: skip


def soak(yard):
    """Days in minutes: a relay that is never idle, its memory and the outbox' size over time."""
    ground = open_ground(yard.server("postgres18").url)
    ground.prepare("empty", 0, KEYS)
    ground.reset("empty")
    total, step = yard.size(yard.soak_events, 200_000), yard.size(50_000, 10_000)
    rates, memory, sizes, poured = [], [], [], 0
    with Crew(ground, 1, yard.batch) as crew:
        ground.pour(step)
        while poured < total:
            began = time.perf_counter()
            ground.pour(step)
            poured += step
            crew.wait(poured)  # one step behind
            rates.append((poured, step / (time.perf_counter() - began)))
            memory.append((poured, sum(map(resident_mb, crew.pids))))
            sizes.append((poured, ground.size_mb()))
            if poured % (step * 10) == 0:
                say(f"{poured:,} events, {memory[-1][1]:.0f} MB held, {sizes[-1][1]:.0f} on disk")
    ground.close()
    for name, unit, curve in (
        ("rate", "events/s", rates), ("memory", "MB", memory), ("size", "MB", sizes)
    ):  # fmt: skip
        plot.write(
            yard.plots, f"soak-{name}", f"A soak of {total:,} events: {name}", "events passed",
            unit, curves={name: curve},
        )  # fmt: skip
    return [
        _trend(yard, ground, total, words, unit, curve)
        for words, unit, curve in (
            ("events added and delivered", "events/s", rates),
            ("the relay's memory", "MB", memory),
            ("the outbox on disk", "MB", sizes),
        )
    ]


def _trend(yard, ground, total, words, unit, curve):
    """The last tenth of a curve beside its second, in which everything is warm."""
    tenth = max(len(curve) // 10, 1)
    values = [value for _, value in curve]
    last, early = f"{words}, last tenth", f"{words}, second tenth"
    figures = {last: values[-tenth:], early: values[tenth : 2 * tenth] or values[:1]}
    return beside(
        figures, last, early, suite="growth", part="soak", unit=unit, events=total,
        batch=yard.batch, quick=yard.quick, series=tuple(curve), rounds=1,
        versions=versions(store=ground.version),
    )  # fmt: skip


def _drain(ground, yard):
    return relay.drain(ground.store(), yard.batch)


def _run(ground, chosen, yard, rounds=None):
    try:
        return alternate(chosen, rounds or yard.rounds)
    finally:
        ground.close()


def _plot(yard, part, x_label, by_size):
    curve = [(size, median(found)) for size, found in by_size.items()]
    plot.write(yard.plots, part, f"A relay, {part}", x_label, "events/s", curves={part: curve})


PARTS = {
    "done": partial(crowd, "done", "done", (10_000, 100_000, 1_000_000)),
    "scheduled": partial(crowd, "scheduled", "scheduled", (500_000,)),
    "followers": partial(crowd, "followers", "followers", (100_000,)),
    "hot": hot,
    "backlog": backlog,
    "relays": relays,
    "open-transaction": open_transaction,
    "soak": soak,
}
