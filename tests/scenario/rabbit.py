"""RabbitMQ as tests see it: with plain aio-pika, by another way than the one under test."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import aio_pika

from postroom.lookup import Filter
from postroom.outbox import Outbox
from postroom.testing.broker_tools import Arrival
from tests.scenario.place import SqlitePlace


def fresh(what):
    """A name that no other test has."""
    return f"{what}-{uuid4().hex[:12]}"


class Tap:
    """An independent consumer: declares what it needs, and reads all that is in a queue."""

    def __init__(self, url):
        self._url = url
        self.seen = []
        self._queues = []
        self._exchanges = []

    async def __aenter__(self):
        self._connection = await aio_pika.connect(self._url)
        self._channel = await self._connection.channel()
        return self

    async def __aexit__(self, *_):
        try:
            await self.clear()
        finally:
            await self._connection.close()

    async def clear(self):
        """Remove what was declared here; the server is shared."""
        channel = await self._connection.channel()
        for queue in self._queues:
            await (await channel.get_queue(queue, ensure=False)).delete(
                if_unused=False, if_empty=False
            )
        for exchange in self._exchanges:
            await channel.exchange_delete(exchange)
        await channel.close()
        self._queues, self._exchanges = [], []

    def owns(self, exchange=None, queue=None):
        """Remove these, too, at the end: the broker under test declares them."""
        self._exchanges += [exchange] if exchange else []
        self._queues += [queue] if queue else []

    async def exchange(self, name, kind="topic", **options):
        self._exchanges.append(name)
        return await self._channel.declare_exchange(name, kind, durable=True, **options)

    async def remove_exchange(self, name):
        await self._channel.exchange_delete(name)

    async def queue(self, name, *, kind="quorum", **arguments):
        self._queues.append(name)
        arguments = {"x-queue-type": kind} | {n.replace("_", "-"): v for n, v in arguments.items()}
        return await self._channel.declare_queue(name, durable=True, arguments=arguments)

    async def bind(self, queue, exchange, key):
        bound = await self._channel.get_queue(queue)
        await bound.bind(exchange, key)

    async def unbind(self, queue, exchange, key):
        bound = await self._channel.get_queue(queue)
        await bound.unbind(exchange, key)

    async def drain(self, queue):
        """Take all that is in a queue, in order; returns all that was ever seen."""
        source = await self._channel.get_queue(queue)
        while (message := await source.get(fail=False)) is not None:
            await message.ack()
            self.seen.append(message)
        return self.seen

    async def messages(self, queue, count, seconds=30.0):
        """Take messages until so many were seen."""
        async with asyncio.timeout(seconds):
            while len(await self.drain(queue)) < count:
                await asyncio.sleep(0.01)
        return self.seen


class AttentivePlace(SqlitePlace):
    """An SQLite outbox that knows which events were charged."""

    def outbox_to(self, topic):
        return Outbox(routes={"*": topic})

    async def attempts(self):
        """Event id → attempts, where there were any."""
        found = await self.store.find(Filter(limit=100_000))
        return {record.id: record.attempts for record in found if record.attempts}


def arrival(message):
    return Arrival(
        message.message_id,
        message.type,
        message.routing_key,
        message.headers.get("postroom-key"),
        message.body,
    )


def first_seen_by_key(messages):
    """Key → ids in the order in which they were first seen."""
    found = {}
    for message in messages:
        ids = found.setdefault(message.headers["postroom-key"], {})
        ids.setdefault(message.message_id)
    return {key: list(ids) for key, ids in found.items()}
