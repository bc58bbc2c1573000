"""What the settler tells of events that are gone, and how often it tries what is refused."""

from __future__ import annotations

import asyncio

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.engine.relay.settler import _vanished
from postroom.errors import StoreRefusedError
from postroom.event import Event
from postroom.outbox import Outbox
from postroom.settlement import Missing, Settlement
from postroom.stores.memory import MemoryStore
from postroom.testing.broker_tools import make_record
from tests.sim.loop import SimClock, virtual_time


@pytest.mark.promise("G2")
@pytest.mark.parametrize(
    ("keep_done", "repeated", "replaced", "told"),
    [
        (True, False, False, True),
        (True, True, False, True),
        (False, False, False, True),
        (False, True, False, False),  # the first try, whose reply was lost, may have deleted it
        (False, True, True, True),  # another event has its number: nobody deleted it
    ],
)
def test_a_done_event_that_is_gone_is_told_unless_we_deleted_it(
    keep_done, repeated, replaced, told
):
    record = make_record(7)
    settlement = Settlement("main", "anna", 15.0, {}, keep_done, done=[record])
    settlement.missing = [Missing(record, replaced)]
    assert list(_vanished(settlement, repeated=repeated)) == ([record.id] if told else [])


class Refusing(MemoryStore):
    """Takes no outcome of one event, whatever it is."""

    def __init__(self, loop):
        super().__init__(now_us=lambda: 1_800_000_000_000_000 + int(loop.time() * 1_000_000))
        self.asked = 0

    async def settle(self, settlement):
        if any(record.id == "evil" for record in settlement.records()):
            self.asked += 1
            raise StoreRefusedError("not this one")
        return await super().settle(settlement)


@pytest.mark.promise("F2", "G7")
def test_what_the_store_refuses_for_good_is_tried_ever_less_often():
    async def story(loop):
        store, broker = Refusing(loop), MemoryBroker()
        async with store.transaction() as tx:
            events = [Event("t", id=name, key=name) for name in ("a", "evil", "b")]
            await Outbox().add_many(tx, events)
        async with Relay(store, broker, clock=SimClock(loop), lease_seconds=10.0):
            await asyncio.sleep(1_000)
            assert {name: (await store.get(name)).state for name in ("a", "b")} == {
                "a": "done", "b": "done",
            }  # fmt: skip
            assert 100 <= store.asked <= 120  # in the end once a lease
        assert [message.record.id for message in broker.messages].count("evil") == 1

    with virtual_time() as loop:
        loop.run_until_complete(story(loop))
