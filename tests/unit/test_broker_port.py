"""What a relay asks of its destination by the port, and never guesses."""

from __future__ import annotations

import asyncio

import pytest

from postroom import Handlers, MemoryBroker, MemoryStore, Relay
from postroom.broker import Broker, BrokerCapabilities
from postroom.engine.consumer.durable_inbox import StoredMessages
from postroom.engine.relay.inbox_pruner import InboxPruner
from postroom.store import Capabilities


@pytest.mark.parametrize("wrap", [lambda h: h, StoredMessages], ids=["handlers", "stored messages"])
async def test_the_broker_of_a_relay_stays_the_object_that_was_given(wrap):
    """Also where handlers serve two stores, and the second relay works with a twin of them."""
    handlers = Handlers(name="shop")
    given = [wrap(handlers), wrap(handlers)]
    relays = [Relay(MemoryStore(), broker, stream="inbox.shop") for broker in given]
    for relay, broker in zip(relays, given, strict=True):
        await relay.start()
        assert relay.broker is broker
    for relay, broker in zip(relays, given, strict=True):
        await relay.stop()
        assert relay.broker is broker


class Remembering(MemoryBroker):
    """A destination of another package that keeps an inbox."""

    capabilities = BrokerCapabilities(keeps_inbox=True)

    def __init__(self):
        super().__init__()
        self.asked = asyncio.Event()

    async def forget_accepted(self, older_than_seconds):
        self.older_than_seconds = older_than_seconds
        self.asked.set()
        return 0


async def test_a_destination_that_keeps_an_inbox_is_asked_to_forget():
    broker = Remembering()
    async with Relay(MemoryStore(), broker, prune_seconds=0.01, dedup_seconds=77.0):
        async with asyncio.timeout(10):
            await broker.asked.wait()
    assert broker.older_than_seconds == 77.0


async def test_a_destination_without_an_inbox_has_no_pruner_of_one():
    for broker, expected in [(MemoryBroker(), 0), (Handlers(name="shop"), 1)]:
        async with Relay(MemoryStore(), broker) as relay:
            found = [one for one in relay._services if isinstance(one, InboxPruner)]
            assert len(found) == expected


class Exclusive(MemoryStore):
    capabilities = Capabilities(concurrent_writers=False)


def test_handlers_go_one_by_one_where_the_store_takes_one_writer():
    assert Handlers(concurrency=5).bind(MemoryStore(), stream="main").places == 5
    assert Handlers(concurrency=5).bind(Exclusive(), stream="main").places == 1


def test_a_broker_that_lacks_a_method_cannot_be_made():
    class Half(Broker):
        capabilities = BrokerCapabilities()

        async def open(self): ...
        async def close(self): ...
        async def health(self): ...
        async def publish(self, batch, reporter): ...

    with pytest.raises(TypeError, match="publish_alone"):
        Half()


async def test_a_broker_is_checked_by_its_health_unless_it_does_more():
    broker = MemoryBroker()
    assert await broker.check(["orders"]) == []
    broker.go_down("no route")
    with pytest.raises(ConnectionError, match="no route"):
        await broker.check(["orders"])
