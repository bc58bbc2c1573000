"""The state of a Kafka source's connection, without a Kafka."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from postroom.source import SourceConnection
from postroom.sources.kafka import poller as poller_module
from postroom.sources.kafka import source as source_module
from postroom.sources.kafka.cluster import Generations
from postroom.sources.kafka.commits import Commits
from postroom.sources.kafka.missing_topics import MissingTopics
from postroom.sources.kafka.offsets import Partition
from postroom.sources.kafka.poller import Arrivals, Poller
from postroom.sources.kafka.source import KafkaSource
from tests.servers.process import free_port

URL = "kafka://127.0.0.1:{port}?topic=orders&group=payments"


@pytest.mark.promise("F2")
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
    told = [r.getMessage() for r in caplog.records if "is unreachable" in r.getMessage()]
    assert len(told) == 1


class Client:
    """Answers the question for topics when the brokers are back."""

    is_back = False

    def list_topics(self, topic, timeout):
        if not self.is_back:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))


async def test_brokers_that_are_back_are_told_once(caplog):
    source, client = KafkaSource(URL.format(port=1)), Client()
    poller = Poller(source.settings, Arrivals(), source.connection, print)
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
    assert lost.startswith("Kafka is unreachable (postroom keeps trying): ")
    assert back == "Kafka is reachable again"


@pytest.mark.promise("G2", "G6")
def test_what_every_consumer_has_whatever_is_configured():
    url = URL.format(port=1) + "&isolation.level=read_committed&fetch.min.bytes=1"
    for config in (KafkaSource(URL.format(port=1)).settings, KafkaSource(url).settings):
        client = config.client()
        assert client["isolation.level"] == "read_committed"  # what was aborted never happened
        assert client["enable.auto.commit"] is False
        assert client["enable.auto.offset.store"] is False
        assert client["auto.offset.reset"] == "earliest"
        assert client["partition.assignment.strategy"] == "cooperative-sticky"
        assert client["allow.auto.create.topics"] is False


@pytest.mark.promise("F2")
async def test_a_client_that_fails_at_once_is_made_again_with_growing_pauses(monkeypatch, caplog):
    source = KafkaSource(URL.format(port=1))
    poller, waits = Poller(source.settings, Arrivals(), source.connection, print), []

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
    assert len(caplog.records) == 1
    assert "postroom creates a new one, with backoff" in caplog.text


@pytest.mark.promise("F2")
def test_brokers_that_answer_clients_which_fail_at_once_are_not_said_to_be_back(
    monkeypatch, caplog
):
    """Else each new client has two log lines."""
    source, client = KafkaSource(URL.format(port=1)), Client()
    poller, now = Poller(source.settings, Arrivals(), source.connection, print), [100.0]
    monkeypatch.setattr(poller_module, "monotonic", lambda: now[0])
    monkeypatch.setattr(poller_module, "Client", lambda config, logger: client)
    client.is_back, client.lives = True, []

    def poll(seconds):
        poller._look_for_brokers(client)
        client.lives.append(now[0])
        if len(client.lives) == 10:
            now[0] += 5.0
            poller._look_for_brokers(client)
            poller.ending.set()
        raise KafkaException(KafkaError(KafkaError._FATAL))

    client.poll, client.subscribe = poll, lambda topics, **callbacks: None
    client.close = lambda: None
    monkeypatch.setattr(poller.ending, "wait", lambda seconds: now.append(now.pop() + seconds))
    source.connection.lost("a client before")
    poller._told = "a client before"
    poller.run()
    assert len(client.lives) == 10
    assert [r.getMessage().partition(" (")[0] for r in caplog.records] == [
        "the Kafka consumer failed",
        "Kafka is reachable again",  # the last one has lived for a while
        "the Kafka consumer failed",
    ]


class Group:
    """Refuses the offsets of these partitions; of `None`, all of them, as a group may not commit."""

    def __init__(self, poller, refuses, how="answer"):
        self.poller, self.refuses, self.how, self.offered = poller, refuses, how, []

    def commit(self, offsets, asynchronous):
        self.offered.append([(each.partition, each.offset) for each in offsets])
        error = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "not authorized")
        if self.refuses is None and self.how == "raise":
            raise KafkaException(error)
        if self.refuses is None:
            self.poller._committed(error, offsets)
            return
        answers = [
            SimpleNamespace(
                topic=each.topic, partition=each.partition,
                error=error if each.partition in self.refuses else None,
            ) for each in offsets
        ]  # fmt: skip
        self.poller._committed(None, answers)


def polling(refuses, how="answer"):
    source, now = KafkaSource(URL.format(port=1)), [0.0]
    poller = Poller(source.settings, Arrivals(), source.connection, print)
    poller._commits = Commits(source.connection, lambda: now[0])
    for number in (1, 2):
        found = poller._partitions["orders", number] = Partition("orders", number)
        for offset in range(2_000):
            found.arrived(offset)
    return poller, Group(poller, refuses, how), now


def poll_for(seconds, poller, group, now):
    """A message of each partition is done with each poll."""
    end = now[0] + seconds
    while now[0] < end:
        for partition in poller._partitions.values():
            partition.done(partition.finished)
            partition.finished += 1
        poller._commit(group)
        now[0] += 0.05


@pytest.mark.promise("F2")
@pytest.mark.parametrize("how", ["answer", "raise"])
def test_offsets_that_are_always_refused_are_offered_ever_less_often(monkeypatch, caplog, how):
    monkeypatch.setattr(Partition, "finished", 0, raising=False)
    poller, group, now = polling(None, how)
    poll_for(60.0, poller, group, now)
    assert len(group.offered) <= 13  # and not 1,200
    connection = poller._connection
    assert (connection.refusal, connection.trouble) == ("Kafka: not authorized", "")
    assert connection.refusals == 2 * len(group.offered)
    group.refuses = ()
    poll_for(11.0, poller, group, now)
    assert connection.refusal == ""
    assert group.offered[-1][0][1] == poller._partitions["orders", 1].finished
    refused, taken = [record.getMessage() for record in caplog.records]
    assert refused.startswith("Kafka refuses the offsets of this consumer")
    assert refused.endswith("Grant its user READ on the group and the topics")
    assert taken == "Kafka accepts the offsets of this consumer again"


@pytest.mark.promise("F1", "F2")
def test_a_partition_whose_offsets_are_refused_costs_no_other(monkeypatch, caplog):
    monkeypatch.setattr(Partition, "finished", 0, raising=False)
    poller, group, now = polling({1})
    poll_for(30.0, poller, group, now)
    offered = [partition for offsets in group.offered for partition, _ in offsets]
    assert offered.count(1) <= 10
    assert offered.count(2) == 600
    assert len(caplog.records) == 1
    poller._taken(group, [TopicPartition("orders", 1)])
    poll_for(0.1, poller, group, now)
    assert [record.getMessage() for record in caplog.records][1:] == [
        "Kafka accepts the offsets of this consumer again"
    ]


def test_a_rebalance_that_refuses_an_offset_is_no_trouble(caplog):
    source = KafkaSource(URL.format(port=1))
    poller = Poller(source.settings, Arrivals(), source.connection, print)
    error = KafkaError(KafkaError.REBALANCE_IN_PROGRESS)
    poller._committed(error, [TopicPartition("orders", 1)])
    assert source.connection.refusal == ""
    assert not [record for record in caplog.records if record.levelname != "DEBUG"]


@pytest.mark.promise("G6")
def test_what_is_done_is_committed_before_a_partition_goes_and_nothing_after():
    source = KafkaSource(URL.format(port=1))
    poller, commits = Poller(source.settings, Arrivals(), source.connection, print), []
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
    assert commits == [([(3, 8)], True)]  # up to the first that is not done, and not waited for
    assert partition.is_lost
    partition.done(8)
    poller._commit(Group())
    assert len(commits) == 1


class Fetched:
    """A record as librdkafka returns it."""

    def __init__(self, offset):
        self._offset = offset

    def error(self):
        return None

    def topic(self):
        return "orders"

    def partition(self):
        return 3

    def offset(self):
        return self._offset

    def key(self):
        return b"k"

    def value(self):
        return b"{}"

    def headers(self):
        return []


@pytest.mark.promise("F4", "G2")
@pytest.mark.parametrize(("last", "next_one"), [(7, 7), (7, 0), (0, 0)])
def test_an_offset_that_came_before_is_one_of_a_topic_that_was_created_again(
    monkeypatch, last, next_one
):
    """Also the last one: the new topic has as many messages. Its id is part of their identity."""
    source, arrivals = KafkaSource(URL.format(port=1)), Arrivals()
    poller = Poller(source.settings, arrivals, source.connection, lambda: None)
    monkeypatch.setattr(poller._cluster, "topic_ids", lambda topics: dict.fromkeys(topics, "new"))
    poller._partitions["orders", 3] = Partition("orders", 3, "old")
    poller._hand_over(None, [Fetched(last)])
    poller._hand_over(None, [Fetched(next_one), Fetched(next_one + 1)])
    old, new, after = arrivals.take(9)
    assert (old.message.offset, new.message.offset, after.message.offset) == (
        f"orders@old/3/{last}", f"orders@new/3/{next_one}", f"orders@new/3/{next_one + 1}",
    )  # fmt: skip
    assert (old.is_lost, new.is_lost, after.is_lost) == (True, False, False)


@pytest.mark.promise("F2", "G6")
@pytest.mark.parametrize("answers", [True, False])
def test_the_last_offsets_are_waited_for_at_the_end_but_not_for_ever(monkeypatch, answers):
    source, now = KafkaSource(URL.format(port=1)), [0.0]
    poller, commits = Poller(source.settings, Arrivals(), source.connection, print), []
    monkeypatch.setattr(poller_module, "monotonic", lambda: now[0])
    partition = poller._partitions["orders", 3] = Partition("orders", 3)
    for offset in (7, 8):
        partition.arrived(offset)

    class Last:
        def __init__(self, config, logger):
            self.committed, self.due, self.polls = config["on_commit"], [], 0

        def subscribe(self, topics, **callbacks):
            pass

        def poll(self, seconds):
            self.polls += 1
            assert self.polls < 1_000
            now[0] += seconds
            if self.polls == 1:
                partition.done(7)
                poller.ending.set()
            elif answers and self.polls > 10:
                while self.due:
                    self.committed(None, self.due.pop())

        def commit(self, offsets, asynchronous):
            commits.append((offsets[0].offset, asynchronous))
            self.due.append(offsets)
            partition.done(8)  # it ends while the first commit is on its way

        def close(self):
            commits.append(now[0])

    monkeypatch.setattr(poller_module, "Client", Last)
    poller.run()
    *asked, end = commits
    assert asked == [(8, True), (9, True)]
    assert end == pytest.approx(0.05 * 11 if answers else 5.0, abs=0.2)


async def test_a_client_that_does_not_end_holds_up_nobody(monkeypatch, caplog):
    """librdkafka waits for the answers to commits, for minutes, while Kafka is unreachable."""
    monkeypatch.setattr(source_module, "_CLOSE_SECONDS", 0.01)
    source = KafkaSource(URL.format(port=1))
    released = threading.Event()
    thread = source._thread = Poller(source.settings, Arrivals(), source.connection, print)
    monkeypatch.setattr(thread, "_live", released.wait)
    thread.start()
    async with asyncio.timeout(30):
        await source.close()
    assert thread.is_alive()
    assert thread.daemon  # the process can end
    assert "Kafka did not answer before the consumer stopped" in caplog.text
    released.set()
    thread.join(30)
    assert not thread.is_alive()


class Answers:
    """Answers questions for topics when the test says so."""

    def __init__(self):
        self.asked = []

    def ask_for_ids(self, topics):
        self.asked.append({topic: Future() for topic in topics})
        return self.asked[-1]

    def answer(self, **ids):
        for topic, future in self.asked[-1].items():
            if ids[topic] is None:
                future.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
            else:
                future.set_result(SimpleNamespace(topic_id=ids[topic]))


@pytest.mark.promise("F1", "F2")
def test_topics_are_looked_at_now_and_then_and_nobody_waits_for_the_answer():
    cluster, now = Answers(), [0.0]
    generations = Generations(cluster, lambda: now[0])
    generations.note({"a": "one", "b": "two", "c": ""})
    topics = ("a", "b", "c")
    for _ in range(10):
        assert generations.look(topics) == {}  # no answer yet
        now[0] += 1.0
    assert len(cluster.asked) == 1
    cluster.answer(a="one", b=None, c="three")  # one is not there at the moment, one was not known
    assert generations.look(topics) == {}
    assert generations.look(topics) == {}
    assert len(cluster.asked) == 2
    cluster.answer(a="one", b="another", c="four")
    assert generations.look(topics) == {"b": "another"}
    generations.note({"b": "another"})
    assert not generations.is_another("b", "another")
    assert not generations.is_another("b", "")  # the broker does not tell
    assert generations.look(topics) == {}
    assert len(cluster.asked) == 2
    generations.look_soon()
    assert generations.look(topics) == {}
    assert len(cluster.asked) == 3


@pytest.mark.promise("G2")
@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_new_client_begins_with_the_start_of_a_topic_that_is_another(monkeypatch, start):
    """What the group has committed may be a place of the old one."""
    source = KafkaSource(URL.format(port=1), start=start)
    poller, assigned = Poller(source.settings, Arrivals(), source.connection, print), []
    ids = {"orders": "old", "refunds": "same"}
    monkeypatch.setattr(poller._cluster, "topic_ids", lambda topics: {t: ids[t] for t in topics})
    monkeypatch.setattr(
        poller._cluster, "committed",
        lambda client, partitions: [TopicPartition(p.topic, p.partition, 7) for p in partitions],
    )  # fmt: skip
    client = SimpleNamespace(incremental_assign=assigned.append)
    partitions = [TopicPartition("orders", 0), TopicPartition("refunds", 1)]
    poller._assigned(client, partitions)
    ids["orders"] = "new"
    poller._assigned(client, partitions)
    usual = 7 if start == "latest" else TopicPartition("orders", 0).offset  # the group's own place
    assert [{p.topic: p.offset for p in each} for each in assigned] == [
        {"orders": usual, "refunds": usual},
        {"orders": OFFSET_BEGINNING, "refunds": usual},
    ]


def test_a_silent_cluster_is_left_before_the_session_ends_and_joined_again():  # U5
    source = KafkaSource(URL.format(port=1))
    poller, calls = Poller(source.settings, Arrivals(), source.connection, print), []
    client = SimpleNamespace(
        unsubscribe=lambda: calls.append("leave"),
        subscribe=lambda topics, **_: calls.append(topics),
        list_topics=lambda topic, timeout: None,
    )
    cluster, now = Answers(), [100.0]
    poller._generations = generations = Generations(cluster, lambda: now[0])
    generations.look(("orders",))
    for _ in range(50):
        now[0] += 0.1
        generations.look(("orders",))
        if generations.is_silent:
            poller._unreachable("no answer to requests")
            poller._leave_in_time(client)
    assert calls == ["leave"]
    assert source.settings.session_seconds == 10.0
    poller._look_for_brokers(client)
    assert calls == ["leave", list(source.settings.topic)]
    assert generations.silent_seconds == 0.0
    assert not source.connection.trouble
    now[0] += 60
    poller._look_for_brokers(client)
    assert len(calls) == 2  # it has joined already


def test_a_slow_answer_costs_no_membership():  # U5
    cluster, now = Answers(), [100.0]
    generations = Generations(cluster, lambda: now[0])
    for _ in range(5):
        now[0] += 10.0
        generations.look(("a",))
        now[0] += 3.5
        generations.look(("a",))
        assert generations.silent_seconds < 4.0  # each answer ends the silence
        cluster.answer(a="one")
        generations.look(("a",))
        assert generations.silent_seconds == 0.0


def test_a_cluster_that_is_silent_is_noticed_and_an_answer_ends_it():  # U5
    cluster, now = Answers(), [10.0]
    generations = Generations(cluster, lambda: now[0])
    generations.look(("a",))
    now[0] += 2.9
    generations.look(("a",))
    assert not generations.is_silent
    now[0] += 0.2
    generations.look(("a",))
    assert generations.is_silent
    (future,) = cluster.asked[-1].values()
    future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    generations.look(("a",))
    assert generations.is_silent  # the client gave up
    generations.answered()
    assert not generations.is_silent
    now[0] += 5.0
    generations.look(("a",))
    cluster.answer(a=None)  # that the topic does not exist is an answer
    generations.look(("a",))
    assert not generations.is_silent


def test_a_silent_cluster_is_logged_once_each_way(caplog):  # U5
    source = KafkaSource(URL.format(port=1))
    poller = Poller(source.settings, Arrivals(), source.connection, print)
    for _ in range(3):
        poller._unreachable("no answer to requests")
    client = SimpleNamespace(list_topics=lambda topic, timeout: None)
    for _ in range(3):
        if source.connection.trouble:
            poller._look_for_brokers(client)
    assert [record.getMessage() for record in caplog.records] == [
        "Kafka is unreachable (postroom keeps trying): no answer to requests",
        "Kafka is reachable again",
    ]


def test_a_late_report_of_an_outage_that_is_over_is_ignored(caplog, monkeypatch):  # U5
    now, source = [100.0], KafkaSource(URL.format(port=1))
    monkeypatch.setattr("postroom.sources.kafka.poller.monotonic", lambda: now[0])
    poller = Poller(source.settings, Arrivals(), source.connection, print)
    poller._unreachable("no answer to requests")
    poller._look_for_brokers(SimpleNamespace(list_topics=lambda topic, timeout: None))
    down = KafkaError(KafkaError._ALL_BROKERS_DOWN)
    poller._failed(down)
    assert source.connection.trouble == ""
    now[0] += 2.0
    poller._failed(down)
    assert source.connection.trouble
    assert len(caplog.records) == 3


class Topics:
    """A cluster with some topics."""

    def __init__(self, *names):
        self.names, self.asked, self.is_down = set(names), [], False

    def list_topics(self, topic, timeout):
        self.asked.append(topic)
        if self.is_down:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        error = None if topic in self.names else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error)})


def test_a_missing_topic_is_asked_for_with_pauses_and_told_once_each_way(caplog):  # U8
    now, connection, cluster = [0.0], SourceConnection(), Topics()
    missing = MissingTopics(connection, lambda: now[0])
    missing.note(["orders", "refunds"])
    missing.note(["orders"])
    assert connection.trouble == "Kafka has no topic 'orders', 'refunds'"
    for _ in range(600):  # a minute
        now[0] += 0.1
        assert not missing.look(cluster)
    assert 20 <= len(cluster.asked) / 2 <= 30
    cluster.is_down = True
    now[0] += 3.0
    assert not missing.look(cluster)
    cluster.is_down, cluster.names = False, {"orders"}
    now[0] += 3.0
    assert missing.look(cluster)
    assert list(missing) == ["refunds"]
    assert connection.trouble
    cluster.names.add("refunds")
    now[0] += 3.0
    assert missing.look(cluster)
    assert (bool(missing), connection.trouble, connection.losses) == (False, "", 1)
    assert [record.getMessage().split("topic ")[1][:8] for record in caplog.records] == [
        "'orders'", "'orders'", "'refunds",
    ]  # fmt: skip
