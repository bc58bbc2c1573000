"""One call of publish: which outcome each record gets, whatever comes back and in which order."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from postroom.broker import Outcome, Verdict
from postroom.brokers.kafka import verdicts
from postroom.brokers.kafka.publish_call import PublishCall
from postroom.brokers.kafka.verdicts import NEVER_LEFT, Loss
from postroom.testing.broker_tools import RecordingReporter, make_record

PURGED = Loss(KafkaError._PURGE_QUEUE, "purged")
IN_FLIGHT = Loss(KafkaError._PURGE_INFLIGHT, "purged in flight")
TOO_LARGE = Loss(KafkaError.MSG_SIZE_TOO_LARGE, "too large")


@pytest.fixture
def reporter():
    return RecordingReporter()


def batch(text):
    """`a1 b2`: a record of key a to topic 1, one of key b to topic 2."""
    return [
        make_record(i, id=f"{i}:{word}", key=word[0], topic=word[1:])
        for i, word in enumerate(text.split())
    ]


def topic_of(record):
    return record.topic


def outcomes(reporter):
    return [(r.id.partition(":")[0], o.verdict.value) for r, o in reporter.reports]


async def test_one_topic_goes_at_once(reporter):
    call = PublishCall(batch("a1 b1 a1"), reporter)
    assert list(call.plan(None, None)) == [0, 1, 2]
    assert not call.accounted.done()
    assert call.confirmed([0, 1, 2]) == []
    assert call.accounted.done()
    assert outcomes(reporter) == [("0", "confirmed"), ("1", "confirmed"), ("2", "confirmed")]


@pytest.mark.promise("G4")
async def test_a_key_in_another_topic_waits_for_the_part_before(reporter):
    call = PublishCall(batch("a1 a1 a2 b2 a2 a1"), reporter)
    assert call.plan(topic_of, None) == [0, 1, 3]
    assert call.confirmed([0]) == []
    assert call.confirmed([1, 3]) == [2, 4]
    assert call.confirmed([2]) == []
    assert call.confirmed([4]) == [5]
    assert not call.accounted.done()
    call.confirmed([5])
    assert call.accounted.done()


@pytest.mark.promise("G4")
async def test_what_waits_behind_a_lost_part_never_leaves(reporter):
    call = PublishCall(batch("a1 a2 a1 b1"), reporter)
    assert call.plan(topic_of, None) == [0, 3]
    call.lose(0, PURGED)
    call.confirmed([3])
    assert call.accounted.done()
    call.decide(lambda _, loss: verdicts.in_a_batch(loss))
    assert outcomes(reporter) == [
        ("3", "confirmed"),
        ("0", "unknown"),
        ("1", "unsent"),
        ("2", "unsent"),
    ]


@pytest.mark.promise("P1", "P2")
async def test_what_is_refused_stops_its_key_and_the_part_before_it_goes(reporter):
    call = PublishCall(batch("a1 a9 a1 b1 c9"), reporter)
    refused = Outcome(Verdict.MISCONFIGURED, "no topic 9")
    first = call.plan(topic_of, lambda r: refused if r.topic == "9" else None)
    assert first == [0, 3]
    assert outcomes(reporter) == [("1", "misconfigured"), ("2", "unsent"), ("4", "misconfigured")]
    assert call.stopped == set()
    call.confirmed([0, 3])
    assert call.accounted.done()


async def test_all_refused_is_accounted_at_once(reporter):
    call = PublishCall(batch("a9 b9"), reporter)
    assert call.plan(None, lambda _: Outcome(Verdict.MISCONFIGURED, "x")) == []
    assert call.accounted.done()


async def test_the_first_of_a_key_tells_why_whichever_report_came_first(reporter):
    """A purge tells of the queue first, and of what was in flight, which is older, later."""
    call = PublishCall(batch("a1 a1 b1 a1"), reporter)
    call.plan(None, None)
    call.lose(1, PURGED)
    call.lose(3, PURGED)
    call.lose(2, PURGED)
    assert not call.accounted.done()
    call.lose(0, IN_FLIGHT)
    assert call.accounted.done()
    call.decide(lambda _, loss: verdicts.in_a_batch(loss, "nobody answers"))
    assert outcomes(reporter) == [
        ("0", "unknown"),
        ("1", "unknown"),
        ("2", "outage"),
        ("3", "unknown"),
    ]


async def test_nothing_of_a_lost_key_is_sent(reporter):
    call = PublishCall(batch("a1 a1 b1"), reporter)
    call.plan(None, None)
    call.lose(0, Loss(KafkaError._QUEUE_FULL, "full", left=False))
    assert call.stopped == {call.records[1].key_hash}


@pytest.mark.promise("K3")
async def test_reports_that_never_come_are_unknown(reporter):
    call = PublishCall(batch("a1 b1 b2"), reporter)
    call.plan(topic_of, None)
    call.confirmed([0])
    call.close()
    assert call.accounted.done()
    call.decide(lambda _, loss: verdicts.in_a_batch(loss))
    assert outcomes(reporter) == [("0", "confirmed"), ("1", "unknown"), ("2", "unsent")]


async def test_a_second_report_of_the_same_record_is_nothing(reporter):
    call = PublishCall(batch("a1"), reporter)
    call.plan(None, None)
    call.confirmed([0])
    call.lose(0, PURGED)
    call.close()
    call.decide(lambda _, loss: verdicts.in_a_batch(loss))
    assert outcomes(reporter) == [("0", "confirmed")]


async def test_an_abandoned_call_reports_nothing(reporter):
    call = PublishCall(batch("a1 b1 b2"), reporter)
    call.plan(topic_of, None)
    call.abandon()
    assert call.confirmed([0, 1]) == []
    call.lose(1, PURGED)
    call.close()
    call.decide(lambda _, loss: verdicts.in_a_batch(loss))
    assert reporter.reports == []


# -- verdicts ---------------------------------------------------------------------------------
MISSING = Loss(KafkaError._UNKNOWN_TOPIC, "no such topic")
FORBIDDEN = Loss(KafkaError.TOPIC_AUTHORIZATION_FAILED, "not allowed")
LOCAL = Loss(KafkaError._FAIL, "no text", left=False)


@pytest.mark.promise("P2", "P3", "K3")
@pytest.mark.parametrize(
    ("loss", "away", "unavailable_partitions", "together", "alone"),
    [
        (TOO_LARGE, "", "", "unknown", "rejected"),
        (TOO_LARGE, "away", "", "unknown", "rejected"),
        (Loss(KafkaError.INVALID_RECORD, "bad"), "", "", "unknown", "rejected"),
        (MISSING, "", "", "misconfigured", "misconfigured"),
        (FORBIDDEN, "", "", "misconfigured", "misconfigured"),
        (PURGED, "", "", "unknown", "unknown"),
        (PURGED, "away", "", "outage", "outage"),
        (IN_FLIGHT, "away", "", "unknown", "outage"),
        (IN_FLIGHT, "", "no leader", "misconfigured", "misconfigured"),
        (NEVER_LEFT, "", "", "unsent", "unsent"),
        (NEVER_LEFT, "away", "", "outage", "outage"),
        (LOCAL, "", "", "unsent", "unsent"),
    ],
)
def test_what_an_error_means(loss, away, unavailable_partitions, together, alone):
    assert verdicts.in_a_batch(loss, away, unavailable_partitions).verdict.value == together
    assert verdicts.alone(loss, away, unavailable_partitions).verdict.value == alone
