"""How long an inbox remembers, on every store."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest

from postroom import transactions
from postroom.consumers import seen
from postroom.consumers.kafka import KafkaSource
from postroom.consumers.seen import forget_seen, warn_of_a_short_memory
from postroom.transaction import Mark
from tests.scenario.every_store import STORES, open_store
from tests.scenario.kafka_place import make_topic
from tests.scenario.place import until


@pytest.fixture(params=STORES)
async def store(request):
    async with open_store(request) as (_, store):
        yield store


async def accept(store, *ids):
    async with store.transaction() as tx:
        adapter = transactions.resolve(tx, store.tables.qualified)
        return [await adapter.accept(Mark("payments", each, "t", None)) for each in ids]


@pytest.mark.promise("I1")
async def test_what_was_done_long_ago_is_forgotten_step_by_step(store):
    assert await accept(store, "m-1", "m-2", "m-3") == [True, True, True]
    assert await forget_seen(store, 3_600) == 0
    assert await accept(store, "m-1") == [False]
    assert await forget_seen(store, -1, limit=2) == 2
    assert await forget_seen(store, -1, limit=2) == 1
    assert await accept(store, "m-1", "m-1") == [True, False]


@pytest.mark.promise("I1")
async def test_an_error_while_forgetting_does_not_end_the_consumer(monkeypatch):
    """Not even one of the driver's own, as when the connection is lost within the transaction."""
    monkeypatch.setattr(seen, "_EVERY_SECONDS", 0.0)
    told, tried = [], []

    async def lost(store, older_than_seconds):
        tried.append(store)
        raise ConnectionResetError("the server has gone")

    monkeypatch.setattr(seen, "forget_seen", lost)
    bench = SimpleNamespace(
        backlog=SimpleNamespace(store="store"), settings=SimpleNamespace(keep_seen_seconds=1),
        stream="inbox", tell=told.append,
    )  # fmt: skip
    forgetter = asyncio.create_task(seen.Forgetter(bench).loop())
    await until(lambda: len(tried) > 2)
    assert not forgetter.done()
    forgetter.cancel()
    assert told[0].doing == "forgetting old messages"
    assert "the server has gone" in told[0].error


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({}, 60_000),
        ({"session.timeout.ms": "90000"}, 90_000),
        ({"session.timeout.ms": 6_000}, 60_000),
        ({"max.poll.interval.ms": 10_000}, 10_000),
    ],
)
def test_a_group_waits_a_minute_for_a_ghost_and_no_longer(config, limit):
    source = KafkaSource("kafka://localhost", topic="t", group="g", config=config)
    assert source.options.client()["max.poll.interval.ms"] == limit


def test_a_memory_shorter_than_the_brokers_is_warned_of(caplog):
    caplog.set_level(logging.WARNING, "postroom.consumers.seen")
    assert not warn_of_a_short_memory("payments", 3_600, None)
    assert not warn_of_a_short_memory("payments", 3_600, 3_600)
    assert caplog.records == []
    assert warn_of_a_short_memory("payments", 3_600, 86_400)
    assert "Raise keep_seen_seconds" in caplog.text


async def test_kafka_says_how_long_it_can_deliver_again(kafka_url):
    topic = make_topic(kafka_url, retention_ms=3_600_000)
    source = KafkaSource(kafka_url, topic=topic, group="g")
    await source.open()
    await source.close()
    assert source.capabilities.redelivers_seconds == 3_600
