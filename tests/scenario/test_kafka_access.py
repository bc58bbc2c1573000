"""A guarded Kafka: TLS and passwords pass through, permissions are told apart from outages."""

from __future__ import annotations

import logging
import os

import pytest

from postroom.broker import Verdict
from postroom.brokers.kafka import KafkaBroker
from postroom.brokers.outages import UnreachableError
from postroom.event import Event
from postroom.observer import Attempt
from postroom.registry import load_broker
from postroom.testing.broker_tools import RecordingReporter, make_record
from tests.scenario.kafka_guarded import GuardedKafka
from tests.scenario.kafka_place import first_seen_by_key, make_topic, tap
from tests.scenario.place import SqlitePlace, until

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server():
    with GuardedKafka() as server:
        yield server


@pytest.fixture
def reporter():
    return RecordingReporter()


@pytest.fixture
async def enter(server):
    """Open the door as a user."""
    made = []

    async def enter(user, **options):
        broker = load_broker(server.guarded_url(user, **options))
        await broker.open()
        made.append(broker)
        return broker

    yield enter
    for broker in made:
        await broker.close()


async def test_tls_and_a_password_from_the_url(server, enter, reporter):
    topic = make_topic(server.url)
    server.allow("relay", topic, "WRITE", "DESCRIBE_CONFIGS")
    broker = await enter("relay")
    await broker.health()
    batch = [make_record(n, key="k", topic=topic) for n in range(10)]
    await broker.publish(batch, reporter)
    await broker.publish_alone(make_record(10, key="k", topic=topic), reporter)
    assert [o.verdict for _, o in reporter.reports] == [Verdict.CONFIRMED] * 11
    assert [m.id for m in tap(server.url, topic)] == [f"event-{n}" for n in range(11)]


@pytest.mark.parametrize("debug", [{}, {"debug": "security,conf,broker"}], ids=["", "debug"])
async def test_a_wrong_password_is_an_outage_and_no_password_is_ever_shown(
    server, reporter, caplog, capfd, debug
):
    caplog.set_level(logging.DEBUG)
    login = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "relay",
        "sasl.password": "wr0ng-passw0rd",
        "ssl.ca.location": str(server.ca),
    }
    broker = KafkaBroker(
        f"kafka://127.0.0.1:{server.guarded_port}", config=login | debug, answer_seconds=1
    )
    await broker.open()
    record = make_record(1, topic=make_topic(server.url))
    await broker.publish([record], reporter)
    outcome = reporter.outcome(record)
    assert outcome.verdict is Verdict.OUTAGE
    assert "uthentication" in outcome.error
    with pytest.raises(UnreachableError) as raised:
        await broker.health()
    await broker.close()
    said = [caplog.text, str(raised.value), repr(broker), outcome.error]
    for text in said:
        assert "wr0ng-passw0rd" not in text
    assert "sasl.password': '***'" in repr(broker)
    assert ("Client configuration" in caplog.text) == bool(debug)
    assert capfd.readouterr() == ("", "")


@pytest.mark.promise("P2")
async def test_no_permission_to_write_is_misconfigured_for_that_topic_only(server, enter, reporter):
    mine, theirs, unseen = (make_topic(server.url) for _ in range(3))
    server.allow("reader", mine, "WRITE")
    server.allow("reader", theirs, "READ")
    broker = await enter("reader")
    batch = [
        make_record(1, key="a", topic=mine),
        make_record(2, key="b", topic=theirs),
        make_record(3, key="b", topic=mine),
        make_record(4, key="c", topic=unseen),
    ]
    await broker.publish(batch, reporter)
    verdicts = [reporter.verdict(r) for r in batch]
    assert verdicts[1:] == [Verdict.MISCONFIGURED, Verdict.UNSENT, Verdict.MISCONFIGURED]
    assert "uthorization failed" in reporter.outcome(batch[1]).error
    # From now on it is known, and hurts nobody else.
    more, again = (
        RecordingReporter(),
        [make_record(n, key=f"k{n}", topic=theirs if n % 2 else mine) for n in range(10, 20)],
    )
    await broker.publish(again, more)
    assert [more.verdict(r) for r in again] == [Verdict.CONFIRMED, Verdict.MISCONFIGURED] * 5
    alone = RecordingReporter()
    await broker.publish_alone(batch[1], alone)
    assert alone.verdict(batch[1]) is Verdict.MISCONFIGURED


@pytest.mark.promise("G4", "G7", "K3", "P3")
async def test_one_too_large_among_hundreds_where_the_limit_cannot_be_seen(server, tmp_path, notes):
    """The hard case: nobody may look at the topic's settings, so batches outgrow its limit."""
    topic = make_topic(server.url, partitions=2, max_message_bytes=20_000)
    server.allow("blind", topic, "WRITE", "DESCRIBE")
    place = SqlitePlace(tmp_path / "app.db")
    await place.open()
    keys = ["a", "b", "c"]
    events = [
        Event("made", os.urandom(400), id=f"{keys[n % 3]}/{n}", key=keys[n % 3], topic=topic)
        for n in range(600)
    ]
    culprit = events[301] = Event(
        "made", os.urandom(30_000), id="culprit", key=events[301].key, topic=topic
    )
    await place.write(*events)
    try:
        url = server.guarded_url("blind")
        async with place.relay(load_broker(url), observers=[notes], batch_size=300) as relay:

            async def all_over():
                counts = (await place.store.stats()).counts
                return counts.get("done", 0) + counts.get("dead", 0) == 600

            await until(all_over, 120)
            assert relay.counts.dead == 1
        dead = await place.record("culprit")
        assert (dead.state, dead.attempts) == ("dead", 1)
        assert "too large" in dead.last_error
        others = {
            e.key: [o.id for o in events if o.key == e.key and o is not culprit] for e in events
        }
        seen = tap(server.url, topic)
        assert first_seen_by_key(seen) == others
        # Not one by one up to the middle of its key: after the first refusal it is found in one go.
        assert sum(fact.verdict == "unknown" for fact in notes.of(Attempt)) <= 20
        attempts = {(await place.record(e.id)).attempts for e in events if e is not culprit}
        assert attempts == {0}
    finally:
        await place.close()
