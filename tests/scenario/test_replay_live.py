"""A replay of many dead letters beside live traffic costs nobody a copy (E-5)."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.outbox import Outbox
from postroom.settlement import DeadOutcome
from postroom.testing.store.tools import Hand, event
from tests.scenario.every_store import STORES, open_store
from tests.scenario.place import ids, until

pytestmark = [pytest.mark.server, pytest.mark.promise("G3", "L7")]
DEAD = 2_000
STEP = 100
KEYS = 500


@pytest.fixture(params=sorted(STORES))
async def store(request):
    async with open_store(request) as (_, store):
        yield store


class Slow(MemoryBroker):
    """Something is always in flight."""

    async def publish(self, batch, reporter):
        await asyncio.sleep(0.01)
        await super().publish(batch, reporter)


async def add(store, *events):
    async with store.transaction() as tx:
        await Outbox().add_many(tx, events)


async def test_a_replay_beside_live_traffic_makes_no_copies(store):
    old = [event(f"old{n}", f"k{n % KEYS}") for n in range(DEAD)]
    await add(store, *old)
    hand = await Hand(store).take()
    await hand.settle(dead=[DeadOutcome(record, 5, "boom") for record in await hand.read()])
    await store.leave("main", "anna")

    broker, live = Slow(), 0
    async with Relay(store, broker, poll_seconds=0.05, lease_seconds=30.0) as relay:
        await until(lambda: relay.vitals.lanes == 64)
        for first in range(0, DEAD, STEP):
            await add(store, *(event(f"live{live + n}", f"k{n * 7}") for n in range(5)))
            live += 5
            names = [f"old{n}" for n in range(first, first + STEP)]
            assert await store.replay(names) == STEP
        await until(lambda: relay.counts.done == DEAD + live, 60.0)
        counts = relay.counts
    copies = {name: n for name, n in Counter(ids(broker)).items() if n > 1}
    assert (counts.fenced, counts.repeated, copies) == (0, 0, {})
    assert len(ids(broker)) == DEAD + live
