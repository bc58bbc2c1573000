"""Apache Kafka, with confluent-kafka."""

import time
import uuid
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.servers.kafka import new_cluster_id

WITHIN_SECONDS = 30.0


def servers(url: str) -> dict[str, Any]:
    """Give a URL as settings of a client."""
    return {"bootstrap.servers": url.removeprefix("kafka://"), "log_level": 0}


def make_topic(url: str, copies: int) -> str:
    """Make a topic of one partition with a name of its own."""
    topic = f"smoke-{uuid.uuid4().hex}"
    admin = AdminClient(servers(url))
    admin.create_topics([NewTopic(topic, 1, copies)])[topic].result(WITHIN_SECONDS)
    return topic


def produce(url: str, topic: str, values: list[bytes]) -> None:
    """Produce values; every one is confirmed by all copies."""
    failures: list[object] = []
    producer = Producer(servers(url) | {"enable.idempotence": True, "acks": "all"})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(WITHIN_SECONDS) == 0
    assert failures == [None] * len(values)


def consume(url: str, topic: str, count: int) -> list[bytes]:
    """Read this many values as a group of its own."""
    group = {"group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    consumer = Consumer(servers(url) | group)
    values: list[bytes] = []
    deadline = time.monotonic() + WITHIN_SECONDS
    try:
        consumer.subscribe([topic])
        while len(values) < count and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                values.append(message.value() or b"")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return values


def test_a_cluster_id_never_looks_like_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    made = iter([b"\xf8" + bytes(15), bytes(16)])
    monkeypatch.setattr("os.urandom", lambda _: next(made))
    assert new_cluster_id() == "A" * 22


def test_produce_and_consume(kafka_url: str) -> None:
    topic = make_topic(kafka_url, copies=1)
    values = [b"one", b"two", b"three"]
    produce(kafka_url, topic, values)
    assert consume(kafka_url, topic, len(values)) == values


def test_a_transaction(kafka_url: str) -> None:
    topic = make_topic(kafka_url, copies=1)
    producer = Producer(servers(kafka_url) | {"transactional.id": uuid.uuid4().hex})
    producer.init_transactions(WITHIN_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"aborted")
    producer.abort_transaction(WITHIN_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"committed")
    producer.commit_transaction(WITHIN_SECONDS)
    assert consume(kafka_url, topic, 1) == [b"committed"]


def test_three_brokers_keep_three_copies(kafka_cluster_url: str) -> None:
    topic = make_topic(kafka_cluster_url, copies=3)
    produce(kafka_cluster_url, topic, [b"safe"])
    assert consume(kafka_cluster_url, topic, 1) == [b"safe"]
    topics = AdminClient(servers(kafka_cluster_url)).list_topics(topic, timeout=WITHIN_SECONDS)
    assert len(topics.topics[topic].partitions[0].isrs) == 3


@pytest.mark.nightly
def test_a_restart_after_a_kill_keeps_what_was_confirmed(own_server: Any) -> None:
    server = own_server("kafka")
    topic = make_topic(server.url, copies=1)
    produce(server.url, topic, [b"kept"])
    server.restart()
    assert consume(server.url, topic, 1) == [b"kept"]
