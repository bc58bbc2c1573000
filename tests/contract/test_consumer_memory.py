"""The queue in this process keeps the contract of sources."""

import pytest

from postroom.consumers.memory import MemoryQueue, MemorySource
from postroom.envelope import ID, KEY, TYPE
from postroom.source import Incoming
from postroom.testing.consumer import ConsumerContract, ConsumerWire


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
