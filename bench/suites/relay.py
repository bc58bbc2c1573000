"""A relay with a destination that does nothing, beside the bare driver: read and delete."""

from functools import partial

from bench import relay
from bench.grounds import open_ground
from bench.result import beside, versions
from bench.rounds import alternate
from postroom import Handlers

ONE_BY_ONE = "bare sqlite3 loop: effect, delete, durable commit"


def measure(store, yard):
    """One store: the bare loop, a relay that deletes, and one with the default settings."""
    ground = open_ground("sqlite" if store == "sqlite" else yard.server(store).url)
    events = yard.size(200_000 if store == "postgres18" else 50_000, 10_000)
    try:
        chosen = relay.contests(ground, events, 1_000, yard.batch)
        figures = alternate(chosen, yard.rounds)
    finally:
        ground.close()
    return _results(yard, ground, store, figures, ground.name, events)


def handlers(yard):
    """Handlers on SQLite, each with a transaction of its own, beside a loop that has no inbox."""
    ground = open_ground("sqlite")
    events = yard.size(5_000, 1_000)
    made = Handlers()

    @made.on("bench")
    async def effect(event, tx):
        await tx.execute(ground.EFFECT, (event.id,))

    def relaying(keep_done):
        return relay.drain(ground.store(), yard.batch, keep_done, lambda: made)

    try:
        ground.prepare("plain", events, 1_000)
        runs = {
            ONE_BY_ONE: lambda: ground.bare_effects(yard.batch),
            relay.OURS: lambda: relaying(0),
            relay.DEFAULT: lambda: relaying(86_400),
        }
        chosen = [relay.contest(ground, name, run, events) for name, run in runs.items()]
        figures = alternate(chosen, yard.rounds)
    finally:
        ground.close()
    return _results(yard, ground, "sqlite-handlers", figures, ONE_BY_ONE, events)


def _results(yard, ground, part, figures, reference, events):
    fields = {
        "suite": "relay", "part": part, "events": events, "batch": yard.batch,
        "quick": yard.quick, "versions": versions(store=ground.version),
    }  # fmt: skip
    return [beside(figures, name, reference, **fields) for name in (relay.OURS, relay.DEFAULT)]


PARTS = {
    **{store: partial(measure, store) for store in ("sqlite", "postgres18", "mariadb", "mongo")},
    "sqlite-handlers": handlers,
}
