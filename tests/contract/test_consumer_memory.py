"""The queue in this process keeps the contract of sources."""

import asyncio

import pytest

from postroom.errors import Retry
from postroom.model.envelope import ID, KEY, TYPE
from postroom.model.incoming import Incoming
from postroom.retry import Constant, RetryPolicy
from postroom.sources.memory import MemoryQueue, MemorySource
from postroom.testing.consumer import ConsumerContract, ConsumerWire, Sent


class MemoryWire(ConsumerWire):
    def __init__(self):
        self.queue = MemoryQueue()

    async def send(self, *messages):
        for sent in messages:
            headers = dict(sent.headers)
            for name, value in ((ID, sent.id), (TYPE, sent.type), (KEY, sent.key)):
                if value is not None:
                    headers[name] = value
            self.queue.send(Incoming("orders", sent.body, headers))

    def source(self):
        return MemorySource(self.queue)

    async def unacknowledged(self):
        return len(self.queue.waiting) + len(self.queue.unacked)

    async def left(self):
        return await self.unacknowledged()


class TestMemory(ConsumerContract):
    @pytest.fixture
    async def wire(self):
        return MemoryWire()

    async def test_attempts_outlive_a_lost_connection(self, room):
        """R-D4: they began at 0 again, and the message was never dead."""
        calls = []

        @room.handlers.on("order.created")
        async def charge(event, tx):
            calls.append(event.attempts)
            if len(calls) < 3:
                consumer.source.lose_all()
            raise ValueError("no")

        await room.wire.send(Sent("m-1", key="a"))
        async with room.consuming(retry=RetryPolicy(3, Constant(0.01))) as consumer:
            await room.until(lambda: consumer.counts.dead == 1)
        assert calls == [0, 1, 2]
        assert consumer.counts.lost == 2
        assert await room.wire.left() == 0

    async def test_a_message_that_waits_for_its_retry_lets_go_when_it_is_lost(self, room):
        """RabbitMQ takes back what waits longer than its consumer_timeout; it waits on as before."""
        tried = asyncio.Event()

        @room.handlers.on("order.created")
        async def charge(event, tx):
            tried.set()
            raise Retry("not for an hour", after=3_600)

        await room.wire.send(Sent("m-1", key="a"))
        async with room.consuming() as consumer:
            await asyncio.wait_for(tried.wait(), 30)
            consumer.source.lose_all()
            await room.until(lambda: consumer.counts.lost == 1)
            await room.until(lambda: consumer.counts.received == 2)
            tried.clear()
            assert consumer.in_flight == 1
        assert not tried.is_set()
        assert consumer.counts.failed == 1
