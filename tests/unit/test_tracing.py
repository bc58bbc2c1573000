"""Traces: stored at add, linked at send and at handling, and nothing without an SDK."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from postroom.brokers import MemoryBroker
from postroom.engine.handlers.handlers import Handlers
from postroom.engine.relay.relay import Relay
from postroom.event import Event
from postroom.model import add_hooks
from postroom.observer import Sent
from postroom.outbox import Outbox
from postroom.stores.memory import MemoryStore
from postroom.telemetry import tracing
from postroom.testing.broker_tools import make_record


@pytest.fixture
def spans(monkeypatch):
    """An SDK that keeps spans in memory, for this test only."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    tracing.install()
    tracing.install()  # twice is once
    yield exporter.get_finished_spans
    tracing.uninstall()
    provider.shutdown()


def by_name(spans):
    return {span.name: span for span in spans()}


async def test_the_context_goes_from_add_to_the_wire_and_is_linked(spans):
    store, broker = MemoryStore(), MemoryBroker()
    with trace.get_tracer("app").start_as_current_span("checkout") as checkout:
        async with store.begin() as tx:
            await Outbox().add(
                tx, Event("order.created", id="a", topic="orders", headers={"x": "y"})
            )
    await Relay(store, broker, observers=[tracing.TracingObserver("kafka")]).drain()
    (message,) = broker.messages
    ids = checkout.get_span_context()
    assert dict(message.record.headers) == {
        "x": "y",
        "traceparent": f"00-{ids.trace_id:032x}-{ids.span_id:016x}-{ids.trace_flags:02x}",
    }
    send = by_name(spans)["send orders"]
    assert send.kind is trace.SpanKind.PRODUCER
    assert [link.context.span_id for link in send.links] == [ids.span_id]
    assert dict(send.attributes) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.batch.message_count": 1,
        "messaging.message.id": "a",
    }


async def test_a_handler_works_in_a_linked_span_and_hands_the_trace_on(spans):
    store, handlers = MemoryStore(), Handlers()

    @handlers.on("order.created")
    @tracing.traced
    async def charge(event, tx):
        await Outbox().add(tx, Event("order.charged", id="b"))

    handlers.on("order.charged")(_nothing)
    with trace.get_tracer("app").start_as_current_span("checkout") as checkout:
        async with store.begin() as tx:
            await Outbox().add(tx, Event("order.created", id="a"))
    await Relay(store, handlers).drain()
    process = by_name(spans)["process order.created"]
    assert process.kind is trace.SpanKind.CONSUMER
    assert [link.context.span_id for link in process.links] == [checkout.get_span_context().span_id]
    after = await store.get("b")
    assert f"{process.context.span_id:016x}" in after.headers["traceparent"]


async def _nothing(event, tx):
    pass


def test_a_sync_handler_and_its_error(spans):
    @tracing.traced
    def handler(event, tx):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        handler(make_record(id="e", headers_json='{"traceparent": "nonsense"}'), None)
    span = by_name(spans)["process order.created"]
    assert span.links == ()
    assert span.status.status_code is trace.StatusCode.ERROR
    assert handler.__name__ == "handler"


def test_one_span_for_each_topic_of_a_batch_with_bounded_links(spans):
    parent = '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}'
    records = [make_record(n, topic="a", headers_json=parent) for n in range(200)]
    records.append(make_record(999, topic="b"))
    tracing.TracingObserver("amqp").observe(Sent("main", records, 0.5))
    found = by_name(spans)
    assert set(found) == {"send a", "send b"}
    assert len(found["send a"].links) == 128
    assert found["send a"].attributes["messaging.batch.message_count"] == 200
    assert found["send a"].attributes["messaging.system"] == "rabbitmq"
    assert found["send a"].end_time - found["send a"].start_time == 500_000_000


def test_what_has_a_context_keeps_it_and_without_a_span_there_is_none(spans):
    bare = Event("e", id="a")
    assert tracing.carry(bare) is bare
    own = Event("e", id="a", headers={"traceparent": "mine"})
    with trace.get_tracer("app").start_as_current_span("x"):
        assert tracing.carry(own) is own


def test_without_an_sdk_nothing_is_made(monkeypatch):
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    assert add_hooks.hooks == []
    assert not tracing.has_sdk()
    observer = tracing.TracingObserver()
    monkeypatch.setattr(observer, "_tracer", None)  # would raise if it were used
    observer.observe(Sent("main", [make_record(1)], 0.1))
    assert tracing.traced(lambda event, tx: event.id)(make_record(1, id="e"), None) == "e"
