"""Channels: one by the public calls of aiormq, and the fast one with aiormq's own tables."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from aiormq.exceptions import DeliveryError
from pamqp.commands import Basic

from postroom.brokers.rabbitmq.channels import FastChannel, PlainChannel, fits
from postroom.brokers.rabbitmq.message import Writer
from postroom.brokers.rabbitmq.settings import RabbitSettings
from postroom.testing.broker_tools import make_record


class Listener:
    """Hears what became of messages."""

    def __init__(self):
        self.heard = []

    def confirmed(self, message):
        self.heard.append(message.record.id)

    def refused(self, message):
        self.heard.append(f"not {message.record.id}")


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


class Inside:
    """The internals of aiormq's channel that the fast one uses."""

    is_closed = False
    _close_exception = None
    delivery_tag, number = 0, 1
    connection = SimpleNamespace(connection_tune=SimpleNamespace(frame_max=131_072))

    def __init__(self):
        self.closing = asyncio.get_running_loop().create_future()
        self.confirmations, self.message_id_delivery_tag = {}, {}
        self.write_queue = asyncio.Queue()


@pytest.mark.parametrize("listens", [True, False])
async def test_aiormqs_tables_hold_only_messages_without_an_answer(listens):
    """Otherwise a relay's memory grows with each message."""
    inside, listener = Inside(), Listener()
    assert fits(inside)
    channel, writer = FastChannel(inside), Writer(RabbitSettings(exchange="orders"))
    messages = [writer.write(make_record(n, payload=b"{}"), "o") for n in (1, 2, 3)]
    channel.listen(listener)
    await channel.post([(message, channel.pack(message)) for message in messages])
    channel.listen(listener if listens else None)  # a call that has ended listens no more
    ids = [message.record.id for message in messages]
    assert inside.message_id_delivery_tag == dict(zip(ids, (1, 2, 3), strict=True))
    inside.confirmations.pop(1).set_result(Basic.Ack())  # as aiormq does
    inside.confirmations.pop(3).set_exception(DeliveryError(None, Basic.Nack()))
    assert inside.message_id_delivery_tag == {ids[1]: 2}
    assert listener.heard == ([ids[0], f"not {ids[2]}"] if listens else [])
