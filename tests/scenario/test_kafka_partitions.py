"""A partition in trouble while the cluster is well: it stalls no other, and nobody is charged."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from postroom.broker import Verdict
from postroom.brokers.kafka import KafkaBroker
from postroom.event import Event
from postroom.observer import BreakerChanged
from postroom.testing.broker_tools import RecordingReporter, make_record
from tests.scenario.kafka_place import Traffic, first_seen_by_key, make_topic, servers, tap
from tests.scenario.place import SqlitePlace, until
from tests.servers.kafka import KafkaCluster

pytestmark = [pytest.mark.slow, pytest.mark.server]
PATIENCE = 90.0


@pytest.fixture
async def broker(kafka_url):
    made = KafkaBroker(kafka_url, publish_seconds=1.5, answer_seconds=3)
    await made.open()
    yield made
    await made.close()


@pytest.fixture(scope="module")
def cluster():
    with KafkaCluster() as started:
        yield started


def leaders(url, topic):
    """Partition → the node that leads it."""
    admin = AdminClient({"bootstrap.servers": servers(url), "log_level": 0})
    found = admin.describe_topics(TopicCollection([topic]))[topic].result(30)
    return {partition.id: partition.leader.id for partition in found.partitions}


@pytest.mark.promise("P1", "P2")
async def test_a_topic_that_is_deleted_under_way_is_misconfigured(kafka_url, broker):
    topic = make_topic(kafka_url)
    reporter = RecordingReporter()
    await broker.publish([make_record(1, key="k", topic=topic)], reporter)
    admin = AdminClient({"bootstrap.servers": servers(kafka_url), "log_level": 0})
    admin.delete_topics([topic])[topic].result(30)
    gone = make_record(2, key="k", topic=topic)

    async def told():
        more = RecordingReporter()
        await broker.publish([gone], more)
        return more.verdict(gone) is Verdict.MISCONFIGURED

    await until(told, PATIENCE)
    for _ in range(5):  # whoever asks and tries again does not create it, though this broker would
        await broker.health()
        assert await told()
    assert topic not in admin.list_topics(timeout=30).topics


@pytest.mark.promise("P1", "G2", "G4")
async def test_a_frozen_leader_stalls_no_other_partition(cluster, tmp_path, notes):
    topic = make_topic(cluster.url, partitions=6, copies=3)
    keys = [f"k{n}" for n in range(30)]
    place = SqlitePlace(tmp_path / "app.db")
    await place.open()
    # Time to answer, also for one that is only busy: the breaker must not open.
    broker = KafkaBroker(cluster.url, publish_seconds=2, answer_seconds=4)
    try:
        async with place.relay(broker, observers=[notes], misconfigured_seconds=0.5):
            await place.write(*(Event("made", id=f"{k}/0", key=k, topic=topic) for k in keys))
            await until(place.all_done, PATIENCE)
            where = {m.key: m.partition for m in tap(cluster.url, topic)}
            led_by = leaders(cluster.url, topic)
            frozen = cluster.members[led_by[where["k0"]] - 1]
            well = [k for k in keys if led_by[where[k]] != frozen.node]
            assert 0 < len(well) < len(keys)
            frozen.freeze()
            try:
                for n in range(1, 6):
                    await place.write(
                        *(Event("made", id=f"{k}/{n}", key=k, topic=topic) for k in keys)
                    )

                async def others_done():
                    found = [(await place.record(f"{k}/5")).state for k in well]
                    return set(found) == {"done"}

                await until(others_done, PATIENCE)
            finally:
                frozen.thaw()
            await until(place.all_done, PATIENCE)
        seen = tap(cluster.url, topic)
        assert first_seen_by_key(seen) == {k: [f"{k}/{n}" for n in range(6)] for k in keys}
        records = [await place.record(f"{k}/{n}") for k in keys for n in range(6)]
        assert [(r.id, r.attempts, r.last_error) for r in records if r.attempts] == []
        assert notes.of(BreakerChanged) == []
    finally:
        await place.close()


@pytest.mark.req("S1.7")
@pytest.mark.promise("G2", "G4", "P2", "P4")
async def test_the_leader_of_a_partition_is_killed(cluster, tmp_path, notes):
    topic = make_topic(cluster.url, partitions=6, copies=3)
    place = SqlitePlace(tmp_path / "app.db")
    await place.open()
    traffic = Traffic(place, cluster.url, topic, keys=20)
    broker = KafkaBroker(cluster.url, publish_seconds=20, answer_seconds=3)
    struck = None
    try:
        async with place.relay(broker, observers=[notes]):
            await traffic.write(5)
            await until(traffic.all_done, PATIENCE)
            leader = (await asyncio.to_thread(leaders, cluster.url, topic))[0]
            struck = cluster.members[leader - 1]
            writing = asyncio.create_task(traffic.write(20))
            await asyncio.to_thread(struck.kill)
            await writing
            await traffic.write(5)
            await until(traffic.all_done, PATIENCE)
        await traffic.check()
        assert notes.of(BreakerChanged) == []  # two of three are there: this was no outage
    finally:
        await place.close()
        if struck is not None:
            await asyncio.to_thread(struck.restart)


@pytest.mark.promise("P1", "P2")
async def test_too_few_replicas_are_told_and_stop_only_their_own_topic(cluster):
    sick = make_topic(cluster.url, copies=3, min_insync_replicas=3)
    well = make_topic(cluster.url, copies=3)
    broker = KafkaBroker(cluster.url, publish_seconds=3, answer_seconds=3)
    await broker.open()
    batch = [make_record(n, key=f"k{n % 4}", topic=[well, sick][n % 4 // 2]) for n in range(20)]
    healthy = [r for r in batch if r.topic == well]
    waiting = [r for r in batch if r.topic == sick]
    member = cluster.members[0]
    member.kill()
    try:
        await until(lambda: asyncio.to_thread(is_missed, cluster.members[1].url, sick), PATIENCE)
        reporter = RecordingReporter()
        publishing = asyncio.create_task(broker.publish(batch, reporter))
        await reporter.heard(healthy)
        assert not publishing.done()  # the others are still being tried
        await publishing
        assert {reporter.verdict(r) for r in healthy} == {Verdict.CONFIRMED}
        assert [reporter.verdict(r) for r in waiting[:2]] == [Verdict.MISCONFIGURED] * 2
        error = reporter.outcome(waiting[0]).error
        assert "has 2 in-sync replicas; min.insync.replicas requires 3" in error
        assert {reporter.verdict(r) for r in waiting[2:]} <= {Verdict.UNKNOWN, Verdict.UNSENT}
        alone = RecordingReporter()
        await broker.publish_alone(waiting[0], alone)
        assert alone.verdict(waiting[0]) is Verdict.MISCONFIGURED
    finally:
        await asyncio.to_thread(member.restart)
        await broker.close()
    assert {m.id for m in tap(cluster.url, well, sick)} == {r.id for r in healthy}


def is_missed(url, topic):
    """Say whether the cluster has noticed that a replica of each partition is gone."""
    admin = AdminClient({"bootstrap.servers": servers(url), "log_level": 0})
    partitions = admin.list_topics(topic, timeout=5).topics[topic].partitions.values()
    return all(partition.leader > 0 and len(partition.isrs) == 2 for partition in partitions)
