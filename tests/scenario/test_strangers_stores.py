"""Raw records and messages of strangers, kept in the rows of each server (X-C1, X-C2, R-C1 to R-C3).

The corpora themselves are looked at more closely over the memory store and over SQLite.
"""

from __future__ import annotations

import asyncio

import pytest

from postroom import Handlers
from postroom.engine.consumer import Consumer
from postroom.lookup import Filter
from postroom.testing.consumer.tools import Sent
from tests.contract.test_consumer_rabbitmq import RabbitWire, Sender
from tests.hostile_amqp import HOSTILE
from tests.scenario.every_store import open_store
from tests.scenario.kafka_corpus import CORPUS
from tests.scenario.kafka_place import make_topic, servers
from tests.scenario.place import until
from tests.scenario.rabbit import fresh
from tests.scenario.test_kafka_strangers import ALWAYS, STREAM, good, reading
from tests.servers.amqp_wire import RawSender
from tests.servers.kafka_wire import send_raw

pytestmark = pytest.mark.server


@pytest.fixture(params=["postgres", "mysql", "mongo"])
async def stores(request):
    async with open_store(request) as found:
        yield found


@pytest.fixture
def handled():
    return []


@pytest.fixture
def handlers(handled):
    handlers = Handlers(name="payments")

    @handlers.default
    async def note(event, tx):
        handled.append(event.id)

    return handlers


async def reasons(store):
    found = await store.find(Filter(stream=STREAM, state="dead", limit=1_000))
    return sorted(record.last_error for record in found)


@pytest.mark.promise("G7", "F1")
async def test_odd_records_are_kept_or_buried_by_every_store(kafka_url, stores, handlers, handled):
    make, look = stores
    topic = make_topic(
        kafka_url, partitions=2, message_timestamp_after_max_ms=ALWAYS, max_message_bytes=2_000_000
    )
    for partition in (0, 1):
        records = [good(f"first-{partition}")]
        for odd in CORPUS[partition::2]:
            records += [odd.record, good(f"after-{odd.name}")]
        await asyncio.to_thread(send_raw, servers(kafka_url), topic, records, partition=partition)
    sent = 2 + 2 * len(CORPUS)
    consumer = reading(kafka_url, topic, make(), handlers, mode="durable", missing_id="offset")
    async with consumer:
        await until(lambda: len(handled) + consumer.counts.dead == sent, 60)
    assert {"first-0", "first-1", *(f"after-{odd.name}" for odd in CORPUS)} <= set(handled)
    assert len(await reasons(look)) == consumer.counts.dead


@pytest.mark.promise("G7", "F1")
async def test_messages_that_cannot_be_decoded_are_kept_or_buried_by_every_store(
    rabbitmq_url, stores, handlers, handled
):
    make, look = stores
    queue, exchange = fresh("hostile"), fresh("hostile")
    async with Sender(rabbitmq_url) as sender, RawSender(rabbitmq_url) as raw:
        await sender.queue(queue, **{"x-single-active-consumer": True})
        await sender.exchange(exchange, "fanout")
        await sender.bind(queue, exchange, "")
        wire = RabbitWire(rabbitmq_url, sender, queue)
        for case in HOSTILE:
            await raw.publish(case.routing_key, case.listed, exchange=exchange.encode())
            await wire.send(Sent(f"good-{case.name}", key="k"))
        consumer = Consumer(wire.source(), make(), handlers, mode="durable")
        dead = [case for case in HOSTILE if case.problem]
        async with consumer:
            await until(lambda: len(handled) == 2 * len(HOSTILE) - len(dead), 60)
            await until(lambda: consumer.counts.dead == len(dead), 60)
        assert await wire.left() == 0
    assert {f"good-{case.name}" for case in HOSTILE} <= set(handled)
    assert await reasons(look) == sorted(case.problem for case in dead)
