"""The memory broker's faults, which other tests rely on."""

from __future__ import annotations

import asyncio

import pytest

from postroom.broker import Outcome, Verdict
from postroom.brokers.memory import MemoryBroker, Message, NullBroker
from postroom.errors import ConfigError
from postroom.testing.desk import RecordingDesk, make_record


@pytest.fixture
def desk():
    return RecordingDesk()


async def test_messages_and_topics_show_what_arrived_in_order(desk):
    broker = MemoryBroker()
    one, two, three = (make_record(n, topic=t) for n, t in ((1, "a"), (2, "b"), (3, "a")))
    await broker.publish([one, two], desk)
    await broker.publish([three, one], desk)
    assert broker.messages == [
        Message("a", one),
        Message("b", two),
        Message("a", three),
        Message("a", one),
    ]
    assert broker.topics == {"a": [one, three, one], "b": [two]}


async def test_a_script_decides_record_by_record(desk):
    broker = MemoryBroker()
    broker.script(lambda r: Outcome(Verdict.REJECTED, "no") if r.id == "event-1" else None)
    one, two = make_record(1), make_record(2)
    await broker.publish([one, two], desk)
    assert desk.outcome(one) == Outcome(Verdict.REJECTED, "no")
    assert desk.verdict(two) is Verdict.CONFIRMED
    broker.script(None)
    await broker.publish([one], again := RecordingDesk())
    assert again.verdict(one) is Verdict.CONFIRMED
    assert [m.record.id for m in broker.messages] == ["event-2", "event-1"]


async def test_a_lost_reply_arrives_and_is_unknown(desk):
    broker = MemoryBroker()
    broker.lose_replies(lambda r: r.id == "event-1")
    one, follower, other = make_record(1, key="k"), make_record(2, key="k"), make_record(3)
    await broker.publish([one, follower, other], desk)
    assert [desk.verdict(r) for r in (one, follower, other)] == [
        Verdict.UNKNOWN,
        Verdict.UNSENT,
        Verdict.CONFIRMED,
    ]
    assert {m.record.id for m in broker.messages} == {"event-1", "event-3"}
    broker.keep_replies()
    await broker.publish_alone(one, again := RecordingDesk())
    assert again.verdict(one) is Verdict.CONFIRMED


async def test_down_and_back(desk):
    broker = MemoryBroker()
    broker.go_down("no route")
    await broker.publish([make_record()], desk)
    assert desk.reports[0][1] == Outcome(Verdict.OUTAGE, "no route")
    with pytest.raises(ConnectionError, match="no route"):
        await broker.health()
    broker.come_back()
    await broker.health()
    await broker.publish([make_record()], again := RecordingDesk())
    assert again.ids(Verdict.CONFIRMED) == ["event-1"]


async def test_closed_is_an_outage(desk):
    broker = MemoryBroker()
    await broker.close()
    await broker.publish([make_record()], desk)
    assert desk.reports[0][1].verdict is Verdict.OUTAGE
    with pytest.raises(ConnectionError, match="closed"):
        await broker.health()


async def test_a_hold_stops_only_what_it_matches_until_released(desk):
    broker = MemoryBroker()
    hold = broker.hold(lambda r: r.key == "held")
    held, free = make_record(1, key="held"), make_record(2, key="free")
    publishing = asyncio.create_task(broker.publish([held, free], desk))
    async with asyncio.timeout(20):
        await hold.reached.wait()
        await desk.heard([free])
        assert [m.record.id for m in broker.messages] == ["event-2"]
        hold.release()
        await publishing
    assert [m.record.id for m in broker.messages] == ["event-2", "event-1"]
    await broker.publish([make_record(3, key="held")], desk)
    assert len(broker.messages) == 3


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_makes_no_sense(limit):
    with pytest.raises(ConfigError, match="max_bytes must be 1 or more"):
        MemoryBroker(max_bytes=limit)


async def test_the_null_broker_confirms_and_counts(desk):
    broker = NullBroker()
    await broker.open()
    await broker.publish([make_record(1), make_record(2)], desk)
    await broker.publish_alone(make_record(3), desk)
    await broker.health()
    await broker.close()
    assert broker.confirmed == 3
    assert desk.ids(Verdict.CONFIRMED) == ["event-1", "event-2", "event-3"]
