"""Handlers in a relay beside bare connections that write the same effects."""

from functools import partial

from bench import handlers
from bench.grounds import open_ground
from bench.rounds import alternate


def measure(store, yard):
    ground = open_ground("sqlite" if store == "sqlite" else yard.server(store).url)
    events = yard.size(5_000, 1_000)
    try:
        figures = alternate(handlers.contests(ground, events, yard.batch), yard.rounds)
    finally:
        ground.close()
    return handlers.results(ground, figures, store, events, yard.batch, quick=yard.quick)


PARTS = {store: partial(measure, store) for store in ("sqlite", "postgres18", "mariadb", "mongo")}
