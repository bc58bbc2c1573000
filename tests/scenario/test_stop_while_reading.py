"""A relay that is stopped in the middle of a read sends nothing more."""

from __future__ import annotations

import asyncio

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.event import Event
from tests.scenario.place import MemoryPlace, Reach, Stop, ids


@pytest.mark.promise("G3", "L4")
async def test_what_a_read_brings_after_the_stop_is_left_to_the_next_relay():
    """Sent now, it could not be settled any more, and would be sent twice without any fault."""
    place, broker = MemoryPlace(), MemoryBroker()
    reach = Reach(place.another())
    relay = place.relay(broker, store=reach, groups=1)
    reading = asyncio.Event()

    async def until_it_stops(*_):
        if await place.record("e1") is None:
            return
        reading.set()
        while relay._context is not None and not relay._context.stopping:
            await asyncio.sleep(0)

    async with asyncio.timeout(15):
        await relay.start()
        reach.after["read"] = until_it_stops
        reach.before["settle"] = Stop()  # a database that is not that quick
        await place.write(Event("made", id="e1"))
        await reading.wait()
        await relay.stop()
        await place.relay(broker).drain()
    assert ids(broker) == ["e1"]
    await place.close()
