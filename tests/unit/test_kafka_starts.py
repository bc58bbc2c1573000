"""Where a new group with start=latest starts is committed before anything of it is read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from postroom.sources.kafka import KafkaSource
from postroom.sources.kafka.poller import Arrivals, Poller
from postroom.sources.kafka.starts import Starts

URL = "kafka://127.0.0.1:1?topic=orders&group=g&start=latest"
REFUSED = KafkaError(KafkaError.NOT_COORDINATOR)


class Client:
    """Notes commits; which partitions are paused."""

    def __init__(self):
        self.commits, self.assigned, self.paused = [], [], set()

    def commit(self, offsets, asynchronous):
        assert asynchronous, "it has no time limit"
        self.commits.append({each.partition: each.offset for each in offsets})

    def incremental_assign(self, partitions):
        self.assigned += partitions

    def assignment(self):
        return self.assigned

    def pause(self, partitions):
        self.paused |= {each.partition for each in partitions}

    def resume(self, partitions):
        self.paused -= {each.partition for each in partitions}


def partitions(*numbers, offset=9):
    return [TopicPartition("orders", number, offset) for number in numbers]


@pytest.fixture
def clock():
    return SimpleNamespace(now=0.0)


@pytest.fixture
def starts(clock):
    return Starts(lambda: clock.now)


@pytest.mark.promise("F2", "G2")
def test_an_assignment_does_not_wait_for_the_commit_and_reads_nothing_before_it(monkeypatch):
    source = KafkaSource(URL)
    poller, client = Poller(source.settings, Arrivals(), source.connection, print), Client()
    monkeypatch.setattr(poller._cluster, "topic_ids", lambda topics: dict.fromkeys(topics, "id"))
    known = {0: 7, 1: -1001, 2: -1001}
    monkeypatch.setattr(
        poller._cluster, "committed",
        lambda client, given: [TopicPartition("orders", p.partition, known[p.partition]) for p in given],
    )  # fmt: skip
    monkeypatch.setattr(
        poller._cluster, "ends", lambda given: partitions(*(p.partition for p in given))
    )
    poller._assigned(client, partitions(0, 1, 2))
    poller._hold_back(client)
    assert {p.partition: p.offset for p in client.assigned} == {0: 7, 1: 9, 2: 9}
    assert client.paused == {1, 2}
    assert poller._starts.commit(client)
    refused = SimpleNamespace(topic="orders", partition=2, offset=9, error=REFUSED)
    poller._committed(None, [*partitions(1), refused])
    poller._hold_back(client)
    assert client.paused == {2}
    assert source.connection.refusal == ""  # the offsets of messages are not refused
    poller._committed(None, partitions(2))
    poller._hold_back(client)
    assert client.paused == set()
    assert client.commits == [{1: 9, 2: 9}]


@pytest.mark.promise("F2", "G2")
def test_an_offset_that_cannot_be_read_is_not_taken_for_none(monkeypatch):
    """Otherwise the consumer starts at the end: messages behind the group's offset are lost."""
    source = KafkaSource(URL)
    poller, client = Poller(source.settings, Arrivals(), source.connection, print), Client()
    monkeypatch.setattr(poller._cluster, "topic_ids", lambda topics: dict.fromkeys(topics, "id"))
    monkeypatch.setattr(poller._cluster, "ends", lambda given: partitions(1))
    unread = SimpleNamespace(topic="orders", partition=1, offset=-1001, error=REFUSED)
    client.committed = lambda given, timeout: [*partitions(0, offset=7), unread]
    with pytest.raises(KafkaException):  # then a new client joins
        poller._assigned(client, partitions(0, 1))
    assert (client.assigned, client.commits) == ([], [])
    assert ("orders", 1) not in poller._starts


@pytest.mark.promise("F2")
@pytest.mark.parametrize("raises", [False, True], ids=["answered", "raised"])
def test_a_refusal_without_end_costs_few_attempts_and_one_line(starts, clock, caplog, raises):
    client = Client()
    if raises:

        def commit(offsets, asynchronous):
            Client.commit(client, offsets, asynchronous)
            raise KafkaException(REFUSED)

        client.commit = commit
    starts.begin(partitions(1))
    while clock.now < 600:
        if starts.commit(client):
            assert not starts.answered(REFUSED, partitions(1))
        clock.now += 0.05
    assert 60 <= len(client.commits) <= 70
    assert ("orders", 1) in starts
    assert len(caplog.records) == 1
    assert "nothing of orders/1 is read until it is" in caplog.text
    assert starts.answered(None, partitions(1))
    assert [record.message for record in caplog.records][1:] == [
        "the start of the new group is committed; its partitions are read"
    ]


@pytest.mark.promise("F2")
def test_a_request_without_an_answer_is_told_and_not_piled_up(starts, clock, caplog):
    client = Client()
    starts.begin(partitions(1))
    while clock.now < 600:
        starts.commit(client)
        clock.now += 0.05
    assert len(client.commits) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "Kafka does not answer" in caplog.text


def test_the_answer_for_a_partition_that_went_away_does_not_block_the_others(starts):
    client = Client()
    starts.begin(partitions(1))
    assert starts.commit(client)
    starts.begin(partitions(2))
    starts.forget([("orders", 1)])
    assert not starts.commit(client)
    assert not starts.answered(None, partitions(1))
    assert starts.commit(client)
    assert starts.answered(None, partitions(2))
    assert client.commits == [{1: 9}, {2: 9}]
