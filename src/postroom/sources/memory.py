"""A queue in this process, for tests and examples; unacknowledged messages are delivered again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

from postroom.broker import Broker, BrokerCapabilities, Reporter
from postroom.engine.consumer.messages import to_message
from postroom.model.diagnostics import Finding
from postroom.model.foreign_messages import translate
from postroom.model.incoming import Incoming
from postroom.model.url import Url
from postroom.record import Record
from postroom.source import SourceCapabilities, SourceConnection

_MOST = 100


class MemoryQueue:
    """Messages that outlive their consumers. Several sources may share one and take turns."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, Incoming]] = deque()
        self.unacked: dict[int, Incoming] = {}
        self.acked: list[Incoming] = []
        self._next = 0
        self._news = asyncio.Event()

    def send(self, *messages: Incoming) -> None:
        """Append messages."""
        for message in messages:
            self.waiting.append((self._next, translate(message)))
            self._next += 1
        self._news.set()

    def put_back(self, numbers: Iterable[int]) -> None:
        """Return unacknowledged messages to their old place."""
        back = [(n, self.unacked.pop(n)) for n in sorted(numbers) if n in self.unacked]
        self.waiting.extendleft(reversed(back))
        self._news.set()

    async def take(self, most: int) -> list[tuple[int, Incoming]]:
        while not self.waiting:
            self._news.clear()
            await self._news.wait()
        taken = [self.waiting.popleft() for _ in range(min(most, len(self.waiting)))]
        self.unacked.update(taken)
        return taken

    @property
    def is_empty(self) -> bool:
        return not self.waiting and not self.unacked


class QueueBroker(Broker):
    """A destination for a relay that sends to the queue."""

    capabilities = BrokerCapabilities()

    def __init__(self, queue: MemoryQueue) -> None:
        self.queue = queue

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def health(self) -> None: ...

    async def publish(self, batch: Sequence[Record], reporter: Reporter) -> None:
        self.queue.send(*(to_message(record, reporter.outbox_id) for record in batch))
        reporter.confirm(batch)

    async def publish_alone(self, record: Record, reporter: Reporter) -> None:
        await self.publish((record,), reporter)


class MemorySource:
    """Receives from a MemoryQueue."""

    capabilities = SourceCapabilities(offsets=True)

    def __init__(self, queue: MemoryQueue | None = None, *, name: str | None = None) -> None:
        self.queue = queue or MemoryQueue()
        self.name = name
        self._held: dict[int, _Delivery] = {}
        self._paused = False
        self.connection = SourceConnection()

    @classmethod
    def from_url(cls, url: Url) -> MemorySource:
        """Create one with an empty queue from `memory:`, which has no options."""
        url.options({})
        return cls()

    async def open(self) -> None:
        self._paused = False

    async def receive(self) -> Sequence[_Delivery]:
        taken = await self.queue.take(_MOST)
        deliveries = [_Delivery(self, number, message) for number, message in taken]
        self._held.update((delivery.number, delivery) for delivery in deliveries)
        return deliveries

    async def pause(self) -> None:
        self._paused = True

    async def close(self) -> None:
        self.lose_all()

    async def health(self) -> None:
        """Return: it is always available."""

    async def backlog(self) -> int:
        return len(self.queue.waiting)

    async def check(self) -> list[Finding]:
        return []

    def lose_all(self) -> None:
        """Simulate a lost connection: all messages in flight are delivered again."""
        held, self._held = self._held, {}
        for delivery in held.values():
            delivery.is_lost = True
        self.queue.put_back(held)

    def ack(self, delivery: _Delivery) -> None:
        if self._held.pop(delivery.number, None) is not None:
            self.queue.acked.append(self.queue.unacked.pop(delivery.number))


class _Delivery:
    def __init__(self, source: MemorySource, number: int, message: Incoming) -> None:
        self._source = source
        self.number = number
        self.message = message
        self.is_lost = False

    def ack(self) -> None:
        if not self.is_lost:
            self._source.ack(self)
