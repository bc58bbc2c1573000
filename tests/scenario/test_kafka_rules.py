"""The rules for Kafka, one by one, on a real broker."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections import Counter

import pytest
from confluent_kafka.admin import AdminClient

from postroom.broker import Verdict
from postroom.brokers.kafka import KafkaBroker
from postroom.testing.broker_tools import RecordingReporter, make_record
from tests.scenario.kafka_place import make_topic, run, servers, tap
from tests.servers import programs

pytestmark = pytest.mark.server
PATIENCE = 90.0
# Java's compiler is part of Debian's runtime, too: it runs one file of source as it is.
PARTITIONER = """
import java.nio.charset.StandardCharsets;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

public class Partitions {
    public static void main(String[] args) {
        for (int i = 1; i < args.length; i++) {
            byte[] key = java.util.HexFormat.of().parseHex(args[i]);
            System.out.println(BuiltInPartitioner.partitionForKey(key, Integer.parseInt(args[0])));
        }
    }
}
"""


@pytest.fixture
async def make(request):
    """Make brokers that are closed at the end."""
    made = []

    async def make(url, **options):
        broker = KafkaBroker(url, **options)
        await broker.open()
        made.append(broker)
        return broker

    yield make
    for broker in made:
        await broker.close()


@pytest.fixture
def reporter():
    return RecordingReporter()


def topics_of(url):
    admin = AdminClient({"bootstrap.servers": servers(url), "log_level": 0})
    return set(admin.list_topics(timeout=PATIENCE).topics)


# -- K1 ---------------------------------------------------------------------------------------
@pytest.mark.req("S4.6")
@pytest.mark.promise("K1")
async def test_partitions_are_those_of_the_java_producer(kafka_url, make, reporter, tmp_path):
    topic = make_topic(kafka_url, partitions=7)
    keys = ["a", "order-1", "x" * 255, "ключ", "🦊", " ", "0", *(f"k{n}" for n in range(60))]
    broker = await make(kafka_url)
    await broker.publish(run(topic, len(keys), keys), reporter)
    seen = {m.key: m.partition for m in tap(kafka_url, topic)}

    source = tmp_path / "Partitions.java"
    source.write_text(PARTITIONER)
    words = [str(programs.program("java")), "-cp", f"{programs.kafka_jars()}/*", str(source), "7"]
    done = subprocess.run(
        [*words, *(key.encode().hex() for key in keys)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    by_java = dict(zip(keys, map(int, done.stdout.split()), strict=True))
    assert seen == by_java
    assert len(set(by_java.values())) == 7


@pytest.mark.req("S1.5")
@pytest.mark.promise("K7")
async def test_the_key_may_be_the_events_id(kafka_url, make, reporter):
    topic = make_topic(kafka_url, partitions=5)
    broker = await make(kafka_url, key="id")
    batch = run(topic, 40, ["order-1"])
    await broker.publish(batch, reporter)
    seen = tap(kafka_url, topic)
    assert {m.key for m in seen} == {r.id for r in batch}
    assert {m.header("postroom-key") for m in seen} == {"order-1"}
    assert len({m.partition for m in seen}) == 5  # and with that, no order of the aggregate


async def test_everything_can_go_to_one_topic(kafka_url, make, reporter):
    topic = make_topic(kafka_url)
    broker = await make(kafka_url, topic=topic)
    batch = [*run("orders", 3), *run("users", 3, first=4)]
    await broker.publish(batch, reporter)
    assert [reporter.verdict(r) for r in batch] == [Verdict.CONFIRMED] * 6
    assert [m.id for m in tap(kafka_url, topic)] == [r.id for r in batch]
    assert topics_of(kafka_url).isdisjoint({"orders", "users"})


@pytest.mark.req("S4.8")
@pytest.mark.parametrize("compression", ["snappy", "lz4", "zstd", "gzip", "none"])
async def test_compression(kafka_url, make, reporter, compression):
    # What fits only when compressed is a suspect in a batch; alone the broker decides.
    topic = make_topic(kafka_url, max_message_bytes=20_000)
    broker = await make(kafka_url, compression=compression)
    (record,) = run(topic, 1, payload=b"a" * 100_000)
    await broker.publish([record], reporter)
    assert reporter.verdict(record) is Verdict.UNKNOWN
    alone = RecordingReporter()
    await broker.publish_alone(record, alone)
    fits = compression != "none"
    assert alone.verdict(record) is (Verdict.CONFIRMED if fits else Verdict.REJECTED)
    assert [m.value for m in tap(kafka_url, topic)] == ([record.payload] if fits else [])


# -- K2 ---------------------------------------------------------------------------------------
@pytest.mark.promise("K2")
async def test_a_batch_never_outgrows_the_topic(kafka_url, make, reporter):
    topic = make_topic(kafka_url, partitions=1, max_message_bytes=20_000)
    broker = await make(kafka_url, linger_seconds=0.05)
    batch = [r._replace(payload=os.urandom(1_000)) for r in run(topic, 100, ["a", "b"])]
    await broker.publish(batch, reporter)
    assert [reporter.verdict(r) for r in batch] == [Verdict.CONFIRMED] * 100
    large = make_topic(kafka_url, partitions=1)  # another topic beside it: the smallest limit holds
    batch = [
        r._replace(payload=os.urandom(1_000), topic=[topic, large][r.seq % 2])
        for r in run(topic, 100, [f"k{n}" for n in range(100)], first=200)
    ]
    await broker.publish(batch, reporter)
    assert [reporter.verdict(r) for r in batch] == [Verdict.CONFIRMED] * 100


@pytest.mark.promise("K2", "G7")
async def test_what_may_be_too_large_is_a_suspect_and_stops_its_key_alone(
    kafka_url, make, reporter
):
    topic = make_topic(kafka_url, partitions=1, max_message_bytes=20_000)
    broker = await make(kafka_url)
    batch = run(topic, 9, ["a", "b", "c"])
    batch[3] = batch[3]._replace(payload=os.urandom(30_000))
    await broker.publish(batch, reporter)
    by_key = {k: [reporter.verdict(r) for r in batch if r.key == k] for k in "abc"}
    assert by_key == {
        "a": [Verdict.CONFIRMED, Verdict.UNKNOWN, Verdict.UNSENT],
        "b": [Verdict.CONFIRMED] * 3,
        "c": [Verdict.CONFIRMED] * 3,
    }
    assert "max.message.bytes is 20000" in reporter.outcome(batch[3]).error


# -- K3: a batch that the broker refuses ------------------------------------------------------
@pytest.mark.promise("K3", "G7")
async def test_a_refused_batch_makes_suspects_and_the_culprit_alone_is_rejected(
    kafka_url, make, reporter
):
    """A compacted topic takes no message without a key; here nobody can know that before."""
    topic = make_topic(kafka_url, partitions=1, cleanup_policy="compact")
    broker = await make(kafka_url, linger_seconds=0.05)
    batch = run(topic, 60, ["a", "b"])
    culprit = batch[31] = make_record(32, topic=topic)
    await broker.publish(batch, reporter)
    assert reporter.verdict(culprit) is Verdict.UNKNOWN
    suspects = [r for r in batch if reporter.verdict(r) is not Verdict.CONFIRMED]
    for record in suspects:
        assert reporter.verdict(record) in (Verdict.UNKNOWN, Verdict.UNSENT)

    alone = RecordingReporter()
    for record in suspects:  # in the order they were written, as the relay does it
        await broker.publish_alone(record, alone)
    assert alone.verdict(culprit) is Verdict.REJECTED
    assert alone.outcome(culprit).error
    innocent = [r for r in suspects if r is not culprit]
    assert [alone.verdict(r) for r in innocent] == [Verdict.CONFIRMED] * len(innocent)
    seen = [m.id for m in tap(kafka_url, topic)]
    assert Counter(seen) == {r.id: 1 for r in batch if r is not culprit}
    for key in "ab":
        ids = [r.id for r in batch if r.key == key]
        assert [i for i in seen if i in ids] == ids


@pytest.mark.promise("K1", "K3")
async def test_nothing_passes_a_refused_message_within_its_partition(kafka_url, make, reporter):
    topic = make_topic(kafka_url, partitions=1, cleanup_policy="compact")
    broker = await make(kafka_url, linger_seconds=0, batch_bytes=1)  # one message a batch
    batch = run(topic, 400, ["a", "b", "c"])
    batch[100] = make_record(101, topic=topic)
    await broker.publish(batch, reporter)
    assert [m.id for m in tap(kafka_url, topic)] == [r.id for r in batch[:100]]
    assert [reporter.verdict(r) for r in batch[:100]] == [Verdict.CONFIRMED] * 100
    assert {reporter.verdict(r) for r in batch[100:]} <= {Verdict.UNKNOWN, Verdict.UNSENT}
    # The producer is of no use any more; the next call has another.
    after = run(topic, 50, ["a"], first=500)
    await broker.publish(after, reporter)
    assert [reporter.verdict(r) for r in after] == [Verdict.CONFIRMED] * 50


# -- K4 ---------------------------------------------------------------------------------------
@pytest.mark.promise("K4")
async def test_headers_arrive_and_each_report_finds_its_record(kafka_url, make, reporter):
    topic = make_topic(kafka_url)
    broker = await make(kafka_url)
    (full,) = run(
        topic, 1, ["order-1"], aggregate_type="order", aggregate_id="o1", correlation_id="c1",
        causation_json='[["shop","order.placed"]]', schema_version=3, kseq=7,
        headers_json=json.dumps({"traceparent": "00-ab-cd-01", "имя": "значение"}),
    )  # fmt: skip
    same = run(topic, 20, ["order-1"], first=2, payload=b"the same")  # only the index tells them
    await broker.publish([full, *same], reporter)
    assert [r.id for r, _ in reporter.reports] == [full.id, *(r.id for r in same)]
    seen = {m.id: m for m in tap(kafka_url, topic)}
    assert [(name, value.decode()) for name, value in seen[full.id].headers] == [
        ("postroom-id", "event-1"),
        ("postroom-type", "order.created"),
        ("content-type", "application/json"),
        ("postroom-schema-version", "3"),
        ("postroom-occurred-at", "2023-11-14T22:13:20+00:00"),
        ("postroom-key", "order-1"),
        ("postroom-aggregate-type", "order"),
        ("postroom-aggregate-id", "o1"),
        ("postroom-correlation-id", "c1"),
        ("postroom-causation-path", '[["shop","order.placed"]]'),
        ("postroom-kseq", "7"),
        ("postroom-outbox", "the-outbox"),
        ("traceparent", "00-ab-cd-01"),
        ("имя", "значение"),
    ]


@pytest.mark.promise("K4", "G2")
async def test_a_report_is_told_by_its_place_and_not_by_its_turn(kafka_url, make, reporter):
    plain = make_topic(kafka_url, partitions=1)
    keyed = make_topic(kafka_url, partitions=1, cleanup_policy="compact")  # takes none without
    broker = await make(kafka_url, linger_seconds=0.05)
    first, last = make_record(1, topic=keyed), make_record(52, topic=keyed)
    await broker.publish([first, *run(plain, 50, ["a", "b"], first=2), last], reporter)
    assert [reporter.verdict(first), reporter.verdict(last)] == [Verdict.UNKNOWN] * 2
    assert tap(kafka_url, keyed) == []
    confirmed = reporter.ids(Verdict.CONFIRMED)
    assert confirmed == [m.id for m in tap(kafka_url, plain)][: len(confirmed)]


@pytest.mark.req("S1.5", "S4.6")
async def test_kcat_reads_key_headers_and_value(kafka_url, make, reporter):
    """A reader that was not written here, in another language."""
    topic = make_topic(kafka_url, partitions=1)
    broker = await make(kafka_url)
    body = json.dumps({"name": "Ružica"}, ensure_ascii=False).encode()
    await broker.publish(run(topic, 1, ["order-1"], payload=body), reporter)
    done = subprocess.run(
        [str(programs.program("kcat")), "-C", "-b", servers(kafka_url), "-t", topic, "-e", "-q",
         "-o", "beginning", "-f", "%k\n%h\n%s\n"],
        capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    key, headers, value = done.stdout.decode().splitlines()
    assert key == "order-1"
    assert headers.split(",") == [
        "postroom-id=event-1",
        "postroom-type=order.created",
        "content-type=application/json",
        "postroom-schema-version=1",
        "postroom-occurred-at=2023-11-14T22:13:20+00:00",
        "postroom-key=order-1",
    ]
    assert json.loads(value) == {"name": "Ružica"}


async def test_cloudevents_in_binary_mode(kafka_url, make, reporter):
    from cloudevents.core.bindings.kafka import KafkaMessage, from_binary_event

    topic = make_topic(kafka_url)
    broker = await make(kafka_url, cloudevents="/shop/orders")
    (record,) = run(topic, 1, ["order-1"], aggregate_id="o1", payload=b'{"total": 10}')
    await broker.publish([record], reporter)
    (message,) = tap(kafka_url, topic)
    event = from_binary_event(KafkaMessage(dict(message.headers), message.key, message.value))
    assert (event.get_id(), event.get_source(), event.get_type(), event.get_subject()) == (
        "event-1", "/shop/orders", "order.created", "o1",
    )  # fmt: skip
    assert event.get_time().isoformat() == "2023-11-14T22:13:20+00:00"
    assert event.get_datacontenttype() == "application/json"
    assert event.get_data() == {"total": 10}
    assert event.get_extension("partitionkey") == "order-1"
    assert message.id == "event-1"  # ours are there, too
    assert message.value == record.payload


# -- K5 ---------------------------------------------------------------------------------------
@pytest.mark.promise("K5", "P2")
async def test_an_unknown_topic_is_told_at_once_and_holds_only_its_own_keys(
    kafka_url, make, reporter
):
    there = make_topic(kafka_url)
    missing = f"{there}-missing"
    broker = await make(kafka_url, publish_seconds=120)
    batch = [
        make_record(1, key="a", topic=there),
        make_record(2, key="a", topic=missing),
        make_record(3, key="a", topic=there),
        make_record(4, key="b", topic=there),
        make_record(5, key="c", topic=missing),
    ]
    async with asyncio.timeout(15):  # produce() would say nothing for half a minute
        await broker.publish(batch, reporter)
    assert [reporter.verdict(r) for r in batch] == [
        Verdict.CONFIRMED, Verdict.MISCONFIGURED, Verdict.UNSENT, Verdict.CONFIRMED,
        Verdict.MISCONFIGURED,
    ]  # fmt: skip
    assert missing in reporter.outcome(batch[1]).error
    alone = RecordingReporter()
    await broker.publish_alone(batch[4], alone)
    assert alone.verdict(batch[4]) is Verdict.MISCONFIGURED
    assert {m.id for m in tap(kafka_url, there)} == {"event-1", "event-4"}
    assert missing not in topics_of(kafka_url)  # to ask for a topic must not create it


@pytest.mark.promise("K5")
async def test_a_topic_is_created_when_that_is_configured(kafka_url, make, reporter):
    topic = f"{make_topic(kafka_url)}-new"
    broker = await make(kafka_url, create_topics=True, partitions=4, replication=1)
    batch = run(topic, 50, [f"k{n}" for n in range(50)])
    await broker.publish(batch, reporter)
    assert [reporter.verdict(r) for r in batch] == [Verdict.CONFIRMED] * 50
    assert {m.partition for m in tap(kafka_url, topic)} == {0, 1, 2, 3}


async def test_a_name_that_no_topic_can_have(kafka_url, make, reporter):
    broker = await make(kafka_url, create_topics=True)
    (record,) = run("no such/topic", 1)
    await broker.publish([record], reporter)
    assert reporter.verdict(record) is Verdict.MISCONFIGURED


@pytest.mark.promise("G4")
async def test_a_key_that_goes_on_in_another_topic_waits_for_what_was_before(
    kafka_url, make, reporter
):
    first, second = make_topic(kafka_url), make_topic(kafka_url)
    broker = await make(kafka_url)
    topics = [first, first, second, first, second, second]
    batch = [make_record(i, key="a", topic=t) for i, t in enumerate(topics)]
    others = run(second, 20, ["b"], first=100)
    await broker.publish([*batch, *others], reporter)
    assert {reporter.verdict(r) for r in [*batch, *others]} == {Verdict.CONFIRMED}
    told = [r.id for r, _ in reporter.reports]
    assert [i for i in told if i in {r.id for r in batch}] == [r.id for r in batch]
