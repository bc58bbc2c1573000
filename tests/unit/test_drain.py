"""A drain whose store fails now and then, or for good (E-7)."""

from __future__ import annotations

import asyncio

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.errors import StoreUnknownError
from postroom.event import Event
from postroom.outbox import Outbox
from postroom.stores.memory import MemoryStore
from tests.sim.loop import SimClock, virtual_time

LEASE = 10.0


class Flaky(MemoryStore):
    """Staging fails this often."""

    def __init__(self, loop, failures):
        super().__init__(now_us=lambda: 1_800_000_000_000_000 + int(loop.time() * 1_000_000))
        self.failures, self.asked = failures, 0

    async def stage(self, stream, lanes, limit):
        self.asked += 1
        if self.asked <= self.failures:
            raise StoreUnknownError("the connection went away")
        return await super().stage(stream, lanes, limit)


def drained(failures):
    async def story(loop):
        store, broker = Flaky(loop, failures), MemoryBroker()
        async with store.transaction() as tx:
            await Outbox().add_many(tx, [Event("t", n, key=f"k{n}") for n in range(20)])
        relay = Relay(store, broker, clock=SimClock(loop), lease_seconds=LEASE)
        began = loop.time()
        try:
            counts = await relay.drain()
        finally:
            drained.seconds, drained.asked = loop.time() - began, store.asked
        return counts.done

    with virtual_time() as loop:
        return loop.run_until_complete(asyncio.wait_for(story(loop), 1_000))


@pytest.mark.parametrize("failures", [1, 5])
def test_a_drain_goes_on_when_its_look_fails(failures):
    assert drained(failures) == 20


@pytest.mark.promise("F2")
def test_a_drain_ends_by_the_error_after_a_whole_lease_with_growing_pauses():
    with pytest.raises(StoreUnknownError):
        drained(10**6)
    assert drained.seconds > LEASE
    assert drained.asked < 100


class Numb(MemoryStore):
    """Answers every question, but takes no sign of life."""

    async def heartbeat(self, stream, member, lease_seconds, held):
        raise StoreUnknownError("the lanes cannot be reached")


@pytest.mark.promise("F2")
def test_a_drain_that_never_gets_its_lanes_ends_by_the_error_after_a_whole_lease():
    async def story(loop):
        relay = Relay(Numb(), MemoryBroker(), clock=SimClock(loop), lease_seconds=LEASE)
        began = loop.time()
        with pytest.raises(StoreUnknownError, match="lanes cannot be reached"):
            await relay.drain()
        assert LEASE < loop.time() - began < 3 * LEASE

    with virtual_time() as loop:
        loop.run_until_complete(asyncio.wait_for(story(loop), 1_000))
