"""A relay with a destination that does nothing, beside the bare driver: read and delete."""

from functools import partial

from bench import relay
from bench.grounds import open_ground
from bench.result import beside, versions
from bench.rounds import alternate


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


def _results(yard, ground, part, figures, reference, events, names=(relay.OURS, relay.DEFAULT)):
    fields = {
        "suite": "relay", "part": part, "events": events, "batch": yard.batch,
        "quick": yard.quick, "versions": versions(store=ground.version),
    }  # fmt: skip
    return [beside(figures, name, reference, **fields) for name in names]


PARTS = {store: partial(measure, store) for store in ("sqlite", "postgres18", "mariadb", "mongo")}
