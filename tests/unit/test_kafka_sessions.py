"""What a call on a session learns when its time is over."""

from __future__ import annotations

import asyncio
import socket
from time import monotonic
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError

from postroom.broker import Outcome, Verdict
from postroom.brokers.kafka import verdicts
from postroom.brokers.kafka.log import LogLines
from postroom.brokers.kafka.message import writer
from postroom.brokers.kafka.partitions import Partitions
from postroom.brokers.kafka.publish_call import PublishCall
from postroom.brokers.kafka.session import Session
from postroom.brokers.kafka.sessions import IDLE_SECONDS, Sessions
from postroom.brokers.kafka.settings import KafkaSettings
from postroom.brokers.kafka.topics import Topics
from postroom.brokers.kafka.verdicts import Loss
from postroom.brokers.outages import UnreachableError
from postroom.testing.broker_tools import RecordingReporter, make_record

SETTINGS = KafkaSettings(servers="h:1", topic="t", publish_seconds=0.01)
PURGED = Loss(KafkaError._PURGE_INFLIGHT, "purged in flight", partition=2)


def written(settings):
    return writer(settings, Partitions(settings, lambda _: 1))


class Cluster:
    """Answers that somebody is there, and then what it was told to."""

    def __init__(self, unavailable_partitions):
        self._ailing = unavailable_partitions

    async def ask(self):
        pass

    async def unavailable_partitions(self, places):
        assert places == {("t", 2)}
        if isinstance(self._ailing, Exception):
            raise self._ailing
        return self._ailing


class Hanging:
    """A session in which nothing is ever confirmed."""

    unreachable = ""
    is_gone = False

    def post(self, call, indices):
        pass

    def retire(self, grace_seconds):
        pass

    def give_up(self, call):
        call.lose(0, PURGED)

    def withdraw(self, call):
        pass


async def alone(unavailable_partitions):
    """Send an event alone that is never confirmed; returns what is said of it."""
    sessions = Sessions(
        SETTINGS, Cluster(unavailable_partitions), written(SETTINGS), LogLines(SETTINGS)
    )
    record, reporter = make_record(1, key="k"), RecordingReporter()
    call = PublishCall([record], reporter)
    await sessions.deliver(Hanging(), call, [0], verdicts.alone)
    return reporter.outcome(record)


@pytest.mark.promise("P2", "P3")
async def test_its_partition_is_well_so_nobody_knows():
    assert await alone({}) == Outcome(Verdict.UNKNOWN, "purged in flight")


@pytest.mark.promise("P1", "P2")
async def test_its_partition_has_no_leader():
    told = "partition 2 of 't' has no leader"
    assert await alone({("t", 2): told}) == Outcome(Verdict.MISCONFIGURED, told)


@pytest.mark.promise("P3")
async def test_nobody_answers_what_is_wrong_with_its_partition_so_it_is_not_to_blame():
    gone = UnreachableError("Kafka does not answer: timed out")
    assert await alone(gone) == Outcome(Verdict.OUTAGE, "Kafka does not answer: timed out")


@pytest.mark.promise("P2", "P3")
async def test_what_never_had_a_partition_never_left():
    """A frozen broker takes connections and answers nothing: nobody learns of any partition."""
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        address = f"127.0.0.1:{frozen.getsockname()[1]}"
        settings = KafkaSettings(servers=address, topic="t")
        lines = LogLines(settings)
        config = settings.producer() | settings.batching(1_000_000, one_by_one=True)
        session = Session(config, written(settings), lines, lambda _: None)
        record, reporter = make_record(1, key="k"), RecordingReporter()
        call = PublishCall([record], reporter)
        session.post(call, [0])
        session.end()
        async with asyncio.timeout(20):
            await call.accounted
        await session.gone(20)
    (loss,) = call.losses.values()
    assert (loss.partition, loss.left) == (None, False)
    for judge in (verdicts.alone, verdicts.in_a_batch):
        assert judge(loss).verdict is Verdict.UNSENT


class Resting:
    """A session that nobody uses at the moment."""

    suspect = retired = is_gone = False

    def __init__(self):
        self.calls = set()

    def retire(self, grace_seconds):
        self.retired = True


async def test_a_session_for_one_topic_goes_when_it_is_idle_and_the_common_one_stays(monkeypatch):
    cluster = Cluster({})
    cluster.answered_at = monotonic()
    sessions = Sessions(SETTINGS, cluster, written(SETTINGS), LogLines(SETTINGS))
    monkeypatch.setattr(sessions, "_new", lambda size: Resting())
    common = await sessions.ready("batch", SETTINGS.batch_bytes)
    small, lately = await sessions.ready("batch", 1_024), await sessions.ready("batch", 4_096)
    busy, alone = await sessions.ready("batch", 256), await sessions.ready("alone")
    for session in (common, small, busy, alone):
        session.used_at -= IDLE_SECONDS + 1
    busy.calls.add("a call")
    sessions.let_idle_go()
    assert [one.retired for one in (common, small, lately, busy, alone)] == [
        False, True, False, False, True,
    ]  # fmt: skip
    assert await sessions.ready("batch", SETTINGS.batch_bytes) is common
    assert await sessions.ready("batch", 1_024) is not small


@pytest.mark.promise("G4", "K1")
async def test_a_key_goes_by_one_session_whatever_its_topics_take():
    settings = KafkaSettings(servers="h:1")
    limits = SimpleNamespace(batch_bytes={"small": 1_000, "large": settings.batch_bytes}.get)
    sessions = Sessions(settings, limits, written(settings), LogLines(settings))
    both = [make_record(n, key="both", topic=t) for n, t in enumerate(["large", "small", "large"])]
    other = make_record(9, key="other", topic="large")
    for batch in ([*both, other], [other, *both]):
        parts = sessions.share_out(batch)
        assert len(parts) == 2
        assert parts[settings.batch_bytes] == [other]
        assert parts[min(parts)] == both


@pytest.mark.promise("P1")
async def test_a_session_that_is_given_up_ends_after_its_time_of_grace_whoever_still_waits():
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        settings = KafkaSettings(servers=f"127.0.0.1:{frozen.getsockname()[1]}", topic="t")
        config = settings.producer() | settings.batching(1_000_000, one_by_one=False)
        session = Session(config, written(settings), LogLines(settings), lambda _: None)
        call = PublishCall([make_record(1, key="k")], RecordingReporter())
        session.post(call, [0])
        session.retire(0.01)
        async with asyncio.timeout(20):
            await call.accounted
        await session.gone(20)
    assert session.is_gone
    assert len(call.losses) == 1


class Small:
    """A producer with room in its queue for so many messages."""

    room = 1

    def __init__(self, config):
        self.taken = []

    def produce(self, topic, value, key, partition, callback, headers):
        if len(self.taken) >= self.room:
            raise BufferError
        self.taken.append(key)

    def __len__(self):
        return 0

    def poll(self, timeout_seconds):
        pass

    def purge(self, *, blocking):
        pass


@pytest.mark.promise("G4", "P1")
@pytest.mark.parametrize("end", ["withdraw", "give_up"])
async def test_messages_of_a_call_that_has_ended_do_not_leave_when_there_is_room(monkeypatch, end):
    """The relay has given them up: it sends them again, or another relay does."""
    monkeypatch.setattr("postroom.brokers.kafka.session.Producer", Small)
    session = Session({}, written(SETTINGS), LogLines(SETTINGS), lambda _: None)
    producer = session._producer
    ended = PublishCall([make_record(n, key=f"k{n}") for n in range(3)], RecordingReporter())
    other = PublishCall([make_record(9, key="other")], RecordingReporter())
    session.post(ended, [0, 1, 2])
    session.post(other, [0])
    assert producer.taken == ["k0"]
    getattr(session, end)(ended)
    producer.room = 10
    session._go_on()
    assert producer.taken == ["k0", "other"]
    assert set(ended.losses) == {1, 2}
    session.end()
    await session.gone(20)


async def test_a_topic_that_another_relay_has_just_created_is_no_trouble(monkeypatch):
    settings = KafkaSettings(servers="h:1", create_topics=True)
    topics, there = Topics(settings, LogLines(settings)), SimpleNamespace()
    answers = [{"t": KafkaError(KafkaError.TOPIC_ALREADY_EXISTS)}, {"t": there}]

    async def answer(ask):
        return answers.pop(0)

    monkeypatch.setattr(topics, "_answers", answer)
    assert await topics._create(["t"]) == {"t": there}
    await topics.close()
