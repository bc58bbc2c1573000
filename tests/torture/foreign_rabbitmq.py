"""Senders to RabbitMQ that are not ours: aio-pika, the CloudEvents SDK, and raw frames with what

no client library sends.
"""

from __future__ import annotations

import asyncio
import json

import aio_pika
from cloudevents.core.bindings.rabbitmq import to_binary_event, to_structured_event

from tests.hostile_amqp import HOSTILE, LATIN, fuzzed
from tests.servers.amqp_wire import RawSender, RefusedError, short
from tests.torture.foreign import MaybeError
from tests.torture.foreign_kafka import KEYS, cloud_event
from tests.torture.marks import mark

EXCHANGE = "foreign"
SECONDS = 15
HUGE, TINY = 2_000_000, b"0"


def rabbitmq_ways(url):
    """Return the ways to send, by their names."""

    def publish(message, key=EXCHANGE):
        asyncio.run(_publish(url, message, key))

    def plain(number):
        return lambda: publish(aio_pika.Message(body_of(number))), "done", ""

    def typed(number):
        options = {"type": "order.created", "message_id": mark(number)}
        headers = {"x-list": [1, None, {"a": [2.5]}], "x-none": None, "x-number": 2**62}
        message = aio_pika.Message(TINY, headers=headers, **options)
        return lambda: publish(message), "done", ""

    def huge(number):
        body = json.dumps({"mark": mark(number), "padding": "x" * HUGE}).encode()
        return lambda: publish(aio_pika.Message(body, type="order.created")), "done", ""

    def empty(number):
        message = aio_pika.Message(b"", type="order.created", message_id=mark(number))
        return lambda: publish(message), "done", ""

    def nobody(number):
        message = aio_pika.Message(body_of(number), type="unheard.of", message_id=mark(number))
        return lambda: publish(message), "dead", ""

    def cloud(convert):
        def way(number):
            key = f"cloud-{number % KEYS}"
            made = convert(cloud_event(number, key))
            message = aio_pika.Message(
                made.body, headers=made.headers, content_type=made.content_type,
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            )  # fmt: skip
            return lambda: publish(message), "done", key

        return way

    def random(number):
        def send():
            try:
                asyncio.run(_raw(url, b"", fuzzed(number), body_of(number)))
            except Exception as error:  # RabbitMQ looks at them, too
                raise MaybeError from error

        return send, "any", ""

    ways = {
        "plain": plain, "odd headers": typed, "huge": huge, "empty": empty, "nobody's": nobody,
        "cloudevents binary": cloud(to_binary_event),
        "cloudevents structured": cloud(to_structured_event),
    }  # fmt: skip
    for case in HOSTILE:
        ways[case.name] = _hostile(url, case)
        ways[f"good beside {case.name}"] = plain
        ways[f"random beside {case.name}"] = random
    return ways


def _hostile(url, case):
    def way(number):
        listed = case.listed
        for old in (
            f"hostile-{case.name}".encode(),
            *([LATIN] if case.name == "message-id" else []),
        ):
            listed = listed.replace(short(old), short(old + mark(number).encode()))
        body = body_of(number)
        key = case.routing_key
        end = "dead" if case.problem else "done"
        return lambda: asyncio.run(_raw(url, key, listed, body)), end, ""

    return way


def body_of(number):
    return json.dumps({"mark": mark(number)}).encode()


async def _publish(url, message, key):
    message.delivery_mode = aio_pika.DeliveryMode.PERSISTENT
    async with asyncio.timeout(SECONDS), await aio_pika.connect(url, timeout=SECONDS) as connection:
        channel = await connection.channel()
        exchange = await channel.get_exchange(EXCHANGE)
        await exchange.publish(message, key, timeout=SECONDS)


async def _raw(url, key, listed, body):
    async with asyncio.timeout(SECONDS), RawSender(url) as sender:
        try:
            await sender.publish(key, listed, body, exchange=EXCHANGE.encode())
        except RefusedError as error:
            raise ConnectionError from error
