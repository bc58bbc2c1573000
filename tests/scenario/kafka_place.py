"""Topics to write to, an independent tap on them, and a Kafka with a proxy in front."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from dataclasses import dataclass

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from postroom.event import Event
from postroom.lookup import Filter
from postroom.testing.broker_tools import make_record
from tests.servers.kafka import Kafka
from tests.servers.process import wait_until
from tests.servers.proxy import Proxy

WITHIN_SECONDS = 30.0


def servers(url):
    return url.removeprefix("kafka://")


def make_topic(url, *, partitions=3, copies=1, name=None, **config):
    """Make a topic with a name of its own; settings have underscores for dots."""
    name = name or f"test-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": servers(url), "log_level": 0})
    settings = {key.replace("_", "."): str(value) for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, copies, config=settings)])[name].result(
        WITHIN_SECONDS
    )

    def is_there():  # the controller knows it first, the brokers a moment later
        described = admin.describe_topics(TopicCollection([name]))[name].result(WITHIN_SECONDS)
        return all(partition.leader for partition in described.partitions)

    wait_until(is_there, within=WITHIN_SECONDS, what=f"the topic {name}")
    return name


@dataclass(frozen=True)
class Seen:
    """A message as any consumer sees it."""

    topic: str
    partition: int
    offset: int
    key: str | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...]

    def header(self, name):
        found = [value.decode() for header, value in self.headers if header == name]
        return found[0] if found else None

    @property
    def id(self):
        return self.header("postroom-id")


def end_of_transactions(url, places):
    """Wait until none is under way: a commit is told before each partition has its marker."""
    admin = AdminClient({"bootstrap.servers": servers(url), "log_level": 0})

    def latest(isolation):
        asked = {TopicPartition(topic, n): OffsetSpec.latest() for topic, n in places}
        found = admin.list_offsets(asked, isolation_level=isolation)
        return {(p.topic, p.partition): f.result(WITHIN_SECONDS).offset for p, f in found.items()}

    wait_until(
        lambda: latest(IsolationLevel.READ_COMMITTED) == latest(IsolationLevel.READ_UNCOMMITTED),
        within=WITHIN_SECONDS, what="the end of all transactions",
    )  # fmt: skip


def tap(url, *topics, committed=False):
    """Read topics from their beginning to their end, with a consumer that knows nothing of us.

    The order is that of arrival within each partition.
    """
    isolation = "read_committed" if committed else "read_uncommitted"
    consumer = Consumer(
        {
            "bootstrap.servers": servers(url),
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "log_level": 0,
        }
    )
    seen, waiting = [], set()
    try:
        for topic in topics:
            known = consumer.list_topics(topic, timeout=WITHIN_SECONDS).topics[topic]
            waiting |= {(topic, number) for number in known.partitions}
        if committed:
            end_of_transactions(url, waiting)
        consumer.assign([TopicPartition(t, n, OFFSET_BEGINNING) for t, n in sorted(waiting)])
        deadline = time.monotonic() + WITHIN_SECONDS
        while waiting:
            assert time.monotonic() < deadline, f"the end of {waiting} was not reached"
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                if message.error().code() == -191:  # the end of a partition
                    waiting.discard((message.topic(), message.partition()))
                continue
            key = message.key()
            seen.append(
                Seen(
                    message.topic(),
                    message.partition(),
                    message.offset(),
                    None if key is None else key.decode(),
                    message.value() or b"",
                    tuple(message.headers() or ()),
                )
            )
    finally:
        consumer.close()
    return seen


def run(topic, n, keys=("k",), first=1, **facts):
    """Records of these keys in turn, for a broker without a relay."""
    return [make_record(first + i, key=keys[i % len(keys)], topic=topic, **facts) for i in range(n)]


def first_seen_by_key(messages):
    """Key → ids in the order in which they were first seen."""
    found = {}
    for message in messages:
        ids = found.setdefault(message.key, [])
        if message.id not in ids:
            ids.append(message.id)
    return found


def copies(messages):
    """Id → how often it is there, where that is more than once."""
    return {i: n for i, n in Counter(m.id for m in messages).items() if n > 1}


@contextlib.contextmanager
def kafka_behind_a_proxy():
    """One broker that clients reach through a proxy only."""
    server = Kafka()
    with Proxy(server.port) as proxy:
        server.advertise = proxy.port
        with server:
            yield server, proxy, f"kafka://127.0.0.1:{proxy.port}"


class Traffic:
    """Events of several keys in a store, and the check that all of them came through a fault."""

    def __init__(self, place, url, topic, keys=5):
        self.place, self.url, self.topic = place, url, topic
        self.keys = [f"order-{n}" for n in range(keys)]
        self.written = {key: [] for key in self.keys}

    async def write(self, each):
        """Write so many events of each key, the keys in turn."""
        events = []
        for _ in range(each):
            for key, ids in self.written.items():
                event_id = f"{key}/{len(ids)}"
                ids.append(event_id)
                events.append(
                    Event("order.changed", {"n": len(ids)}, id=event_id, key=key, topic=self.topic)
                )
        await self.place.write(*events)

    async def all_done(self):
        return await self.place.all_done()

    async def check(self, *, committed=False):
        """Nothing lost, nothing out of order within its key, no attempt spent; returns copies."""
        seen = await asyncio.to_thread(tap, self.url, self.topic, committed=committed)
        assert first_seen_by_key(seen) == self.written
        records = await self.place.store.find(Filter(limit=1_000))
        assert {r.id: (r.state, r.attempts) for r in records} == {
            event_id: ("done", 0) for ids in self.written.values() for event_id in ids
        }
        return copies(seen)
