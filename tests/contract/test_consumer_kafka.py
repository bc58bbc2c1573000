"""Kafka keeps the contract of sources, on the real server."""

import asyncio
import uuid

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from postroom.sources.kafka.source import KafkaSource
from postroom.testing.consumer import ConsumerContract, ConsumerWire
from tests.scenario.kafka_place import make_topic, servers

# Short, so that a member that was killed is not waited for; the server allows no less than 6 s.
QUICK = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}


class KafkaWire(ConsumerWire):
    """A topic and a group of its own, filled by a plain producer."""

    def __init__(self, url, *, partitions=2):
        self.url = url
        self.topic = make_topic(url, partitions=partitions)
        self.partitions = partitions
        self.group = f"group-{uuid.uuid4().hex[:12]}"
        self.producer = Producer({"bootstrap.servers": servers(url), "log_level": 0})

    async def send(self, *messages):
        for sent in messages:
            headers = dict(sent.headers)
            if sent.id is not None:
                headers["postroom-id"] = sent.id
            if sent.type is not None:
                headers["postroom-type"] = sent.type
            self.producer.produce(
                self.topic, sent.body, sent.key, headers=list(headers.items()),
                on_delivery=lambda error, _: error and pytest.fail(str(error)),
            )  # fmt: skip
        assert await asyncio.to_thread(self.producer.flush, 30) == 0

    def source(self):
        return KafkaSource(self.url, topic=self.topic, group=self.group, config=QUICK)

    async def unacknowledged(self):
        return await asyncio.to_thread(self._lag)

    async def left(self):
        return await self.unacknowledged()

    def _lag(self):
        look = Consumer(
            {"bootstrap.servers": servers(self.url), "group.id": self.group, "log_level": 0}
        )
        try:
            places = [TopicPartition(self.topic, n) for n in range(self.partitions)]
            lag = 0
            for place in look.committed(places, timeout=30):
                low, high = look.get_watermark_offsets(place, timeout=30)
                lag += high - (place.offset if place.offset >= 0 else low)
            return lag
        finally:
            look.close()


class TestKafka(ConsumerContract):
    @pytest.fixture
    async def wire(self, kafka_url):
        return KafkaWire(kafka_url)
