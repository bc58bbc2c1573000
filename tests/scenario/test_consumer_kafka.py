"""A consumer group on Kafka: members come, go and die; handlers are slow; topics are not there."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack

import pytest
from confluent_kafka import Producer

from postroom import Handlers
from postroom.engine.consumer import Consumer
from postroom.errors import ConfigError
from postroom.sources.kafka.source import KafkaSource
from postroom.stores.memory import MemoryStore
from tests.contract.test_consumer_kafka import QUICK, KafkaWire
from tests.scenario.consumer_place import Ledger, consumer, orders
from tests.scenario.kafka_place import make_topic, servers
from tests.scenario.place import until
from tests.scenario.postgres_place import own_schema

KEYS = [f"k{n}" for n in range(12)]


@pytest.fixture
async def wire(kafka_url):
    return KafkaWire(kafka_url, partitions=6)


@pytest.fixture
async def ledger(postgres_url):
    with own_schema(postgres_url) as url:
        yield await Ledger(url).create()


def url_of(wire, **options):
    more = "".join(f"&{n}={v}" for n, v in {**QUICK, **options}.items())
    return f"{wire.url}?topic={wire.topic}&group={wire.group}{more}"


@pytest.mark.slow
@pytest.mark.promise("G2", "G4", "G6")
async def test_rebalances_lose_nothing_and_keep_the_order_of_keys(wire, ledger):
    enough = asyncio.Event()

    async def feed():
        rounds = 0
        while not enough.is_set():
            rounds += 1
            await wire.send(*orders(KEYS, 1, start=rounds))
            await asyncio.sleep(0.1)
        return rounds

    async with AsyncExitStack() as stack:

        async def join(members, *options):
            joined = await stack.enter_async_context(consumer(ledger, url_of(wire), *options))
            await until(lambda: len(processes(ledger)) == members, 60)
            return joined

        feeding = asyncio.create_task(feed())
        first = await join(1)
        second, third = await join(2, "--batch", "10"), await join(3, "--batch", "10")
        second.signal(9)
        assert await first.stop() == 0
        enough.set()
        rounds = await feeding
        await until(lambda: len(ledger.effects()) >= len(KEYS) * rounds, 60)
        assert await third.stop() == 0
    assert ledger.by_key() == {k: [f"{k}-{n}" for n in range(1, rounds + 1)] for k in KEYS}
    assert await wire.left() == 0


def processes(ledger):
    return {p for (p,) in ledger.run("SELECT DISTINCT process FROM effects")}


@pytest.mark.slow
async def test_a_slow_handler_costs_no_membership(wire):
    """The handler takes longer than max.poll.interval.ms, with the polls going on beside it."""
    handlers = Handlers(name="payments", transaction=False)
    seen = []

    @handlers.on("order.created")
    async def charge(event, tx):
        seen.append(event.id)
        if event.id == "a-1":
            await asyncio.sleep(8.0)

    await wire.send(*orders("ab", 2))
    source = KafkaSource(
        wire.url, topic=wire.topic, group=wire.group,
        config={**QUICK, "max.poll.interval.ms": 6_000},
    )  # fmt: skip
    async with Consumer(source, MemoryStore(), handlers) as running:
        await until(lambda: running.counts.done == 4, 30)
    assert sorted(seen) == ["a-1", "a-2", "b-1", "b-2"]  # nothing came again
    assert running.counts.lost == 0
    assert await wire.left() == 0


async def test_a_topic_that_is_not_there_is_waited_for(kafka_url, caplog):  # U8
    """One of two topics is missing: the other is read meanwhile."""
    there, missing = make_topic(kafka_url), f"missing-{uuid.uuid4().hex}"
    source = KafkaSource(kafka_url, topic=(there, missing), group=f"g-{missing}")
    await source.open()
    assert missing in source.connection.trouble
    with pytest.raises(ConnectionError, match="cannot be consumed"):
        await source.health()
    producer = Producer({"bootstrap.servers": servers(kafka_url), "log_level": 0})
    producer.produce(there, b"first")
    producer.flush(30)
    async with asyncio.timeout(60):
        (first,) = await source.receive()
    assert first.message.body == b"first"
    make_topic(kafka_url, name=missing)
    producer.produce(missing, b"second")
    producer.flush(30)
    async with asyncio.timeout(60):
        (second,) = await source.receive()
    assert (second.message.topic, second.message.body) == (missing, b"second")
    assert source.connection.trouble == ""
    await source.health()
    await source.close()
    told = [r.getMessage() for r in caplog.records if missing in r.getMessage()]
    assert [line.split(" ")[2] for line in told] == ["no", "the"]


async def test_a_cluster_that_is_away_is_waited_for(monkeypatch):
    monkeypatch.setattr("postroom.sources.kafka.source._ANSWER_SECONDS", 0.2)
    source = KafkaSource("kafka://127.0.0.1:1?topic=orders&group=g")
    await source.open()
    with pytest.raises(ConnectionError, match="does not answer"):
        await source.health()
    await source.close()
    await source.close()


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("topic=t", "group is missing"),
        ("group=g", "topic is missing"),
        ("topic=t&group=g&start=middle", "one of earliest, latest"),
        ("topic=t&group=g&enable.auto.commit=true", "cannot be set here"),
        ("topic=t&group=g&compression=snappy", "unknown option 'compression'"),
    ],
)
def test_options_that_make_no_sense(query, problem):
    with pytest.raises(ConfigError, match=problem):
        KafkaSource(f"kafka://localhost?{query}")


def test_secrets_are_not_shown():
    source = KafkaSource("kafka://me:hunter2@localhost?topic=t&group=g")
    assert "hunter2" not in repr(source)
    assert source.settings.config["sasl.password"] == "hunter2"
