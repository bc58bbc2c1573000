"""RabbitMQ keeps the contract of sources, on the real server."""

from contextlib import nullcontext
from types import SimpleNamespace
from unittest import mock

import pytest
from pamqp import commands as spec

from postroom.sources.rabbitmq.source import RabbitSource
from postroom.testing.consumer import ConsumerContract, ConsumerWire
from tests.scenario.rabbit import Tap, fresh


class RabbitWire(ConsumerWire):
    """A queue of its own, filled through the default exchange."""

    def __init__(self, url, tap, queue, **options):
        self.url, self.tap, self.queue, self.options = url, tap, queue, options

    async def send(self, *messages):
        for sent in messages:
            headers = dict(sent.headers)
            content_type = headers.pop("content-type", None)
            if sent.key is not None:
                headers["postroom-key"] = sent.key
            properties = spec.Basic.Properties(
                headers=headers, content_type=content_type, message_id=sent.id,
                message_type=sent.type, delivery_mode=2,
            )  # fmt: skip
            await self.tap.publish(self.queue, sent.body, properties)

    def source(self):
        return RabbitSource(self.url, queue=self.queue, **self.options)

    async def unacknowledged(self):
        """A queue counts what waits; what is in hand shows when its consumer is gone."""
        return await self.tap.waiting(self.queue)

    async def left(self):
        return await self.tap.waiting(self.queue)


class Sender(Tap):
    async def publish(self, queue, body, properties):
        """Send, confirmed. aiormq gives every message an id: here it must not."""
        channel = await self._channel.get_underlay_channel()
        no_id = mock.patch("aiormq.channel.UUID", lambda **_: SimpleNamespace(hex=None))
        with nullcontext() if properties.message_id else no_id:
            await channel.basic_publish(body, routing_key=queue, properties=properties)

    async def publish_to(self, exchange, routing_key, body, event_id):
        channel = await self._channel.get_underlay_channel()
        properties = spec.Basic.Properties(message_id=event_id, delivery_mode=2)
        await channel.basic_publish(
            body, exchange=exchange, routing_key=routing_key, properties=properties
        )

    async def remove_queue(self, queue):
        channel = await self._channel.get_underlay_channel()
        await channel.queue_delete(queue)

    async def waiting(self, queue):
        """Look through a channel of its own, after all that was sent before."""
        channel = await self._connection.channel()
        declared = await channel.declare_queue(queue, passive=True)
        await channel.close()
        return declared.declaration_result.message_count


@pytest.fixture
async def sender(rabbitmq_url):
    async with Sender(rabbitmq_url) as sender:
        yield sender


class TestRabbitmq(ConsumerContract):
    kind = "quorum"

    @pytest.fixture
    async def wire(self, rabbitmq_url, sender):
        queue = fresh("consumer")
        await sender.queue(queue, kind=self.kind, **{"x-single-active-consumer": True})
        return RabbitWire(rabbitmq_url, sender, queue)


class TestRabbitmqClassic(TestRabbitmq):
    kind = "classic"
