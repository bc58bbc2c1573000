"""Blocks are mended beside the heartbeat: however long it takes, the lanes stay ours."""

from __future__ import annotations

import asyncio

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.errors import StoreRetryableError
from postroom.event import Event
from postroom.observer import StoreTrouble
from tests.scenario.place import MemoryPlace, Reach, Stop, ids, until


@pytest.fixture
async def place():
    made = MemoryPlace()
    yield made
    await made.close()


# T/D: `repair_blocks` took 7.3 s between two beats
@pytest.mark.promise("B4", "L6")
async def test_a_mend_that_hangs_holds_up_no_heartbeat(place):
    broker, reach, hangs, beats = MemoryBroker(), Reach(place.store), Stop(), []

    async def count(*_):
        beats.append(1)

    reach.before["repair_blocks"], reach.after["heartbeat"] = hangs, count
    async with place.relay(broker, store=reach, lease_seconds=0.2):
        async with asyncio.timeout(15):
            await hangs.reached.wait()
        seen = len(beats)
        await until(lambda: len(beats) > seen + 5)
        await place.write(Event("t", id="e"))
        await until(lambda: ids(broker) == ["e"])
        hangs.released.set()


@pytest.mark.promise("B4", "F2")
async def test_a_mend_that_fails_is_repeated_with_a_pause_and_then_left(place, notes, monkeypatch):
    reach, pauses, sleep = Reach(place.store), [], asyncio.sleep

    async def fails(*_):
        raise StoreRetryableError("busy")

    async def count(seconds):
        pauses.append(seconds)
        await sleep(0)

    class Patched:
        def __getattr__(self, name):
            return count if name == "sleep" else getattr(asyncio, name)

    monkeypatch.setattr("postroom.engine.relay.block_repair.asyncio", Patched())
    reach.before["repair_blocks"] = fails
    async with place.relay(MemoryBroker(), store=reach, observers=[notes]):
        await until(lambda: len(pauses) == 5)
        assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2]
    assert {fact.doing for fact in notes.of(StoreTrouble)} == {"mending blocks"}


@pytest.mark.promise("B4", "G2")
async def test_a_drain_waits_until_the_lanes_are_mended(place):
    """A key whose head is over goes on only then."""
    broker, reach, slow = MemoryBroker(), Reach(place.store), Stop()
    reach.before["repair_blocks"] = slow
    await place.write(Event("t", id="e"))
    draining = asyncio.create_task(place.relay(broker, store=reach).drain())
    async with asyncio.timeout(15):
        await slow.reached.wait()
        await until(lambda: ids(broker) == ["e"])
        done, _ = await asyncio.wait({draining}, timeout=0.2)
        assert not done
        slow.released.set()
        await draining
