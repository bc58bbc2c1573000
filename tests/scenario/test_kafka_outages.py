"""Kafka goes away in every way it can: nothing is lost, reordered, or charged an attempt."""

from __future__ import annotations

import asyncio
import logging

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from postroom.brokers.kafka import KafkaBroker
from postroom.event import Event
from postroom.observer import BreakerChanged
from tests.scenario.kafka_place import Traffic, kafka_behind_a_proxy, make_topic, servers
from tests.scenario.place import SqlitePlace, until

PATIENCE = 60.0


@pytest.fixture
async def place(tmp_path):
    made = SqlitePlace(tmp_path / "app.db")
    await made.open()
    yield made
    await made.close()


def broker_at(url, **options):
    return KafkaBroker(servers(url), **{"publish_seconds": 3, "answer_seconds": 1, **options})


def changes(notes):
    return [fact.state for fact in notes.of(BreakerChanged)]


@pytest.mark.req("S1.4", "S1.6", "S1.7")
@pytest.mark.promise("G2", "G4", "P2", "P4")
class TestOutages:
    async def test_away_at_the_start(self, place, notes, own_server):
        server = own_server("kafka")
        traffic = Traffic(place, server.url, make_topic(server.url))
        server.kill()
        async with place.relay(broker_at(server.url), observers=[notes]) as relay:
            assert relay.is_running
            await traffic.write(10)
            await until(lambda: changes(notes) == ["open"], PATIENCE)
            await traffic.write(10)
            await asyncio.to_thread(server.restart)
            await until(traffic.all_done, PATIENCE)
        # Nothing had left before: there is nothing to send twice.
        assert await traffic.check() == {}
        assert changes(notes) == ["open", "closed"]
        assert "127.0.0.1" in notes.of(BreakerChanged)[0].error

    async def test_killed_while_running(self, place, notes, own_server):
        server = own_server("kafka")
        traffic = Traffic(place, server.url, make_topic(server.url))
        async with place.relay(broker_at(server.url), observers=[notes]):
            await traffic.write(20)
            await until(traffic.all_done, PATIENCE)
            writing = asyncio.create_task(traffic.write(60))
            await asyncio.to_thread(server.kill)
            await writing
            await traffic.write(10)
            await until(lambda: "open" in changes(notes), PATIENCE)
            await asyncio.to_thread(server.restart)
            await traffic.write(10)
            await until(traffic.all_done, PATIENCE)
        await traffic.check()
        assert changes(notes) == ["open", "closed"]

    async def test_frozen(self, place, notes, own_server):
        server = own_server("kafka")
        traffic = Traffic(place, server.url, make_topic(server.url))
        async with place.relay(broker_at(server.url), observers=[notes]):
            await traffic.write(20)
            await until(traffic.all_done, PATIENCE)
            await asyncio.to_thread(server.freeze)
            await traffic.write(20)
            await until(lambda: changes(notes) == ["open"], PATIENCE)
            await traffic.write(10)
            server.thaw()
            await until(traffic.all_done, PATIENCE)
        await traffic.check()
        assert changes(notes)[-1] == "closed"

    async def test_replies_are_swallowed(self, place, notes):
        with kafka_behind_a_proxy() as (_, proxy, url):
            traffic = Traffic(place, url, make_topic(url))
            async with place.relay(broker_at(url), observers=[notes]):
                await traffic.write(20)
                await until(traffic.all_done, PATIENCE)
                proxy.swallow("replies")
                await traffic.write(20)
                await until(lambda: changes(notes) == ["open"], PATIENCE)
                await traffic.write(10)
                proxy.heal()
                await until(traffic.all_done, PATIENCE)
            copies = await traffic.check()
        # They had arrived, and nobody could know: sent again, which the receiver's inbox sees.
        assert set(copies) <= {i for ids in traffic.written.values() for i in ids[20:40]}
        assert copies != {}

    async def test_a_reply_that_is_late_makes_no_copy(self, place, notes):
        """A connection that breaks within the time limit is mended by the idempotent producer."""
        with kafka_behind_a_proxy() as (_, proxy, url):
            traffic = Traffic(place, url, make_topic(url))
            async with place.relay(broker_at(url, publish_seconds=15), observers=[notes]):
                await traffic.write(20)
                await until(traffic.all_done, PATIENCE)
                proxy.swallow("replies")
                await traffic.write(20)
                await asyncio.to_thread(proxy.wait_swallowed)
                proxy.heal()
                await until(traffic.all_done, PATIENCE)
            assert await traffic.check() == {}
        assert changes(notes) == []

    async def test_the_leader_of_a_partition_is_killed(self, place, notes, own_server):
        cluster = own_server("kafka_cluster")
        topic = make_topic(cluster.url, partitions=6, copies=3)
        traffic = Traffic(place, cluster.url, topic, keys=20)
        async with place.relay(broker_at(cluster.url, publish_seconds=20), observers=[notes]):
            await traffic.write(5)
            await until(traffic.all_done, PATIENCE)
            leader = await asyncio.to_thread(leader_of, cluster.url, topic)
            writing = asyncio.create_task(traffic.write(20))
            await asyncio.to_thread(cluster.members[leader - 1].kill)
            await writing
            await traffic.write(5)
            await until(traffic.all_done, PATIENCE)
        await traffic.check()
        assert changes(notes) == []  # two of three are there: this was no outage


def leader_of(url, topic):
    admin = AdminClient({"bootstrap.servers": servers(url), "log_level": 0})
    found = admin.describe_topics(TopicCollection([topic]))[topic].result(30)
    return found.partitions[0].leader.id


@pytest.mark.req("S1.6")
async def test_a_name_that_does_not_resolve_is_an_outage(place, notes, caplog):
    caplog.set_level(logging.INFO)
    async with place.relay(broker_at("kafka://nowhere.invalid:9092"), observers=[notes]) as relay:
        await place.write(Event("made", id="e1", key="k"))
        await until(lambda: changes(notes) == ["open"], PATIENCE)
        with pytest.raises(Exception, match=r"nowhere\.invalid"):
            await relay.broker.health()
    assert "nowhere.invalid" in notes.of(BreakerChanged)[0].error
    assert [r for r in caplog.records if r.name.startswith("postroom.brokers")] == []
    assert (await place.record("e1")).attempts == 0
