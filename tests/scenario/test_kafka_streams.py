"""Two streams in one process: a dead RabbitMQ with a backlog stands in nobody's way (R5)."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from postroom.brokers.kafka import KafkaBroker
from postroom.brokers.rabbitmq import RabbitBroker
from postroom.event import Event
from postroom.lookup import Filter
from postroom.observer import BreakerChanged, Settled
from tests.scenario.kafka_place import copies, first_seen_by_key, make_topic, tap
from tests.scenario.place import until
from tests.scenario.postgres_place import PostgresPlace, own_schema
from tests.scenario.rabbit import Tap, fresh
from tests.scenario.rabbit import first_seen_by_key as first_seen_in_queue
from tests.servers.proxy import Proxy

PATIENCE = 90.0
BACKLOG = 2_000
KEYS = [f"order-{n}" for n in range(20)]


@pytest.fixture
async def place(postgres_url):
    with own_schema(postgres_url) as url:
        made = PostgresPlace(url)
        await made.open()
        yield made
        await made.close()


def events(count, **facts):
    return [
        Event("made", {"n": n}, id=f"{facts['stream']}/{n:04}", key=KEYS[n % len(KEYS)], **facts)
        for n in range(count)
    ]


def by_key(written):
    return {key: [e.id for e in written if e.key == key] for key in KEYS}


async def left(place, stream):
    counts = (await place.store.stats(stream)).counts
    return sum(number for state, number in counts.items() if state != "done")


@pytest.mark.req("S5.3")
@pytest.mark.promise("R5", "G2", "G4", "P2")
async def test_a_dead_rabbitmq_with_a_backlog_beside_kafka(kafka_url, rabbitmq_url, place, notes):
    topic, queue = make_topic(kafka_url), fresh("mail")
    mails = events(BACKLOG, stream="mail", topic=queue)
    await place.write(*mails)
    with Proxy(urlsplit(rabbitmq_url).port) as proxy:
        proxy.refuse()
        rabbit = RabbitBroker(
            proxy.url_for(rabbitmq_url), queue=queue, declare=True, single=False, connect_seconds=5
        )
        kafka = KafkaBroker(kafka_url)
        async with (
            place.relay(rabbit, stream="mail", observers=[notes]) as to_rabbit,
            place.relay(kafka, stream="orders", observers=[notes]) as to_kafka,
        ):
            await until(lambda: notes.of(BreakerChanged), PATIENCE)
            orders = events(1_000, stream="orders", topic=topic)
            for at in range(0, 1_000, 100):
                await place.write(*orders[at : at + 100])
            await until(lambda: to_kafka.counts.done == 1_000, PATIENCE)

            # All of that happened with every mail still in its place, and nobody charged.
            assert to_rabbit.counts.done == 0
            assert await left(place, "mail") == BACKLOG
            assert {(f.stream, f.state) for f in notes.of(BreakerChanged)} == {("mail", "open")}
            assert {f.stream for f in notes.of(Settled)} == {"orders"}

            proxy.accept()
            await until(lambda: to_rabbit.counts.done == BACKLOG, PATIENCE)
    seen = tap(kafka_url, topic)
    assert first_seen_by_key(seen) == by_key(orders)
    assert copies(seen) == {}
    async with Tap(rabbitmq_url) as mailbox:
        mailbox.owns(queue=queue)
        arrived = await mailbox.messages(queue, BACKLOG, PATIENCE)
    assert first_seen_in_queue(arrived) == by_key(mails)
    assert len(arrived) == BACKLOG
    found = await place.store.find(Filter(stream="mail", limit=BACKLOG))
    assert {(record.state, record.attempts) for record in found} == {("done", 0)}
