"""A relay with a destination that does nothing, beside the bare driver: read and delete."""

from functools import partial

from bench import relay
from bench.grounds import open_ground
from bench.result import beside, versions
from bench.rounds import alternate
from postroom import Handlers

TOGETHER = 50
ONE_BY_ONE = "bare sqlite3 loop: effect, delete, durable commit"
SHARED = f"bare sqlite3 loop: {TOGETHER} effects and deletes to a durable commit"


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
    """Handlers on SQLite beside loops without an inbox; alone, and 50 to a transaction."""
    ground = open_ground("sqlite")
    events = yard.size(5_000, 1_000)

    def relaying(shared, keep_done=0, *, in_threads=False):
        made = Handlers(batch=shared)

        async def effect(event, tx):
            await tx.execute(ground.EFFECT, (event.id,))

        def sync_effect(event, tx):
            tx.execute(ground.EFFECT, (event.id,))

        made.on("bench", name="effect")(sync_effect if in_threads else effect)
        return relay.drain(ground.store(), yard.batch, keep_done, lambda: made)

    runs = {
        ONE_BY_ONE: lambda: ground.bare_effects(yard.batch),
        SHARED: lambda: ground.bare_effects(yard.batch, together=TOGETHER),
        relay.OURS: lambda: relaying(1),
        relay.DEFAULT: lambda: relaying(1, 86_400),
        "handlers, batch=50": lambda: relaying(TOGETHER),
        "sync handlers, batch=50": lambda: relaying(TOGETHER, in_threads=True),
    }
    try:
        ground.prepare("plain", events, 1_000)
        chosen = [relay.contest(ground, name, run, events) for name, run in runs.items()]
        figures = alternate(chosen, yard.rounds)
    finally:
        ground.close()
    _, _, *ours = runs
    return [
        *_results(yard, ground, "sqlite-handlers", figures, ONE_BY_ONE, events, ours),
        *_results(yard, ground, "sqlite-handlers", figures, SHARED, events, ours[2:]),
    ]


def _results(yard, ground, part, figures, reference, events, names=(relay.OURS, relay.DEFAULT)):
    fields = {
        "suite": "relay", "part": part, "events": events, "batch": yard.batch,
        "quick": yard.quick, "versions": versions(store=ground.version),
    }  # fmt: skip
    return [beside(figures, name, reference, **fields) for name in names]


PARTS = {
    **{store: partial(measure, store) for store in ("sqlite", "postgres18", "mariadb", "mongo")},
    "sqlite-handlers": handlers,
}
