"""What may happen between two writes of the store, where it has no transaction for both."""

from __future__ import annotations

import pytest
from pymongo.errors import AutoReconnect

from postroom.errors import StoreUnknownError
from postroom.event import Event
from postroom.inbox import Inbox
from postroom.lookup import Filter
from postroom.outbox import Outbox
from postroom.stores.mongo import prune
from postroom.testing.store.tools import Hand, names
from postroom.transactions.mongo.sessions import AsyncBareWrites
from tests.scenario.mongo_place import MongoPlace, StandalonePlace


@pytest.fixture(params=["replica-set", "standalone"])
async def place(request):
    name = "mongo_url" if request.param == "replica-set" else "mongo_standalone_url"
    kind = MongoPlace if request.param == "replica-set" else StandalonePlace
    made = kind(request.getfixturevalue(name))
    await made.open()
    yield made
    await made.close()


# T/E: prune looks, and then deletes
@pytest.mark.promise("G2")
async def test_an_event_that_is_replayed_while_it_is_pruned_is_kept(place, monkeypatch):
    await place.write_quietly(Event("t", id="again"), Event("t", id="old"))
    hand = await Hand(place.store).take()
    await hand.settle(done=await hand.read())
    look = prune._old

    async def replayed_meanwhile(*question):
        found = await look(*question)
        assert await place.store.replay(["again"]) == 1
        return found

    monkeypatch.setattr(prune, "_old", replayed_meanwhile)
    assert await place.store.prune(-1.0, 100) == 1
    (kept,) = await place.store.find(Filter())
    assert (kept.id, kept.state) == ("again", "pending")


# T/E: a handler's work is kept back until it has ended well, and then written in two steps
@pytest.mark.promise("G2", "G6", "H2")
@pytest.mark.parametrize("step", ["insert", "accept"])
async def test_a_crash_while_a_handlers_work_is_written_loses_none_of_its_events(
    mongo_standalone_url, monkeypatch, step
):
    place = StandalonePlace(mongo_standalone_url)
    await place.open()

    async def handle():
        async with place.store.transaction() as tx:
            if not await Inbox("handler").accept(tx, Event("t", id="cause")):
                return False
            await Outbox().add(tx, Event("t", id="effect"))
        return True

    async def dies(*_, **__):
        raise AutoReconnect("the process is gone")

    monkeypatch.setattr(AsyncBareWrites, step, dies)
    with pytest.raises(StoreUnknownError):
        await handle()
    monkeypatch.undo()
    assert await handle() is True  # it was not accepted: it runs again
    assert await handle() is False
    assert names(await place.store.find(Filter())) == ["effect"]
    await place.close()
