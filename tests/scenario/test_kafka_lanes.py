"""Transactions on a real Kafka: all or nothing, and a zombie is fenced by the broker (K6)."""

from __future__ import annotations

import asyncio
import os

import pytest

from postroom.broker import Verdict
from postroom.brokers.kafka import KafkaBroker
from postroom.brokers.kafka import lane_producers as lanes_module
from postroom.testing.broker_tools import RecordingReporter, make_record
from tests.scenario.kafka_place import make_topic, tap

PATIENCE = 90.0


@pytest.fixture
async def relay_one(kafka_url):
    async with _opened(kafka_url) as broker:
        yield broker


@pytest.fixture
async def relay_two(kafka_url):
    async with _opened(kafka_url) as broker:
        yield broker


class _opened:
    def __init__(self, url, **options):
        self._broker = KafkaBroker(url, delivery="transactional", **options)

    async def __aenter__(self):
        await self._broker.open()
        return self._broker

    async def __aexit__(self, *_):
        await self._broker.close()


@pytest.fixture
def reporter(kafka_url):
    made = RecordingReporter()
    made.outbox_id = f"outbox-{id(made)}"
    return made


def in_lane(lane, topic, numbers, **facts):
    """Records of one lane, whatever their keys."""
    return [make_record(n, key=f"k{n}", topic=topic, **facts)._replace(lane=lane) for n in numbers]


@pytest.mark.promise("K6", "G5")
async def test_a_zombie_is_fenced(kafka_url, relay_one, relay_two, reporter):
    topic = make_topic(kafka_url)
    await relay_one.publish(in_lane(7, topic, [1, 2]), reporter)
    await relay_two.publish(in_lane(7, topic, [3, 4]), reporter)  # it has taken the lane over
    zombie = in_lane(7, topic, [5, 6])
    await relay_one.publish(zombie, reporter)  # and the first has not noticed
    assert [reporter.verdict(r) for r in zombie] == [Verdict.UNKNOWN] * 2
    assert "another relay serves this lane" in reporter.outcome(zombie[0]).error
    await relay_two.publish(in_lane(7, topic, [7]), reporter)
    assert {m.id for m in tap(kafka_url, topic, committed=True)} == {
        "event-1", "event-2", "event-3", "event-4", "event-7",
    }  # fmt: skip


@pytest.mark.promise("K6")
async def test_a_zombie_in_the_middle_of_its_transaction_is_undone(
    kafka_url, relay_one, relay_two, reporter, monkeypatch
):
    topic = make_topic(kafka_url)
    await relay_one.publish(in_lane(7, topic, [1]), reporter)
    loop, reached, go_on = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    repeat = lanes_module._repeat

    def held(step, deadline):
        """The commit of the zombie comes to stand still; its messages are at the broker."""
        if step.__name__ == "commit_transaction" and not reached.is_set():
            assert step.__self__.flush(10) == 0
            loop.call_soon_threadsafe(reached.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(PATIENCE)
        repeat(step, deadline)

    monkeypatch.setattr(lanes_module, "_repeat", held)
    zombie = in_lane(7, topic, [2, 3])
    publishing = asyncio.create_task(relay_one.publish(zombie, reporter))
    async with asyncio.timeout(PATIENCE):
        await reached.wait()
        await relay_two.publish(in_lane(7, topic, [4]), reporter)
        go_on.set()
        await publishing
    assert [reporter.verdict(r) for r in zombie] == [Verdict.UNKNOWN] * 2
    assert {m.id for m in tap(kafka_url, topic)} == {f"event-{n}" for n in (1, 2, 3, 4)}
    committed = {m.id for m in tap(kafka_url, topic, committed=True)}
    assert committed == {"event-1", "event-4"}  # what a reader of committed messages sees


@pytest.mark.promise("K6")
async def test_other_lanes_and_other_outboxes_are_not_fenced(
    kafka_url, relay_one, relay_two, reporter
):
    topic = make_topic(kafka_url)
    elsewhere = RecordingReporter()
    elsewhere.outbox_id = f"{reporter.outbox_id}-other"
    for n in range(3):
        await relay_one.publish(in_lane(1, topic, [10 + n]), reporter)
        await relay_two.publish(in_lane(2, topic, [20 + n]), reporter)
        await relay_two.publish(in_lane(1, topic, [30 + n]), elsewhere)
    assert {o.verdict for _, o in reporter.reports + elsewhere.reports} == {Verdict.CONFIRMED}


@pytest.mark.promise("K6", "G7")
async def test_a_lane_goes_whole_or_not_at_all(kafka_url, relay_one, reporter):
    """A compacted topic takes no message without a key: the transaction with one is undone."""
    topic = make_topic(kafka_url, partitions=1, cleanup_policy="compact")
    good, bad = in_lane(1, topic, range(1, 21)), in_lane(2, topic, range(21, 41))
    culprit = bad[10] = make_record(31, topic=topic)._replace(lane=2)
    await relay_one.publish([*good, *bad], reporter)
    assert {reporter.verdict(r) for r in good} == {Verdict.CONFIRMED}
    assert {reporter.verdict(r) for r in bad} == {Verdict.UNKNOWN}
    assert {m.id for m in tap(kafka_url, topic, committed=True)} == {r.id for r in good}

    alone = RecordingReporter()
    alone.outbox_id = reporter.outbox_id
    for record in bad:
        await relay_one.publish_alone(record, alone)
    assert alone.verdict(culprit) is Verdict.REJECTED
    lost = {r.id: alone.outcome(r) for r in bad if alone.verdict(r) is not Verdict.CONFIRMED}
    assert lost.keys() == {culprit.id}, lost


async def test_a_key_that_goes_on_in_another_topic_is_one_transaction(
    kafka_url, relay_one, reporter
):
    first, second = make_topic(kafka_url), make_topic(kafka_url)
    batch = [make_record(n, key="k", topic=[first, second][n % 2]) for n in range(10)]
    await relay_one.publish(batch, reporter)
    assert {reporter.verdict(r) for r in batch} == {Verdict.CONFIRMED}
    assert len(tap(kafka_url, first, second, committed=True)) == 10


async def test_producers_of_lanes_are_bounded(kafka_url, relay_one, reporter, monkeypatch):
    monkeypatch.setattr(lanes_module, "MOST_LANES", 3)
    topic = make_topic(kafka_url)
    for lane in (1, 2, 3, 4, 5, 1, 2):
        n = len(reporter.reports)
        await relay_one.publish(in_lane(lane, topic, [n]), reporter)
        assert len(relay_one._cluster.lanes._producers) <= 3
    assert {o.verdict for _, o in reporter.reports} == {Verdict.CONFIRMED}


@pytest.mark.promise("K2", "K6")
async def test_a_batch_of_a_lane_never_outgrows_the_topic(kafka_url, relay_one, reporter):
    wide = make_topic(kafka_url, partitions=1)
    narrow = make_topic(kafka_url, partitions=1, max_message_bytes=20_000)
    for numbers, topic in ((range(100), wide), (range(100, 200), narrow)):  # the lane stays open
        batch = [r._replace(payload=os.urandom(1_000)) for r in in_lane(1, topic, numbers)]
        await relay_one.publish(batch, reporter)
        assert [reporter.verdict(r) for r in batch] == [Verdict.CONFIRMED] * 100
        assert len(tap(kafka_url, topic, committed=True)) == 100
