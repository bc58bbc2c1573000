"""Metrics of consumers: their own counts, and what becomes of stored messages."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from prometheus_client import CollectorRegistry, generate_latest

from postroom.engine.consumer import Consumer
from postroom.engine.handlers.handlers import Handlers
from postroom.errors import Reject
from postroom.observer import Delivered, Handled, Settled
from postroom.stores.memory import MemoryStore
from postroom.telemetry.consumer_metrics import ConsumerMetrics, _in_flight
from postroom.telemetry.metric_names import MESSAGE_COUNTERS
from postroom.telemetry.metrics import RelayMetrics
from postroom.telemetry.sampler import Sampler
from postroom.testing.broker_tools import make_record


def read(*collectors):
    """Return the value of every line that is served."""
    registry = CollectorRegistry()
    for collector in collectors:
        collector.register(registry)
    lines = generate_latest(registry).decode().splitlines()
    return {
        name: float(number)
        for name, _, number in (li.rpartition(" ") for li in lines if li[0] != "#")
    }


def make(store=None):
    handlers = Handlers(name="payments")

    @handlers.on("bad")
    async def bad(event, tx):
        raise Reject("no")

    return Consumer("memory:", store or MemoryStore(), handlers)


def of(found, name):
    return found[f'postroom_messages_{name}_total{{consumer="payments"}}']


def test_counts_of_a_consumer_and_of_its_backlog_are_added_up():
    consumer = make()
    metrics = ConsumerMetrics()
    metrics.watch(consumer)
    counts = consumer.counts
    counts.received, counts.done, counts.repeats, counts.stored = 20, 7, 2, 5
    counts.failed, counts.dead, counts.ignored, counts.lost, counts.hashed_ids = 4, 3, 2, 1, 6
    counts.batched, counts.split = 9, 8
    metrics.observe(Handled("inbox.payments", "t", "confirmed", 0.02))
    metrics.observe(Handled("inbox.payments", "t", "failed", 3.0))
    metrics.observe(Delivered("inbox.payments", [make_record(n) for n in range(3)], 0.01))
    metrics.observe(Settled("inbox.payments", 3, 1, 2, 0, 0))
    found = read(metrics)
    expected = {
        "received": 20, "handled": 7 - 2 + 3, "repeated": 2, "stored": 5, "failed": 5, "dead": 5,
        "ignored": 2, "lost": 1, "hashed_ids": 6, "batched": 9, "split": 8,
    }  # fmt: skip
    assert {f"postroom_messages_{name}" for name in expected} == {
        name for name in MESSAGE_COUNTERS if not name.startswith("postroom_consumer_")
    }
    for name, number in expected.items():
        assert of(found, name) == number, name
    assert found['postroom_handling_seconds_count{consumer="payments"}'] == 2
    assert found['postroom_handling_seconds_bucket{consumer="payments",le="0.025"}'] == 1
    assert found['postroom_consumer_up{consumer="payments"}'] == 0
    assert found['postroom_messages_in_flight{consumer="payments"}'] == 0


def test_facts_of_other_streams_are_not_a_consumers():
    metrics = ConsumerMetrics()
    metrics.watch(make())
    before = read(metrics)
    metrics.observe(Delivered("main", [make_record(1)], 0.01))
    metrics.observe(Settled("main", 1, 1, 1, 0, 0))
    metrics.observe(Handled("inbox.other", "t", "confirmed", 1.0))
    assert read(metrics) == before


async def test_the_backlog_is_seen_among_the_streams_of_the_store():
    consumer = make()
    sampler = Sampler([], every_seconds=0.01, consumers=[consumer])
    relays = RelayMetrics(sampler)
    received = ConsumerMetrics(relays)
    received.watch(consumer)
    sampler.start()
    async with consumer:
        async with asyncio.timeout(10):
            while "inbox.payments" not in sampler.samples:
                await asyncio.sleep(0.005)
        found = read(relays, received)
        assert found['postroom_consumer_up{consumer="payments"}'] == 1
        assert found['postroom_events{state="dead",stream="inbox.payments"}'] == 0
        assert found['postroom_store_up{stream="inbox.payments"}'] == 1
        place = 'destination="handlers",stream="inbox.payments"'
        assert found[f"postroom_events_dead_total{{{place}}}"] == 0
    await sampler.stop()


async def test_a_broker_that_refuses_acknowledgements_is_shown():
    consumer = make()
    metrics = ConsumerMetrics()
    metrics.watch(consumer)
    connection = consumer.source.connection
    assert [connection.refused("not authorized") for _ in range(3)] == [True, False, False]
    found = read(metrics)
    assert found['postroom_consumer_acknowledgements_refused_total{consumer="payments"}'] == 3
    assert connection.refusal == "not authorized"
    assert [connection.accepted(), connection.accepted()] == [True, False]
    assert connection.refusal == ""


async def test_a_broker_that_cannot_be_reached_is_shown():
    """R-D1: it said up, and nothing else."""
    consumer = make()
    metrics = ConsumerMetrics()
    metrics.watch(consumer)

    def shown():
        found = read(metrics)
        labels = '{consumer="payments"}'
        return (
            found[f"postroom_consumer_up{labels}"],
            found[f"postroom_consumer_connected{labels}"],
            found[f"postroom_consumer_connections_lost_total{labels}"],
        )

    assert shown() == (0, 0, 0)
    async with consumer:
        assert shown() == (1, 1, 0)
        consumer.source.connection.lost("connection refused")
        consumer.source.connection.lost("still refused")
        assert shown() == (1, 0, 1)
        consumer.source.connection.restored()
        assert shown() == (1, 1, 1)
    assert shown() == (0, 0, 1)


def test_messages_in_hand_are_those_of_the_backlog_too():
    vitals = SimpleNamespace(in_flight=3)
    for relay, expected in (
        (None, 2), (SimpleNamespace(vitals=None), 2), (SimpleNamespace(vitals=vitals), 5),
    ):  # fmt: skip
        consumer = SimpleNamespace(in_flight=2, backlog_relay=relay)
        assert _in_flight(consumer) == expected
