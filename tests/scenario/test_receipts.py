"""Receipts of real brokers, compared with what a consumer that knows nothing of us finds there."""

from __future__ import annotations

import pytest

from postroom.brokers.kafka import KafkaBroker
from postroom.brokers.memory import MemoryBroker
from postroom.brokers.rabbitmq import RabbitBroker
from postroom.bus import Bus
from postroom.engine.handlers.handlers import Handlers
from postroom.event import Event
from postroom.model import receipts
from tests.scenario.kafka_place import make_topic, tap
from tests.scenario.place import SqlitePlace, until
from tests.scenario.rabbit import Tap, fresh


@pytest.fixture
async def place(tmp_path):
    made = SqlitePlace(tmp_path / "app.db")
    await made.open()
    yield made
    await made.close()


async def run(place, broker, *events, **options):
    """Send these events, and return their receipts."""
    await place.write(*events)
    async with place.relay(broker, name="box-1", **options):
        await until(lambda: _all_done(place, len(events)), 60.0)
    return {event.id: await receipt(place.store, event.id) for event in events}


async def _all_done(place, count):
    return (await place.store.stats()).counts.get("done", 0) == count


async def receipt(store, event_id):
    return receipts.read((await store.details(event_id)).receipt)


@pytest.mark.server
@pytest.mark.req("S1.3", "S1.9")
@pytest.mark.parametrize("delivery", ["idempotent", "transactional"])
async def test_kafka_has_each_event_where_its_receipt_says(kafka_url, place, delivery):
    topics = [make_topic(kafka_url, partitions=3) for _ in range(2)]
    events = [
        Event("made", {"n": n}, id=f"e{n}", key=f"k{n % 7}", topic=topics[n % 2]) for n in range(40)
    ]
    found = await run(place, KafkaBroker(kafka_url, delivery=delivery), *events)
    seen = {m.id: m for m in tap(kafka_url, *topics, committed=True)}
    assert found == {
        name: {
            "by": "box-1", "to": "kafka", "topic": m.topic,
            "partition": m.partition, "offset": m.offset,
        }
        for name, m in seen.items()
    }  # fmt: skip
    assert len({(m.topic, m.partition) for m in seen.values()}) > 2


@pytest.mark.server
@pytest.mark.req("S1.9", "S5.2")
async def test_rabbitmq_has_each_event_where_its_receipt_says(rabbitmq_url, place):
    name = fresh("receipts")
    async with Tap(rabbitmq_url) as tap:
        await tap.exchange(name)
        await tap.queue(name)
        await tap.bind(name, name, "#")
        events = [
            Event("made", {"n": n}, id=f"e{n}", key=f"k{n % 7}", topic=f'order."{n % 3}".é')
            for n in range(40)
        ]
        found = await run(place, RabbitBroker(rabbitmq_url, exchange=name), *events)
        seen = {m.message_id: m for m in await tap.messages(name, 40)}
    assert found == {
        event_id: {
            "by": "box-1", "to": "rabbitmq", "exchange": m.exchange, "routing_key": m.routing_key,
        }
        for event_id, m in seen.items()
    }  # fmt: skip
    assert len({m.routing_key for m in seen.values()}) == 3


@pytest.mark.req("S1.9", "S3.1")
async def test_handlers_are_named_as_in_their_inbox_rows(place):
    handlers = Handlers(name="payments")

    @handlers.on("made")
    async def charge(event, tx): ...

    @handlers.on("made")
    async def mail(event, tx): ...

    found = await run(place, handlers, Event("made", id="e"))
    assert found["e"] == {
        "by": "box-1", "to": "handlers", "handlers": ["payments/charge", "payments/mail"],
    }  # fmt: skip


@pytest.mark.req("S1.9")
async def test_modules_are_named(tmp_path):
    bus = Bus(f"sqlite:///{tmp_path / 'app.db'}")
    orders, mail = bus.module("orders"), bus.module("mail")

    @mail.on("made")
    async def send(event, tx): ...

    await bus.migrate()
    async with orders.store.transaction() as tx:
        await orders.outbox.add(tx, Event("made", id="e"))
    await bus.drain()
    async with orders.store:
        found = await receipt(orders.store, "e")
    assert (found["to"], found["modules"]) == ("modules", ["mail"])


@pytest.mark.req("S1.9")
@pytest.mark.promise("P3")
async def test_a_destination_that_does_not_say_where_still_names_the_relay(place):
    class Silent(MemoryBroker):
        async def publish(self, batch, reporter):
            for record in batch:
                reporter.confirm([record])

    found = await run(place, Silent(), Event("made", id="e"))
    assert found["e"] == {"by": "box-1"}


@pytest.mark.req("S1.9", "S3.2")
async def test_where_done_events_are_deleted_nothing_is_made(place):
    asked = []

    class Watched(MemoryBroker):
        async def publish(self, batch, reporter):
            asked.append(reporter.keeps_receipts)
            await super().publish(batch, reporter)

    broker = Watched()
    await place.write(Event("made", id="e"))
    async with place.relay(broker, keep_done_seconds=0):
        await until(lambda: broker.messages)
    assert asked == [False]
    assert await place.store.details("e") is None
