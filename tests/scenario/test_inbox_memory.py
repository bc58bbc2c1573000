"""How long an inbox remembers, on every store."""

from __future__ import annotations

import logging

import pytest

from postroom import transactions
from postroom.consumers.backlog import tables_of
from postroom.consumers.kafka import KafkaSource
from postroom.consumers.seen import forget_seen, warn_of_a_short_memory
from postroom.transaction import Mark
from tests.scenario.every_store import STORES, open_store
from tests.scenario.kafka_place import make_topic


@pytest.fixture(params=STORES)
async def store(request):
    async with open_store(request) as (_, store):
        yield store


async def accept(store, *ids):
    async with store.transaction() as tx:
        adapter = transactions.resolve(tx, tables_of(store))
        return [await adapter.accept(Mark("payments", each, "t", None)) for each in ids]


@pytest.mark.promise("I1")
async def test_what_was_done_long_ago_is_forgotten_step_by_step(store):
    assert await accept(store, "m-1", "m-2", "m-3") == [True, True, True]
    assert await forget_seen(store, 3_600) == 0
    assert await accept(store, "m-1") == [False]
    assert await forget_seen(store, -1, limit=2) == 2
    assert await forget_seen(store, -1, limit=2) == 1
    assert await accept(store, "m-1", "m-1") == [True, False]


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
