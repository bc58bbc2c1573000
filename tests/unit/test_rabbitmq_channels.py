"""A channel by the public calls of aiormq: the same promises as the quick one."""

from __future__ import annotations

import asyncio

import pytest
from pamqp.commands import Basic

from postroom.brokers.rabbitmq.channels import PlainChannel
from postroom.brokers.rabbitmq.message import Writer
from postroom.brokers.rabbitmq.settings import RabbitSettings
from postroom.testing.broker_tools import make_record


class Listener:
    """Hears what became of messages."""

    def __init__(self):
        self.heard = []

    def confirmed(self, message):
        self.heard.append(message.record.id)


class Public:
    """What aiormq offers; it takes everything."""

    is_closed = False

    def __init__(self):
        self.closing = asyncio.get_running_loop().create_future()
        self.calls = []

    async def basic_publish(self, body, **options):
        self.calls.append((body, options))
        return Basic.Ack()


@pytest.mark.promise("Q1", "G2")
async def test_a_message_is_mandatory_and_persistent():
    public, listener = Public(), Listener()
    channel = PlainChannel(public)
    channel.listen(listener)
    message = Writer(RabbitSettings(exchange="orders")).write(make_record(payload=b"{}"), "o")
    await channel.post([(message, channel.pack(message))])
    async with asyncio.timeout(5):
        while not listener.heard:
            await asyncio.sleep(0)
    ((body, options),) = public.calls
    assert body == b"{}"
    assert options["mandatory"] is True  # else RabbitMQ confirms what no queue takes
    assert options["properties"].delivery_mode == 2
    assert (options["exchange"], options["routing_key"]) == ("orders", message.routing_key)
    assert listener.heard == [message.record.id]
