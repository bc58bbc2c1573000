"""Consumers of real brokers: one message that hangs, or one key that fails, stops no other key."""

from __future__ import annotations

import threading

import pytest

from postroom import Consumer, Handlers, Retry
from postroom.retry import Constant, RetryPolicy
from postroom.stores.memory import MemoryStore
from postroom.stores.postgres import PostgresStore
from postroom.testing.consumer import Sent
from tests.contract.test_consumer_kafka import KafkaWire
from tests.contract.test_consumer_rabbitmq import RabbitWire, Sender
from tests.scenario.place import until
from tests.scenario.postgres_place import own_schema
from tests.scenario.rabbit import fresh

PATIENCE = 90.0
ROOM = 20
OTHERS = [f"k{n}-1" for n in range(10)]


@pytest.fixture(params=["kafka", "rabbitmq"])
async def wire(request):
    url = request.getfixturevalue(f"{request.param}_url")
    if request.param == "kafka":
        yield KafkaWire(url, partitions=3)
        return
    async with Sender(url) as sender:
        queue = fresh("stalls")
        await sender.queue(queue, **{"x-single-active-consumer": True})
        yield RabbitWire(url, sender, queue, prefetch=ROOM)


def sent(*names):
    """Messages whose keys are the first parts of their names."""
    return [Sent(name, b"{}", key=name.partition("-")[0]) for name in names]


@pytest.mark.promise("G7", "H3")
async def test_a_handler_that_hangs_is_not_started_beside_itself(wire, postgres_url):  # R-C4
    """The note of its first run is locked: each further run would take a thread, and wait for it."""
    handlers = Handlers(name="payments", concurrency=2, time_limit_seconds=3.0)
    release, runs, done = threading.Event(), [], []

    @handlers.on("order.created")
    def charge(event, tx):
        if event.id == "bad-1":
            runs.append(event.id)
            release.wait(PATIENCE)
        done.append(event.id)

    with own_schema(postgres_url) as url:
        store = PostgresStore(url)
        await store.migrate()
        retry = RetryPolicy(3, Constant(0.01))
        try:
            async with Consumer(wire.source(), store, handlers, retry=retry) as consumer:
                await wire.send(*sent("bad-1", *OTHERS))
                await until(lambda: set(done) == set(OTHERS), PATIENCE)
                await until(lambda: consumer.counts.dead == 1, PATIENCE)
                await wire.send(*sent("bad-2", "late-1"))
                await until(lambda: set(done) >= {"bad-2", "late-1"}, PATIENCE)
                assert (runs, "bad-1" in done) == (["bad-1"], False)
                release.set()
        finally:
            release.set()
            await store.close()


@pytest.mark.promise("G4", "G7")
async def test_a_key_that_fails_with_many_messages_behind_it_stops_no_other_key(wire):  # R-C5
    handlers, done, broken = Handlers(name="payments"), [], [True]
    bad = [f"bad-{n}" for n in range(ROOM + 5)]

    @handlers.on("order.created")
    async def charge(event, tx):
        if event.id == "bad-0" and broken:
            raise Retry("not now", after=1.0)
        done.append(event.id)

    retry = RetryPolicy(backoff=Constant(0.05), on_exhausted="block")
    options = {"retry": retry, "max_in_flight": ROOM}
    async with Consumer(wire.source(), MemoryStore(), handlers, **options) as consumer:
        await wire.send(*sent(*bad))
        await until(lambda: consumer.counts.received >= ROOM, PATIENCE)  # there is no room for more
        await wire.send(*sent(*OTHERS))
        await until(lambda: set(done) == set(OTHERS), PATIENCE)
        broken.clear()
        await until(lambda: len(done) == len(OTHERS) + len(bad), PATIENCE)
    assert [name for name in done if name.startswith("bad")] == bad
    assert await wire.left() == 0
