"""The scenes on a MongoDB replica set of one, each relay with a client of its own."""

from __future__ import annotations

import asyncio

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.event import Event
from tests.scenario.failures import FailureScenes
from tests.scenario.handlers import HandlerScenes
from tests.scenario.life import LifeScenes
from tests.scenario.mongo_place import MongoPlace
from tests.scenario.place import until
from tests.scenario.sharing import SharingScenes


@pytest.fixture
async def place(mongo_url):
    made = MongoPlace(mongo_url)
    await made.open()
    yield made
    await made.close()


class TestLife(LifeScenes):
    pass


class TestFailures(FailureScenes):
    pass


class TestHandlers(HandlerScenes):
    pass


class TestSharing(SharingScenes):
    pass


@pytest.mark.req("S1.1", "S1.3", "S1.9")
@pytest.mark.promise("G2")
async def test_what_waits_in_the_collection_is_done_only_after_the_confirm(place):
    """An operator looks at the collection itself, not through postroom."""
    outbox, broker = place.database["postroom_outbox"], MemoryBroker()

    async def status():
        return (await outbox.find_one({"_id": "e1"}))["status"]

    await place.write(Event("order.placed", {"total": 10}, id="e1", aggregate_id="order-1"))
    assert await status() == "pending"
    gate = broker.hold()
    async with place.relay(broker):
        async with asyncio.timeout(15):
            await gate.reached.wait()
        assert await status() == "pending"
        gate.release()

        async def is_done():
            return await status() == "done"

        await until(is_done)
    found = await outbox.find_one({"_id": "e1"})
    assert (found["attempts"], found["lease_owner"], found["last_error"]) == (0, None, None)
    assert found["settled_at"] >= found["created_at"]
