"""The producer's own queue: full, too small, or given what no message can hold (E-4)."""

from __future__ import annotations

import asyncio

import pytest

from postroom.broker import UNSENT, Broker, BrokerCapabilities, Verdict
from postroom.brokers.kafka import KafkaBroker
from postroom.brokers.kafka.session import Session
from postroom.brokers.kafka.sessions import Caution
from postroom.event import Event
from postroom.observer import Alarm
from postroom.testing.broker_tools import RecordingReporter, make_record
from tests.scenario.kafka_place import first_seen_by_key, make_topic, run, tap
from tests.scenario.place import MemoryPlace, until

KEYS = [f"k{n}" for n in range(20)]


@pytest.fixture
async def make(kafka_url):
    made = []

    async def make(**options):
        broker = KafkaBroker(kafka_url, **options)
        await broker.open()
        made.append(broker)
        return broker

    yield make
    for broker in made:
        await broker.close()


@pytest.fixture
def topic(kafka_url):
    return make_topic(kafka_url, partitions=1)


@pytest.fixture
def producers(monkeypatch):
    """The sessions that are made, each with a producer of its own."""
    made = []
    make = Session.__init__

    def counted(self, *given):
        made.append(self)
        make(self, *given)

    monkeypatch.setattr(Session, "__init__", counted)
    return made


@pytest.mark.server
@pytest.mark.promise("G4")
@pytest.mark.parametrize("delivery", ["idempotent", "transactional"])
async def test_a_full_queue_inverts_no_key_and_needs_no_new_producer(  # E-9, K1
    kafka_url, make, topic, producers, delivery
):
    broker = await make(
        linger_seconds=0, delivery=delivery, config={"queue.buffering.max.messages": 30}
    )
    events = run(topic, 3_000, KEYS, lane=0)
    reporter = RecordingReporter()
    for start in range(0, 3_000, 500):
        await broker.publish(events[start : start + 500], reporter)
    assert {outcome.verdict for _, outcome in reporter.reports} == {Verdict.CONFIRMED}
    seen = await asyncio.to_thread(tap, kafka_url, topic, committed=True)
    written = {key: [r.id for r in events if r.key == key] for key in KEYS}
    assert first_seen_by_key(seen) == written
    assert len(seen) == 3_000
    assert len(producers) == (delivery == "idempotent")


@pytest.mark.server
@pytest.mark.promise("G4", "G7")
@pytest.mark.parametrize("delivery", ["idempotent", "transactional"])
async def test_what_follows_an_event_that_cannot_go_stays_behind_it(
    kafka_url, make, topic, producers, delivery
):
    broker = await make(delivery=delivery)
    events = run(topic, 60, ["bad", "good"], lane=0)
    events[20] = events[20]._replace(headers_json='{"n": 1}')
    reporter = RecordingReporter()
    await broker.publish(events, reporter)
    assert reporter.outcome(events[20]).error == "event.headers must be text, but 'n' is int"
    behind = [r for r in events[21:] if r.key == "bad"]
    assert {reporter.verdict(r) for r in behind} == {Verdict.UNSENT}
    seen = await asyncio.to_thread(tap, kafka_url, topic, committed=True)
    assert first_seen_by_key(seen) == {
        "bad": [r.id for r in events[:20] if r.key == "bad"],
        "good": [r.id for r in events if r.key == "good"],
    }
    assert len(producers) == (delivery == "idempotent")


@pytest.mark.server
@pytest.mark.promise("G7")
@pytest.mark.parametrize("delivery", ["idempotent", "transactional"])
async def test_an_event_that_the_empty_queue_does_not_take_is_told(
    kafka_url, make, topic, delivery
):
    broker = await make(delivery=delivery, config={"queue.buffering.max.kbytes": 100})
    events = run(topic, 3, ["a", "b", "c"])
    events[1] = make_record(9, key="b", topic=topic, lane=events[0].lane, payload=b"x" * 200_000)
    reporter = RecordingReporter()
    await broker.publish(events, reporter)
    outcome = reporter.outcome(events[1])
    assert outcome.verdict is Verdict.MISCONFIGURED
    assert "queue.buffering.max.kbytes" in outcome.error
    for record in (events[0], events[2]):  # a transaction is undone as a whole: then they go alone
        if reporter.verdict(record) is not Verdict.CONFIRMED:
            assert (delivery, reporter.verdict(record)) == ("transactional", Verdict.UNKNOWN)
            await broker.publish_alone(record, reporter)
    assert {m.key for m in await asyncio.to_thread(tap, kafka_url, topic, committed=True)} == {
        "a", "c",
    }  # fmt: skip


@pytest.mark.server
@pytest.mark.promise("G7")
async def test_a_row_that_no_message_can_hold_is_buried_and_the_relay_is_drained(
    kafka_url, topic, producers
):
    """X-H3: it was tried for ever, by a new producer each time."""
    place = MemoryPlace()
    await place.write(*(Event("t", {}, id=f"e{n}", key=f"k{n % 3}", topic=topic) for n in range(9)))
    tables = place.store.data
    spoiled = tables.rows[tables.ids["e4"]]
    spoiled.row = spoiled.row._replace(headers='{"retries": 1}')  # as a trigger might write it
    relay = place.relay(KafkaBroker(kafka_url))
    await relay.drain()
    states = await place.states()
    assert {i for i, state in states.items() if state == "dead"} == {"e4"}
    assert set(states.values()) == {"done", "dead"}
    assert "headers" in (await place.record("e4")).last_error
    assert len(producers) == 1
    await place.close()


class Idle(Broker):
    """A destination that sends nothing, and gives no reason."""

    capabilities = BrokerCapabilities()
    calls = 0

    async def open(self): ...
    async def close(self): ...
    async def health(self): ...

    async def publish(self, batch, reporter):
        self.calls += 1
        for record in batch:
            reporter.report(record, UNSENT)

    async def publish_alone(self, record, reporter):
        await self.publish([record], reporter)


@pytest.mark.promise("G7")
async def test_a_destination_that_never_sends_is_asked_with_pauses(notes):
    place, idle = MemoryPlace(), Idle()
    relay = place.relay(idle, observers=[notes])
    await place.write(Event("t", {}, id="e", key="k"))
    async with relay:
        await until(lambda: len(notes.of(Alarm)) == 3)  # after 0.3 s of pauses
        calls = idle.calls
    assert calls <= 6
    record = await place.record("e")
    assert (record.attempts, bool(record.last_error)) == (0, True)
    await place.close()


# -- what one topic cannot take slows no other (E-8) ----------------------------------------------
@pytest.mark.server
@pytest.mark.promise("P1", "G4")
async def test_a_topic_that_refused_a_batch_slows_no_other(kafka_url, make, topic):
    compacted = make_topic(kafka_url, partitions=1, cleanup_policy="compact")
    broker = await make()
    sessions, reporter = broker._cluster.sessions, RecordingReporter()
    refused = [*run(compacted, 4, ["a", "b"], first=100), make_record(200, topic=compacted)]
    await broker.publish(refused, reporter)
    assert Verdict.UNKNOWN in {reporter.verdict(r) for r in refused}

    others = run(topic, 6, ["c", "d"], first=300)
    both = [make_record(400, key="c", topic=compacted), *others]
    whole = broker.settings.batch_bytes
    assert sessions.share_out(others) == {whole: others}
    assert sessions.share_out(both) == {  # a key stays whole
        0: [r for r in both if r.key == "c"],
        whole: [r for r in both if r.key == "d"],
    }
    await broker.publish(both, reporter)
    assert {reporter.verdict(r) for r in both} == {Verdict.CONFIRMED}
    seen = await asyncio.to_thread(tap, kafka_url, topic)
    assert first_seen_by_key(seen) == {
        key: [r.id for r in others if r.key == key] for key in ("c", "d")
    }


@pytest.mark.server
@pytest.mark.promise("P1")
async def test_a_topic_with_a_small_limit_has_small_batches_and_no_other(kafka_url, make, topic):
    small = make_topic(kafka_url, partitions=1, max_message_bytes=2_000)
    broker = await make()
    reporter = RecordingReporter()
    little, large = run(small, 60, KEYS, first=100), run(topic, 60, KEYS, first=200)
    large = [r._replace(key=f"other-{r.key}", key_hash=b"o" + r.key_hash[1:]) for r in large]
    await broker.publish([*little, *large], reporter)
    assert {reporter.verdict(r) for r in [*little, *large]} == {Verdict.CONFIRMED}
    assert broker._cluster.sessions.share_out([*little, *large]) == {
        1_024: little,
        broker.settings.batch_bytes: large,
    }


def test_caution_grows_while_a_topic_goes_on_refusing():
    first = Caution().again(1_000.0)
    assert first == (1_005.0, 5.0)
    assert first.again(1_004.0) == first  # it was sent before the first refusal was known
    second = first.again(1_010.0)
    assert second == (1_020.0, 10.0)
    assert second.again(1_030.0).again(1_060.0).again(1_150.0).seconds == 60.0
    assert second.again(2_000.0) == (2_005.0, 5.0)
