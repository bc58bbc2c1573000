"""RabbitMQ 4: a quorum queue drops what it has delivered 20 times, unless it was declared otherwise."""

from __future__ import annotations

import asyncio

import pytest

from postroom.brokers.rabbitmq import RabbitBroker
from postroom.sources.rabbitmq.source import RabbitSource
from postroom.testing.consumer import Sent
from tests.contract.test_consumer_rabbitmq import RabbitWire, Sender
from tests.scenario.test_consumer_rabbitmq import crash, receive
from tests.scenario.test_doctor_brokers import findings

pytestmark = pytest.mark.nightly


@pytest.fixture
def url(own_server):
    return own_server("rabbitmq4").url


async def declare(maker, url, queue):
    made = maker(url, queue=queue, declare=True)
    await made.open()
    await made.close()


async def left_after_a_crash_loop(url, sender, queue):
    """Return how many of ten messages are left when a consumer has died with them 21 times."""
    wire = RabbitWire(url, sender, queue, prefetch=100)
    await wire.send(*(Sent(f"m-{n}") for n in range(10)))
    for _ in range(21):
        await crash(wire, 10)
    source = RabbitSource(url, queue=queue)
    await source.open()
    try:
        async with asyncio.timeout(5):
            return len(await receive(source, 10))
    except TimeoutError:
        return await wire.left()
    finally:
        await source.close()


@pytest.mark.promise("G2")
async def test_a_crash_loop_loses_nothing(url):
    """R-C3: of a queue that somebody else declared all is lost, and the doctor says so before."""
    async with Sender(url) as sender:
        await declare(RabbitBroker, url, "by-a-relay")
        await declare(RabbitSource, url, "by-a-consumer")
        await sender.queue("by-others")
        assert await left_after_a_crash_loop(url, sender, "by-a-relay") == 10
        assert await left_after_a_crash_loop(url, sender, "by-a-consumer") == 10
        assert await left_after_a_crash_loop(url, sender, "by-others") == 0
        assert await findings(f"{url}?queue=by-a-relay") == []
        ((level, what),) = await findings(f"{url}?queue=by-others")
    assert level == "warning"
    assert what.endswith("drops a message (x-delivery-limit=20, RabbitMQ's default)")
