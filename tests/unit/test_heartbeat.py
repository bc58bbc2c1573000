"""When a relay beats, and what it says of itself."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.event import Event
from postroom.observer import Alarm
from postroom.outbox import Outbox
from postroom.stores.memory import MemoryStore
from tests.sim.loop import SimClock, virtual_time

LEASE = 30.0


class Slow(MemoryStore):
    """A store whose beats take their time; it remembers them."""

    def __init__(self, loop, beat_seconds):
        super().__init__(now_us=lambda: 1_800_000_000_000_000 + int(loop.time() * 1_000_000))
        self.beats = []
        self._loop, self._beat_seconds = loop, beat_seconds

    async def heartbeat(self, stream, member, lease_seconds, held):
        self.beats.append((self._loop.time(), member.healthy))
        await asyncio.sleep(self._beat_seconds)
        return await super().heartbeat(stream, member, lease_seconds, held)


class Hanging(MemoryBroker):
    """Takes a while for each batch."""

    async def publish(self, batch, reporter):
        await asyncio.sleep(LEASE)
        await super().publish(batch, reporter)


class Late(MemoryStore):
    """A store that does at once what it is asked. Its answers come late, and one day none comes."""

    def __init__(self, loop):
        super().__init__(now_us=lambda: 1_800_000_000_000_000 + int(loop.time() * 1_000_000))
        self.renewed, self.is_silent, self.found = asyncio.Event(), False, []

    async def heartbeat(self, stream, member, lease_seconds, held):
        if self.is_silent:
            await asyncio.Event().wait()
        membership = await super().heartbeat(stream, member, lease_seconds, held)
        if held:
            self.renewed.set()
        await asyncio.sleep(LEASE * 2 / 3)
        return membership

    async def read(self, question):
        found = await super().read(question)
        self.found += [record.id for record in found]
        await asyncio.sleep(LEASE / 3 if found else 0)
        return found


def relay_on(store, broker, loop):
    return Relay(
        store, broker, clock=SimClock(loop), lease_seconds=LEASE, publish_seconds=2 * LEASE,
        stop_seconds=2 * LEASE,
    )  # fmt: skip


@pytest.mark.promise("L1")
@pytest.mark.parametrize(
    ("takes", "every"), [(0.0, LEASE / 3), (6.0, LEASE / 3), (12.0, 12.0 + LEASE / 10)]
)
def test_beats_begin_a_third_of_a_lease_apart_however_long_they_take(takes, every):
    async def story(loop):
        store = Slow(loop, takes)
        async with relay_on(store, MemoryBroker(), loop):
            await asyncio.sleep(20 * LEASE)
        begun = [at for at, healthy in store.beats if healthy]
        gaps = [round(b - a, 6) for a, b in itertools.pairwise(begun)]
        assert set(gaps[3:]) == {every}

    with virtual_time() as loop:
        loop.run_until_complete(story(loop))


@pytest.mark.promise("L4")
def test_a_relay_that_is_leaving_is_no_longer_one_to_share_lanes_with():
    async def story(loop):
        store = Slow(loop, 0.0)
        relay = relay_on(store, Hanging(), loop)
        await relay.start()
        async with store.transaction() as tx:
            await Outbox().add(tx, Event("t", id="e1"))
        await asyncio.sleep(LEASE / 2)  # it is on its way
        asked_at = loop.time()
        await relay.stop()
        assert loop.time() > asked_at + LEASE / 3
        assert {healthy for at, healthy in store.beats if at < asked_at} == {True}
        assert {healthy for at, healthy in store.beats if at > asked_at} == {False}
        assert (await store.get("e1")).state == "done"

    with virtual_time() as loop:
        loop.run_until_complete(story(loop))


@pytest.mark.promise("L1")
def test_a_lease_counts_from_when_it_was_asked_for_however_late_the_answer_comes():
    async def story(loop):
        store, broker = Late(loop), MemoryBroker()
        relay = relay_on(store, broker, loop)
        await relay.start()
        await store.renewed.wait()
        store.is_silent = True  # the last renewal: the lanes are another's after one lease
        await asyncio.sleep(LEASE * 0.8)
        async with store.transaction() as tx:
            await Outbox().add(tx, Event("t", id="e1"))
        await asyncio.sleep(LEASE)
        assert store.found == ["e1"]  # read within the lease, and answered after it
        assert broker.messages == []
        await relay.kill()

    with virtual_time() as loop:
        loop.run_until_complete(story(loop))


@pytest.mark.promise("L4")
def test_lanes_that_stay_with_a_relay_that_is_gone_are_told_once():
    async def story(loop):
        store, notes = Slow(loop, 0.0), []
        await store.take("main", "ghost", [3, 5], 100 * LEASE)
        relay = Relay(
            store, MemoryBroker(), clock=SimClock(loop), lease_seconds=LEASE,
            observers=[SimpleNamespace(observe=notes.append)],
        )  # fmt: skip
        async with relay:
            await asyncio.sleep(2 * LEASE)
            assert [fact for fact in notes if isinstance(fact, Alarm)] == []
            await asyncio.sleep(20 * LEASE)
        (alarm,) = [fact for fact in notes if isinstance(fact, Alarm)]
        assert alarm.about == "lanes 3, 5 are held by a relay that is no longer running"

    with virtual_time() as loop:
        loop.run_until_complete(story(loop))
