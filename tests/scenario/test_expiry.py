"""Events with a time to be sent by, through a relay."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from postroom import Event, EventError, MemoryBroker, MemoryStore, Outbox, Relay
from postroom.engine.relay import key_run
from postroom.model.clock import host_microseconds
from tests.scenario.place import until

DAY = timedelta(days=1)


@pytest.fixture
async def store():
    return MemoryStore()


async def add(store, *events):
    async with store.begin() as tx:
        await Outbox().add_many(tx, events)


async def test_an_expired_event_is_not_sent_and_its_followers_are(store):
    over, now = datetime.now(UTC) - DAY, datetime.now(UTC)
    await add(
        store,
        Event("t", id="a-1", key="a"),
        Event("t", id="a-2", key="a", deliver_by=over),
        Event("t", id="a-3", key="a", deliver_by=now + DAY),
        Event("t", id="b", deliver_by=over),
    )
    broker = MemoryBroker()
    async with Relay(store, broker) as relay:
        await until(lambda: len(broker.messages) == 2 and relay.counts.expired == 2, 30)
    assert [message.record.id for message in broker.messages] == ["a-1", "a-3"]
    assert {name: (await store.get(name)).state for name in ("a-1", "a-2", "a-3", "b")} == {
        "a-1": "done", "a-2": "expired", "a-3": "done", "b": "expired",
    }  # fmt: skip
    assert (await store.get("a-2")).attempts == 0


async def test_a_host_whose_clock_is_ahead_loses_no_event(store, monkeypatch):
    monkeypatch.setattr(key_run, "host_microseconds", lambda: host_microseconds() + 864_000_000_000)
    await add(store, Event("t", id="early", key="k", deliver_by=datetime.now(UTC) + DAY))
    broker = MemoryBroker()
    async with Relay(store, broker) as relay:
        await until(lambda: relay.counts.done == 1, 30)
    assert [message.record.id for message in broker.messages] == ["early"]
    assert relay.counts.expired == 0


async def test_strict_order_refuses_it(store):
    async with store.begin() as tx:
        with pytest.raises(EventError, match="deliver_by is not supported with strict order"):
            await Outbox(ordering="strict").add(
                tx, Event("t", key="k", deliver_by=datetime.now(UTC) + DAY)
            )
