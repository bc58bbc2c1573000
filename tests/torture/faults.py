"""The faults there are, and a plan of them: by progress, from a seed, so that it can be repeated."""

from __future__ import annotations

import random
from typing import NamedTuple


class Fault(NamedTuple):
    """When this share of all events is written, do this. `size` is 0 to 1: how long, how many."""

    number: int
    at: float
    kind: str
    size: float

    def __str__(self):
        return f"{self.number}: {self.kind} ({self.size:.2f}) at {self.at:.0%}"


# By victim. Faults of different victims overlap, those of one come one after the other.
RELAY = (
    "kill relay", "kill relay before its settle", "pause relay", "pause relay before its settle",
    "stop relay", "scale relays",
)  # fmt: skip
CLOCK = ("relay with a wrong clock",)
CONSUMER = (
    "kill consumer", "kill consumer before its ack", "pause consumer",
    "pause consumer before its ack", "stop consumer",
)  # fmt: skip
STORE_SERVER = ("kill store", "freeze store")
STORE_WIRE = ("cut store", "cut store in a frame", "swallow store", "slow store")
CONNECTIONS = ("end connections",)
BACKEND = ("kill backend",)
LOCKS = ("locked lane", "locked members")
LONG = ("long transaction",)
STEP_DOWN = ("step down",)
DISK = ("full disk",)
BROKER_SERVER = ("kill broker", "freeze broker")
BROKER_WIRE = ("cut broker", "cut broker in a frame", "swallow broker", "slow broker")
OPERATORS = (
    "pause the stream", "pause the topic", "limit the stream", "limit the topic",
    "replay the dead", "edit the dead", "retry now", "cancel the delayed",
)  # fmt: skip
RABBIT = ("memory alarm", "disk alarm", "unroutable")

VICTIMS = {
    "relays": (*RELAY, *CLOCK),
    "consumers": CONSUMER,
    "store": (*STORE_SERVER, *STORE_WIRE, *CONNECTIONS, *BACKEND, *LOCKS, *LONG, *STEP_DOWN, *DISK),
    "operators": OPERATORS,
    "broker": (*BROKER_SERVER, *BROKER_WIRE, *RABBIT),
}


def victim(kind):
    """Say who suffers from a kind of fault."""
    return next(name for name, kinds in VICTIMS.items() if kind in kinds)


def kinds(world_kind, broker_kind, *, wires=(), disk=False):
    """Return the kinds of faults that make sense for a pair."""
    found = [*RELAY, *RELAY]  # relays come and go more often than servers
    found += [*LONG, *OPERATORS]
    if world_kind != "sqlite":
        found += [*STORE_SERVER, *CLOCK, *LOCKS]
    if world_kind == "postgresql":
        found += BACKEND
    if world_kind in ("postgresql", "mysql"):
        found += CONNECTIONS
    if world_kind == "mongodb":
        found += STEP_DOWN
    if disk:
        found += DISK
    if "store" in wires:
        found += STORE_WIRE
    if broker_kind != "handlers":
        found += [*CONSUMER, *BROKER_SERVER]
    if "broker" in wires:
        found += BROKER_WIRE
    if broker_kind == "rabbitmq":
        found += RABBIT
    return found


def plan(seed, count, choices):
    """Draw `count` faults, spread over the run; with enough of them no kind is left out."""
    rng = random.Random(seed)
    drawn = []
    while len(drawn) < count:
        deck = list(choices)
        rng.shuffle(deck)
        drawn += deck
    return [
        Fault(n, (n + 0.5) / count, drawn[n], round(rng.random(), 3)) for n in range(count)
    ]  # fmt: skip
