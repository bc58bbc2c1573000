"""RabbitMQ, with aio-pika."""

import asyncio
import uuid
from typing import Any

import aio_pika
import pytest
from aio_pika import DeliveryMode, Message

WITHIN_SECONDS = 30.0


async def publish(url: str, queue: str, body: bytes) -> None:
    """Publish a durable message and wait for the broker's confirmation."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.declare_queue(queue, durable=True)
        message = Message(body, delivery_mode=DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(message, queue, mandatory=True)


async def take(url: str, queue: str) -> bytes:
    """Take one message from a queue and remove the queue."""
    async with asyncio.timeout(WITHIN_SECONDS), await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        declared = await channel.declare_queue(queue, durable=True)
        async with declared.iterator() as messages:
            message = await anext(messages)
            await message.ack()
        await declared.delete()
        return message.body


@pytest.mark.asyncio
async def test_publish_with_confirms_and_consume(rabbitmq_url: str) -> None:
    queue = f"smoke-{uuid.uuid4().hex}"
    async with await aio_pika.connect(rabbitmq_url) as connection:
        assert connection.transport is not None
        version = connection.transport.connection.server_properties["version"]
        assert str(version).startswith("3.10.")
    await publish(rabbitmq_url, queue, b"one")
    assert await take(rabbitmq_url, queue) == b"one"


@pytest.mark.asyncio
async def test_a_message_without_a_queue_comes_back(rabbitmq_url: str) -> None:
    async with await aio_pika.connect(rabbitmq_url) as connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        with pytest.raises(aio_pika.exceptions.PublishError):
            await channel.default_exchange.publish(Message(b"x"), "no-such-queue", mandatory=True)


@pytest.mark.nightly
def test_a_restart_after_a_kill_keeps_what_was_confirmed(own_server: Any) -> None:
    server = own_server("rabbitmq")
    asyncio.run(publish(server.url, "kept", b"kept"))
    server.restart()
    assert "kept" in server.ctl("list_queues", "name")
    assert asyncio.run(take(server.url, "kept")) == b"kept"
