"""Relays that share a store share one change stream: one cursor, for as long as they run."""

from __future__ import annotations

import asyncio

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.errors import StoreError
from postroom.event import Event
from postroom.observer import StoreTrouble, Woken
from postroom.stores.mongo.change_stream import ChangeStream
from tests.scenario.mongo_place import MongoPlace
from tests.scenario.place import ids, until

FAR = 3_600.0


@pytest.fixture
async def place(mongo_url):
    made = MongoPlace(mongo_url)
    await made.open()
    yield made
    await made.close()


async def cursors(place):
    """The ids of the cursors that the server keeps on the outbox, idle or at work."""
    ours = {"$match": {"ns": f"{place.database.name}.postroom_outbox", "cursor": {"$exists": True}}}
    all_of_them = {"$currentOp": {"allUsers": True, "idleCursors": True}}
    found = await place.client.admin.aggregate([all_of_them, ours])
    return {one["cursor"]["cursorId"] for one in await found.to_list()}


# T-C1
@pytest.mark.promise("D1")
async def test_three_relays_on_one_store_have_one_cursor(place, notes):
    store, brokers = place.another(), {name: MemoryBroker() for name in "abc"}
    relays = [
        place.relay(broker, store=store, stream=name, observers=[notes], poll_seconds=30.0)
        for name, broker in brokers.items()
    ]
    await asyncio.gather(*(relay.start() for relay in relays))
    most = set()
    for number in range(5):
        for name, broker in brokers.items():
            event = Event("t", id=f"{name}{number}", stream=name)
            await place.write_quietly(event)
            await until(lambda: event.id in ids(broker))  # noqa: B023 - awaited within the round
            most = max(most, await cursors(place), key=len)
    assert len(most) == 1
    assert any(fact.by == "change" for fact in notes.of(Woken))
    await asyncio.gather(*(relay.stop() for relay in relays))

    async def none_is_left():  # a question that is under way ends after two seconds
        return await cursors(place) == set()

    await until(none_is_left)
    assert notes.of(StoreTrouble) == []


# T-C1
async def test_all_who_wait_are_told_and_each_hears_what_came_between_two_calls(place):
    store = place.store
    async with asyncio.timeout(30):
        while await store.wait_for_change(0.0):
            pass
        waiting = [asyncio.create_task(store.wait_for_change(FAR)) for _ in range(3)]
        await asyncio.sleep(0)
        await place.write_quietly(Event("t", id="one"))
        assert await asyncio.gather(*waiting) == [True, True, True]
        await until(
            lambda: store._change_stream._news > store._change_stream._seen[asyncio.current_task()]
        )
        assert await store.wait_for_change(0.0) is True
        assert await store.wait_for_change(0.0) is False


# T-C1
@pytest.mark.promise("F2")
async def test_a_stream_that_fails_all_the_time_is_tried_ever_less_often(place, monkeypatch):
    pauses, sleep = [], asyncio.sleep

    async def count(seconds, *more):
        if seconds >= 0.1:
            pauses.append(seconds)
            seconds = 0
        await sleep(seconds, *more)

    async def refuse(self):
        raise StoreError("no")

    monkeypatch.setattr(ChangeStream, "_open", refuse)
    monkeypatch.setattr("postroom.stores.mongo.change_stream.asyncio.sleep", count)
    with pytest.raises(StoreError, match="no"):
        while len(pauses) < 12:
            await place.store.wait_for_change(5.0)
    await until(lambda: len(pauses) >= 12)
    assert pauses[:9] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    await place.store.close()
