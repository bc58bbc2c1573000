"""What a consumer finds in RabbitMQ, read with plain aio-pika and with the SDK of CloudEvents."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cloudevents.core.bindings.rabbitmq import RabbitMQMessage, from_rabbitmq_event

from postroom.brokers.rabbitmq import RabbitBroker, connection
from postroom.event import Event
from postroom.model.envelope import read_headers
from postroom.outbox import Outbox
from postroom.testing.broker_tools import RecordingReporter, make_record
from tests.scenario.place import SqlitePlace, until
from tests.scenario.rabbit import Tap, fresh

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
RICH = {
    "id": "e-1",
    "type": "order.created",
    "key": "order-1",
    "aggregate_type": "order",
    "aggregate_id": "1",
    "correlation_id": "c-1",
    "causation_json": '[["shop","checkout"]]',
    "schema_version": 2,
    "kseq": 7,
    "occurred_us": 1_700_000_000_123_456,
    "headers_json": f'{{"traceparent": "{PARENT}", "tenant": "ž🦊"}}',
    "payload": b'{"total":  10}',
}


@pytest.fixture
def name():
    return fresh("format")


@pytest.fixture
async def tap(rabbitmq_url, name):
    async with Tap(rabbitmq_url) as tap:
        await tap.queue(name, kind="classic")  # a quorum queue adds a header of its own
        yield tap


@pytest.fixture(params=["fast", "plain"])
def way(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(connection, "fits", lambda _: False)


async def send(url, record, **options):
    broker = RabbitBroker(url, **options)
    await broker.open()
    reporter = RecordingReporter()
    await broker.publish([record], reporter)
    await broker.close()
    assert reporter.outcome(record).error == ""


@pytest.mark.req("S5.2", "S5.5")
async def test_properties_and_headers(rabbitmq_url, name, tap, way):
    await send(rabbitmq_url, make_record(topic=name, **RICH), app_id="shop")
    (message,) = await tap.drain(name)
    assert message.body == b'{"total":  10}'
    assert message.message_id == "e-1"
    assert message.type == "order.created"
    assert message.correlation_id == "c-1"
    assert message.content_type == "application/json"
    assert message.timestamp == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert message.app_id == "shop"
    assert message.delivery_mode == 2
    assert message.headers == {
        "postroom-id": "e-1",
        "postroom-type": "order.created",
        "postroom-key": "order-1",
        "postroom-aggregate-type": "order",
        "postroom-aggregate-id": "1",
        "postroom-correlation-id": "c-1",
        "postroom-causation-path": '[["shop","checkout"]]',
        "postroom-schema-version": "2",
        "postroom-occurred-at": "2023-11-14T22:13:20.123456+00:00",
        "postroom-kseq": "7",
        "postroom-outbox": "the-outbox",
        "content-type": "application/json",
        "traceparent": PARENT,
        "tenant": "ž🦊",
    }
    envelope = read_headers(message.headers)
    assert (envelope.kseq, envelope.causation_path) == (7, (("shop", "checkout"),))


async def test_what_an_event_does_not_have_is_not_there(rabbitmq_url, name, tap, way):
    await send(rabbitmq_url, make_record(topic=name, occurred_us=-5_000_000))
    (message,) = await tap.drain(name)
    assert (message.correlation_id, message.timestamp, message.expiration) == (None, None, None)
    assert set(message.headers) == {
        "postroom-id", "postroom-type", "postroom-schema-version", "postroom-occurred-at",
        "content-type",
    }  # fmt: skip


async def test_cloudevents_in_binary_mode(rabbitmq_url, name, tap, way):
    await send(rabbitmq_url, make_record(topic=name, **RICH), cloudevents="/shop/orders")
    (message,) = await tap.drain(name)
    event = from_rabbitmq_event(
        RabbitMQMessage(dict(message.headers), message.content_type, message.body)
    )
    attributes = event.get_attributes()
    assert attributes["specversion"] == "1.0"
    assert (attributes["id"], attributes["type"]) == ("e-1", "order.created")
    assert attributes["source"] == "/shop/orders"
    assert attributes["time"] == datetime(2023, 11, 14, 22, 13, 20, 123_456, tzinfo=UTC)
    assert attributes["datacontenttype"] == "application/json"
    assert attributes["traceparent"] == PARENT
    assert event.get_data() == {"total": 10}
    assert message.body == b'{"total":  10}'
    assert message.headers["postroom-id"] == "e-1"  # ours are there, too
    assert message.message_id == "e-1"


@pytest.mark.req("S5.2")
async def test_from_an_outbox_to_a_queue(rabbitmq_url, name, tap, tmp_path):
    """The front door: an event, a URL, a message."""
    place = SqlitePlace(tmp_path / "app.db")
    await place.open()
    tap.owns(exchange=name)
    url = f"{rabbitmq_url}?exchange={name}&routing_key=type&declare=on&queue={name}&queue_type=classic"
    try:
        async with place.relay(url):
            await place.write(
                Event("order.created", {"n": 1}, key="order-1"),
                outbox=Outbox(routes={"order.*": "orders"}),
            )
            await until(place.all_done)
    finally:
        await place.close()
    (message,) = await tap.drain(name)
    assert (message.exchange, message.routing_key) == (name, "order.created")
    assert message.body == b'{"n":1}'
