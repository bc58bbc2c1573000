"""The state of a Kafka source's connection, without a Kafka."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from postroom.consumers import kafka_poller
from postroom.consumers.kafka import KafkaSource
from postroom.consumers.kafka_poller import Arrivals, Poller
from postroom.consumers.offsets import Partition
from tests.servers.process import free_port

URL = "kafka://127.0.0.1:{port}?topic=orders&group=payments"


async def test_brokers_that_cannot_be_reached_are_told_once(caplog):
    """R-D1."""
    source = KafkaSource(URL.format(port=free_port()))
    assert source.connection.trouble == ""
    await source.open()
    async with asyncio.timeout(30):
        while not source.connection.trouble:  # noqa: ASYNC110 - librdkafka's own thread sets it
            await asyncio.sleep(0.01)
    assert source.connection.losses == 1
    await source.close()
    assert source.connection.trouble == ""
    told = [r.getMessage() for r in caplog.records if "cannot be reached" in r.getMessage()]
    assert len(told) == 1


class Client:
    """Answers the question for topics when the brokers are back."""

    is_back = False

    def list_topics(self, topic, timeout):
        if not self.is_back:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))


async def test_brokers_that_are_back_are_told_once(caplog):
    source, client = KafkaSource(URL.format(port=1)), Client()
    poller = Poller(source.options, Arrivals(), source.connection, print)
    for _ in range(3):
        poller._failed(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        poller._look_for_brokers(client)
    assert source.connection.trouble
    client.is_back = True
    poller._look_for_brokers(client)
    assert (source.connection.trouble, source.connection.losses) == ("", 1)
    poller._failed(KafkaError(KafkaError._TRANSPORT))  # one broker of several
    assert source.connection.trouble == ""
    lost, back = [record.getMessage() for record in caplog.records]
    assert lost.startswith("Kafka cannot be reached (postroom goes on trying): ")
    assert back == "Kafka can be reached again"


@pytest.mark.promise("G2", "G6")
def test_what_every_consumer_has_whatever_is_configured():
    url = URL.format(port=1) + "&isolation.level=read_committed&fetch.min.bytes=1"
    for config in (KafkaSource(URL.format(port=1)).options, KafkaSource(url).options):
        client = config.client()
        assert client["isolation.level"] == "read_committed"  # what was aborted never happened
        assert client["enable.auto.commit"] is False
        assert client["enable.auto.offset.store"] is False
        assert client["auto.offset.reset"] == "earliest"
        assert client["partition.assignment.strategy"] == "cooperative-sticky"
        assert client["allow.auto.create.topics"] is False


async def test_a_client_that_fails_at_once_is_made_again_with_growing_pauses(monkeypatch):
    source = KafkaSource(URL.format(port=1))
    poller, waits = Poller(source.options, Arrivals(), source.connection, print), []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 9:
            poller.ending.set()

    def fail():
        raise KafkaException(KafkaError(KafkaError._FATAL))

    monkeypatch.setattr(poller, "_live", fail)
    monkeypatch.setattr(poller.ending, "wait", wait)
    poller.run()
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert source.connection.losses == 1


@pytest.mark.promise("G6")
def test_what_is_done_is_committed_before_a_partition_goes_and_nothing_after():
    source = KafkaSource(URL.format(port=1))
    poller, commits = Poller(source.options, Arrivals(), source.connection, print), []
    partition = poller._partitions["orders", 3] = Partition("orders", 3)
    for offset in (7, 8, 9):
        partition.arrived(offset)
    partition.done(7)
    partition.done(9)

    class Group:
        def commit(self, offsets, asynchronous):
            assert not partition.is_lost
            commits.append(([(each.partition, each.offset) for each in offsets], asynchronous))

    poller._revoked(Group(), [TopicPartition("orders", 3)])
    assert commits == [([(3, 8)], False)]  # up to the first that is not done, and waited for
    assert partition.is_lost
    partition.done(8)
    poller._commit(Group(), wait=False)
    assert len(commits) == 1


@pytest.mark.promise("G6")
def test_the_last_offsets_are_waited_for_at_the_end(monkeypatch):
    source = KafkaSource(URL.format(port=1))
    poller, commits = Poller(source.options, Arrivals(), source.connection, print), []
    partition = poller._partitions["orders", 3] = Partition("orders", 3)
    for offset in (7, 8):
        partition.arrived(offset)

    class Last:
        def __init__(self, config, logger):
            pass

        def subscribe(self, topics, **callbacks):
            pass

        def poll(self, seconds):
            partition.done(7)
            poller.ending.set()

        def commit(self, offsets, asynchronous):
            commits.append((offsets[0].offset, asynchronous))
            partition.done(8)  # it ends while the first commit is on its way

        def close(self):
            commits.append("closed")

    monkeypatch.setattr(kafka_poller, "Client", Last)
    poller.run()
    assert commits == [(8, True), (9, False), "closed"]
