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


RELAY = ("kill relay", "pause relay", "stop relay", "scale relays")
CLOCK = ("relay with a wrong clock",)
SERVER = ("kill {}", "freeze {}")
STORE_WIRE = ("cut store", "cut store in a frame", "swallow store", "slow store")
BROKER_WIRE = ("cut broker", "cut broker in a frame", "swallow broker", "slow broker")
SQL_SERVER = ("end connections", "long transaction")


def kinds(world_kind, broker_kind, *, wires):
    """Return the kinds of faults that make sense for a pair."""
    found = [*RELAY, *RELAY]  # relays come and go more often than servers
    if world_kind != "sqlite":
        found += [fault.format("store") for fault in SERVER]
        found += CLOCK
    if world_kind in ("postgresql", "mysql"):
        found += SQL_SERVER
    if "store" in wires:
        found += STORE_WIRE
    if broker_kind != "handlers":
        found += [fault.format("broker") for fault in SERVER]
    if "broker" in wires:
        found += BROKER_WIRE
    if broker_kind == "rabbitmq":
        found.append("memory alarm")
    if world_kind == "mongodb":
        found.append("step down")
    return found


def plan(seed, count, choices):
    """Draw `count` faults, spread over the run."""
    rng = random.Random(seed)
    return [
        Fault(n, (n + 0.5) / count, rng.choice(choices), round(rng.random(), 3))
        for n in range(count)
    ]
