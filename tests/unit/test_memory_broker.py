"""The memory broker's faults, which other tests rely on."""

from __future__ import annotations

import asyncio

import pytest

from postroom.broker import Outcome, Verdict
from postroom.brokers.memory import MemoryBroker, Message, NullBroker
from postroom.errors import ConfigError
from postroom.testing.broker_tools import RecordingReporter, make_record


@pytest.fixture
def reporter():
    return RecordingReporter()


async def test_messages_and_topics_show_what_arrived_in_order(reporter):
    broker = MemoryBroker()
    one, two, three = (make_record(n, topic=t) for n, t in ((1, "a"), (2, "b"), (3, "a")))
    await broker.publish([one, two], reporter)
    await broker.publish([three, one], reporter)
    assert broker.messages == [
        Message("a", one),
        Message("b", two),
        Message("a", three),
        Message("a", one),
    ]
    assert broker.topics == {"a": [one, three, one], "b": [two]}


async def test_a_script_decides_record_by_record(reporter):
    broker = MemoryBroker()
    broker.script(lambda r: Outcome(Verdict.REJECTED, "no") if r.id == "event-1" else None)
    one, two = make_record(1), make_record(2)
    await broker.publish([one, two], reporter)
    assert reporter.outcome(one) == Outcome(Verdict.REJECTED, "no")
    assert reporter.verdict(two) is Verdict.CONFIRMED
    broker.script(None)
    await broker.publish([one], again := RecordingReporter())
    assert again.verdict(one) is Verdict.CONFIRMED
    assert [m.record.id for m in broker.messages] == ["event-2", "event-1"]


async def test_a_lost_reply_arrives_and_is_unknown(reporter):
    broker = MemoryBroker()
    broker.lose_replies(lambda r: r.id == "event-1")
    one, follower, other = make_record(1, key="k"), make_record(2, key="k"), make_record(3)
    await broker.publish([one, follower, other], reporter)
    assert [reporter.verdict(r) for r in (one, follower, other)] == [
        Verdict.UNKNOWN,
        Verdict.UNSENT,
        Verdict.CONFIRMED,
    ]
    assert {m.record.id for m in broker.messages} == {"event-1", "event-3"}
    broker.keep_replies()
    await broker.publish_alone(one, again := RecordingReporter())
    assert again.verdict(one) is Verdict.CONFIRMED


async def test_down_and_back(reporter):
    broker = MemoryBroker()
    broker.go_down("no route")
    await broker.publish([make_record()], reporter)
    assert reporter.reports[0][1] == Outcome(Verdict.OUTAGE, "no route")
    with pytest.raises(ConnectionError, match="no route"):
        await broker.health()
    broker.come_back()
    await broker.health()
    await broker.publish([make_record()], again := RecordingReporter())
    assert again.ids(Verdict.CONFIRMED) == ["event-1"]


async def test_closed_is_an_outage(reporter):
    broker = MemoryBroker()
    await broker.close()
    await broker.publish([make_record()], reporter)
    assert reporter.reports[0][1].verdict is Verdict.OUTAGE
    with pytest.raises(ConnectionError, match="closed"):
        await broker.health()


async def test_a_hold_stops_only_what_it_matches_until_released(reporter):
    broker = MemoryBroker()
    hold = broker.hold(lambda r: r.key == "held")
    held, free = make_record(1, key="held"), make_record(2, key="free")
    publishing = asyncio.create_task(broker.publish([held, free], reporter))
    async with asyncio.timeout(20):
        await hold.reached.wait()
        await reporter.heard([free])
        assert [m.record.id for m in broker.messages] == ["event-2"]
        hold.release()
        await publishing
    assert [m.record.id for m in broker.messages] == ["event-2", "event-1"]
    await broker.publish([make_record(3, key="held")], reporter)
    assert len(broker.messages) == 3


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_makes_no_sense(limit):
    with pytest.raises(ConfigError, match="max_bytes must be 1 or more"):
        MemoryBroker(max_bytes=limit)


async def test_the_null_broker_confirms_and_counts(reporter):
    broker = NullBroker()
    await broker.open()
    await broker.publish([make_record(1), make_record(2)], reporter)
    await broker.publish_alone(make_record(3), reporter)
    await broker.health()
    await broker.close()
    assert broker.confirmed == 3
    assert reporter.ids(Verdict.CONFIRMED) == ["event-1", "event-2", "event-3"]
