"""A drain whose store fails now and then, or for good (E-7)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from postroom.broker import Outcome, Verdict
from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.errors import StoreRetryableError, StoreUnknownError
from postroom.event import Event
from postroom.lookup import Filter
from postroom.outbox import Outbox
from postroom.record import State
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


class Locked(MemoryStore):
    """Some free lanes cannot be taken this often, as if a transaction had locked them."""

    def __init__(self, loop, times):
        super().__init__(now_us=lambda: 1_800_000_000_000_000 + int(loop.time() * 1_000_000))
        self.times = times

    async def take(self, stream, owner, lanes, lease_seconds):
        if self.times > 0:
            self.times -= 1
            lanes = [lane for lane in lanes if lane % 2]
        return await super().take(stream, owner, lanes, lease_seconds)


def drained_while_locked(times):
    async def story(loop):
        store, broker = Locked(loop, times), MemoryBroker()
        async with store.transaction() as tx:
            await Outbox().add_many(tx, [Event("t", n, key=f"k{n}") for n in range(20)])
        relay = Relay(store, broker, clock=SimClock(loop), lease_seconds=LEASE)
        try:
            return (await relay.drain()).done
        finally:
            drained_while_locked.seconds = loop.time()

    with virtual_time() as loop:
        return loop.run_until_complete(asyncio.wait_for(story(loop), 1_000))


def test_a_drain_waits_for_free_lanes_that_are_locked_for_a_moment():
    """It ended with success, and left their events."""
    assert drained_while_locked(2) == 20


def test_a_drain_that_cannot_take_free_lanes_for_a_whole_lease_ends_by_an_error():
    with pytest.raises(StoreRetryableError, match="lanes 0, 2, 4, .* look for an open transaction"):
        drained_while_locked(10**6)
    assert LEASE < drained_while_locked.seconds < 2 * LEASE


def test_a_drain_takes_lanes_again_that_it_lost():
    """The next heartbeat brings them back; until then nothing is known of their events."""

    async def story(loop):
        store, broker = Flaky(loop, 0), MemoryBroker()
        async with store.transaction() as tx:
            await Outbox().add_many(tx, [Event("t", n, key=f"k{n}") for n in range(20)])
        relay = Relay(store, broker, clock=SimClock(loop), lease_seconds=LEASE)
        heartbeat, beats = store.heartbeat, []

        async def slow(*args):
            beats.append(loop.time())
            await asyncio.sleep(0.5)
            return await heartbeat(*args)

        settle, context = store.settle, lambda: relay._context

        async def lose_all(settlement):
            if len(beats) == 1 and context().keeper.held:
                await store.release("main", context().owner, context().keeper.tokens())
                context().lose(list(context().keeper.held))
            return await settle(settlement)

        store.heartbeat, store.settle = slow, lose_all
        await relay.drain()
        return await store.find(Filter(state=State.PENDING))

    with virtual_time() as loop:
        assert loop.run_until_complete(asyncio.wait_for(story(loop), 1_000)) == []


def ended(script, **options):
    """Return why a drain ended, its counts, and the seconds it took."""

    async def story(loop):
        store, broker = Flaky(loop, 0), MemoryBroker()
        script(broker)
        async with store.transaction() as tx:
            await Outbox().add_many(tx, [Event("t", n, key=f"k{n}") for n in range(20)])
        relay = Relay(store, broker, clock=SimClock(loop), lease_seconds=LEASE, stop_seconds=1.0)
        assert relay.drain_end is None
        began = loop.time()
        counts = await relay.drain(**options)
        return relay.drain_end, counts.done, loop.time() - began

    with virtual_time() as loop:
        return loop.run_until_complete(asyncio.wait_for(story(loop), 1_000))


def test_a_drain_tells_why_it_ended():  # U22
    assert ended(lambda broker: None)[:2] == ("drained", 20)
    assert ended(lambda broker: None, max_seconds=timedelta(minutes=1))[:2] == ("drained", 20)
    why, done, _ = ended(lambda b: b.script(lambda r: Outcome(Verdict.OUTAGE, "down")))
    assert (why, done) == ("unreachable", 0)
    why, done, seconds = ended(lambda broker: broker.hold(), max_seconds=5)
    assert (why, done) == ("time", 0)
    assert 5 <= seconds < 5 + 1 + LEASE
