"""A relay from SQLite to a real Kafka: bad events and bad topics hurt nobody else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from postroom.brokers.kafka import KafkaBroker
from postroom.event import Event
from postroom.observer import Alarm, Attempt
from tests.scenario.kafka_place import copies, first_seen_by_key, make_topic, tap
from tests.scenario.place import SqlitePlace, until

PATIENCE = 90.0


@pytest.fixture
async def place(tmp_path):
    made = SqlitePlace(tmp_path / "app.db")
    await made.open()
    yield made
    await made.close()


def over(place, count):
    async def check():
        counts = (await place.store.stats()).counts
        return counts.get("done", 0) + counts.get("dead", 0) == count

    return check


@pytest.mark.req("S1.3", "S2.4", "S4.6")
@pytest.mark.promise("G2", "G4", "G7", "K2", "K3", "P3")
async def test_one_too_large_among_hundreds(kafka_url, place, notes):
    topic = make_topic(kafka_url, partitions=2, max_message_bytes=20_000)
    keys = ["a", "b", "c"]
    events = [
        Event("made", {"n": n}, id=f"{keys[n % 3]}/{n}", key=keys[n % 3], topic=topic)
        for n in range(600)
    ]
    events[301] = Event("made", os.urandom(30_000), id="culprit", key="b", topic=topic)
    await place.write(*events)
    async with place.relay(KafkaBroker(kafka_url), observers=[notes]) as relay:
        await until(over(place, 600), PATIENCE)
        assert (relay.counts.done, relay.counts.dead) == (599, 1)
    dead = await place.record("culprit")
    assert (dead.state, dead.attempts) == ("dead", 1)
    assert "Message size too large" in dead.last_error
    seen = tap(kafka_url, topic)
    assert first_seen_by_key(seen) == {
        "a": [f"a/{n}" for n in range(0, 600, 3)],
        "b": [f"b/{n}" for n in range(1, 600, 3) if n != 301],
        "c": [f"c/{n}" for n in range(2, 600, 3)],
    }
    assert copies(seen) == {}  # the limit was known: the culprit never shared a batch
    assert {f.id for f in notes.of(Attempt)} == {"culprit"}


@pytest.mark.promise("G4", "G7", "K3", "P3")
async def test_a_refused_batch_of_hundreds(kafka_url, place, notes):
    """The broker refuses for a reason nobody can know before; the culprit is in mid-key."""
    topic = make_topic(kafka_url, partitions=1, cleanup_policy="compact")
    events = [
        Event("made", {"n": n}, id=f"{'abc'[n % 3]}/{n}", key="abc"[n % 3], topic=topic)
        for n in range(300)
    ]
    events[100] = Event("made", {}, id="culprit", topic=topic)  # no key: not for a compacted topic
    events[200] = Event("made", {}, id="another", topic=topic)
    await place.write(*events)
    async with place.relay(KafkaBroker(kafka_url), observers=[notes]):
        await until(over(place, 300), PATIENCE)
    for event_id in ("culprit", "another"):
        dead = await place.record(event_id)
        assert (dead.state, dead.attempts) == ("dead", 1)
    seen = tap(kafka_url, topic)
    assert first_seen_by_key(seen) == {
        "a": [f"a/{n}" for n in range(0, 300, 3)],
        "b": [f"b/{n}" for n in range(1, 300, 3) if n != 100],
        "c": [f"c/{n}" for n in range(2, 300, 3) if n != 200],
    }
    assert {f.id for f in notes.of(Attempt) if f.attempts} == {"culprit", "another"}


@pytest.mark.promise("K5", "P2", "G7")
async def test_an_unknown_topic_waits_with_an_alarm_and_the_others_go_on(kafka_url, place, notes):
    topic = make_topic(kafka_url)
    missing = f"{topic}-missing"
    await place.write(
        *(Event("made", id=f"w{n}", key=f"waits{n % 3}", topic=missing) for n in range(30)),
        *(Event("made", id=f"g{n}", key=f"goes{n % 3}", topic=topic) for n in range(30)),
    )
    async with place.relay(KafkaBroker(kafka_url), observers=[notes]):
        await until(over(place, 30), PATIENCE)
        assert len(tap(kafka_url, topic)) == 30
        assert any(missing in fact.error for fact in notes.of(Alarm))
        make_topic(kafka_url, name=missing)  # somebody sets it right
        await until(over(place, 60), PATIENCE)
    assert first_seen_by_key(tap(kafka_url, missing)) == {
        f"waits{k}": [f"w{n}" for n in range(k, 30, 3)] for k in range(3)
    }
    attempts = {(await place.record(f"w{n}")).attempts for n in range(30)}
    assert attempts == {0}


@pytest.mark.req("S1.2", "S4.6")
def test_the_command_line_sends_to_kafka(kafka_url, tmp_path):
    """`postroom run` with nothing but URLs, as its own process."""
    topic = make_topic(kafka_url)
    program = f"""
import asyncio, sqlite3
from postroom import Event, Relay, SyncOutbox, migrate

asyncio.run(migrate("sqlite:///app.db"))
conn = sqlite3.connect("app.db")
outbox = SyncOutbox()
with outbox.transaction(conn):
    for n in range(20):
        outbox.add(conn, Event("made", {{"n": n}}, id=f"e{{n:02}}", aggregate_id="order-1"))
conn.close()
counts = asyncio.run(Relay("sqlite:///app.db", "{kafka_url}?topic={topic}&compression=lz4").drain())
print(counts.done)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stderr, done.stdout) == ("", "20\n")
    seen = tap(kafka_url, topic)
    assert [m.id for m in seen] == [f"e{n:02}" for n in range(20)]
    assert {m.key for m in seen} == {"order-1"}
