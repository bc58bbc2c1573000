"""Tombstones, partitions and partition keys on a real Kafka."""

from __future__ import annotations

import sqlite3
import subprocess

import pytest

from postroom import SyncOutbox, migrate
from postroom.broker import Verdict
from postroom.brokers.kafka import KafkaBroker
from postroom.event import Event
from postroom.stores.sqlite import SqliteStore
from postroom.testing.broker_tools import RecordingReporter, make_record
from tests.scenario.kafka_place import make_topic, servers, tap
from tests.servers import programs

pytestmark = pytest.mark.server


@pytest.fixture
async def records(tmp_path):
    """Write events with an outbox, and read them as a relay does."""
    url = f"sqlite:///{tmp_path}/outbox.db"
    await migrate(url)
    store = SqliteStore(url)
    await store.open()

    async def written(*events):
        with sqlite3.connect(tmp_path / "outbox.db") as conn:
            SyncOutbox().add_many(conn, events)
        conn.close()
        return [await store.get(event.id) for event in events]

    yield written
    await store.close()


async def sent(url, batch, **options):
    reporter, broker = RecordingReporter(), KafkaBroker(url, **options)
    await broker.open()
    try:
        await broker.publish(batch, reporter)
    finally:
        await broker.close()
    return reporter


def kcat(url, topic):
    words = [programs.program("kcat"), "-C", "-e", "-q", "-b", servers(url), "-t", topic, "-Z"]
    done = subprocess.run(
        [*map(str, words), "-f", "%p|%k|%S|%s\n"], capture_output=True, timeout=60, check=True
    )
    return sorted(done.stdout.decode().splitlines())


@pytest.mark.parametrize("delivery", ["idempotent", "transactional"])
async def test_kcat_sees_null_and_the_named_partitions(kafka_url, records, delivery):
    topic = make_topic(kafka_url, partitions=3)
    batch = await records(
        Event("t", key="a", topic=topic, partition=2),
        Event("t", key="a", topic=topic, partition=2, tombstone=True),
        Event("t", b"", key="b", topic=topic, partition=0),
        Event("t", {"n": 1}, key="c", topic=topic, partition=1),
    )
    reporter = await sent(kafka_url, batch, delivery=delivery)
    assert len(reporter.ids(Verdict.CONFIRMED)) == 4
    assert kcat(kafka_url, topic) == ["0|b|0|NULL", '1|c|7|{"n":1}', "2|a|-1|NULL", "2|a|4|null"]


@pytest.mark.parametrize("partitioner", ["murmur2_random", "consistent_random", "fnv1a_random"])
async def test_a_partition_key_chooses_as_a_key_does(kafka_url, records, partitioner):
    topic = make_topic(kafka_url, partitions=7)
    names = ["a", "order-1", "x" * 255, "ключ", "🦊", " ", *(f"k{n}" for n in range(40))]
    batch = await records(
        *(Event("t", {"by": name}, key=name, topic=topic) for name in names),
        *(Event("t", {"by": name}, key=f"m-{name}"[:255], topic=topic, partition_key=name)
          for name in names),
    )  # fmt: skip
    await sent(kafka_url, batch, config={"partitioner": partitioner})
    seen = {}
    for message in tap(kafka_url, topic):
        seen.setdefault(message.value, []).append(message.partition)
    assert len(seen) == len(names)
    assert all(len(found) == 2 and len(set(found)) == 1 for found in seen.values()), seen


async def test_a_partition_that_is_missing_costs_one_key(kafka_url):
    topic = make_topic(kafka_url, partitions=2)
    before, wrong, behind, other = (
        make_record(n, key=key, topic=topic, options_json=options)
        for n, (key, options) in enumerate(
            [("k", None), ("k", '{"partition":2}'), ("k", None), ("x", '{"partition":1}')], 1
        )
    )
    reporter = await sent(kafka_url, [before, wrong, behind, other])
    assert set(reporter.ids(Verdict.CONFIRMED)) == {before.id, other.id}
    assert reporter.verdict(wrong) is Verdict.MISCONFIGURED
    assert "has 2 partitions: add partitions" in reporter.outcome(wrong).error
    assert reporter.verdict(behind) is Verdict.UNSENT


async def test_a_key_that_changes_its_partition_waits_for_the_confirm(kafka_url):
    """A later event in another partition is not sent while an earlier one is unconfirmed."""
    topic = make_topic(kafka_url, partitions=2, max_message_bytes=2_000)
    large = make_record(
        1, key="k", topic=topic, payload=bytes(range(256)) * 40, options_json='{"partition":0}'
    )
    later = make_record(2, key="k", topic=topic, options_json='{"partition":1}')
    reporter = RecordingReporter()
    broker = KafkaBroker(kafka_url, compression="none")
    await broker.open()
    broker._refusal = lambda *_: None  # the topic's limit is not known in advance
    try:
        await broker.publish([large, later], reporter)
    finally:
        await broker.close()
    assert reporter.ids(Verdict.CONFIRMED) == []
    assert tap(kafka_url, topic) == []
