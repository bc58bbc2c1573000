"""The producer of a lane: what is begun is committed or undone, never left open (K6)."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from postroom.brokers.kafka import lane_producers
from postroom.brokers.kafka.lane_producers import LaneProducer
from postroom.brokers.kafka.message import Message

MESSAGES = [Message("t", b"1", "k", []), Message("t", b"2", "k", [])]


class Producer:
    """Notes what is asked of it; one step fails."""

    fails_at, error = "", KafkaError(KafkaError._FAIL, "no")

    def __init__(self, config):
        self.steps = made = []
        type(self).made.append(made)

    def __len__(self):
        return 0

    def __getattr__(self, name):
        def step(*arguments, **options):
            self.steps.append(name)
            if name == self.fails_at:
                raise KafkaException(self.error)

        return step


@pytest.fixture
def producers(monkeypatch):
    Producer.made, Producer.fails_at = [], ""
    monkeypatch.setattr(lane_producers, "Producer", Producer)
    return Producer


def send(lane):
    return lane.send(MESSAGES, 1_000, 0.1)


@pytest.mark.promise("K6")
def test_a_batch_is_one_transaction(producers):
    assert send(LaneProducer({})) is None
    (steps,) = producers.made
    assert steps == [
        "init_transactions", "begin_transaction", "produce", "produce", "commit_transaction",
    ]  # fmt: skip


@pytest.mark.promise("K6")
@pytest.mark.parametrize("step", ["produce", "commit_transaction"])
def test_what_fails_is_undone_at_once_and_the_next_one_begins_afresh(producers, step):
    """Readers of what is committed wait behind an open transaction until its time is over."""
    producers.fails_at, lane = step, LaneProducer({})
    losses = send(lane)
    assert [loss.error for loss in losses] == ["no", "no"]
    assert all(loss.left for loss in losses)
    steps = producers.made[0]
    assert steps[steps.index(step) + 1 :] == ["purge", "abort_transaction", "poll"]
    producers.fails_at = ""
    assert send(lane) is None
    assert len(producers.made) == 2


class Clock:
    """A time that passes only while somebody sleeps."""

    def __init__(self, monkeypatch):
        self.now, self.pauses = 0.0, []
        monkeypatch.setattr(lane_producers, "monotonic", lambda: self.now)
        monkeypatch.setattr(lane_producers, "sleep", self.sleep)

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds
        assert len(self.pauses) < 100


@pytest.mark.promise("F2", "K6")
@pytest.mark.parametrize("step", ["init_transactions", "commit_transaction"])
def test_a_step_that_may_be_repeated_is_repeated_with_growing_pauses(producers, monkeypatch, step):
    clock = Clock(monkeypatch)
    producers.fails_at = step
    monkeypatch.setattr(
        producers, "error", KafkaError(KafkaError._FAIL, "try again", retriable=True)
    )
    losses = LaneProducer({}).send(MESSAGES, 1_000, 10.0)
    assert [loss.error for loss in losses] == ["try again", "try again"]
    assert clock.pauses[:7] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0])
    assert sum(clock.pauses) == pytest.approx(10.0)
    assert producers.made[0].count(step) == len(clock.pauses) + 1 == 11


@pytest.mark.promise("K6")
def test_what_could_not_be_begun_has_not_left(producers):
    producers.fails_at = "init_transactions"
    losses = send(LaneProducer({}))
    assert [(loss.error, loss.left) for loss in losses] == [("no", False)] * 2
