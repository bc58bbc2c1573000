"""Two relays as processes of their own, from PostgreSQL to Kafka, and one is killed at its work."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager

import pytest

from postroom.event import Event
from postroom.lookup import Filter
from tests.scenario.kafka_place import copies, first_seen_by_key, make_topic, tap
from tests.scenario.place import until
from tests.scenario.postgres_place import PostgresPlace, own_schema

pytestmark = pytest.mark.slow
PATIENCE = 90.0
KEYS = [f"order-{n}" for n in range(40)]
BATCHES, EACH = 30, 80


@pytest.fixture
async def place(postgres_url):
    with own_schema(postgres_url) as url:
        made = PostgresPlace(url)
        await made.open()
        yield made
        await made.close()


@asynccontextmanager
async def running(store, broker, name):
    """Run `postroom run` beside what is done inside; it ends in any case."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "postroom", "run", "--store", store, "--broker", broker,
        "--name", name, "--lease-seconds", "2", "--poll-seconds", "0.2", "--log-level", "error",
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


@pytest.mark.req("S1.4", "S4.7")
@pytest.mark.promise("G2", "G3", "G4", "L1", "P4")
async def test_a_relay_is_killed_at_its_work(kafka_url, place):
    topic = make_topic(kafka_url)
    written = [
        Event("made", {"n": n}, id=f"e{n:05}", key=KEYS[n % len(KEYS)], topic=topic)
        for n in range(BATCHES * EACH)
    ]

    async def write():
        for at in range(0, len(written), EACH):
            await place.write(*written[at : at + EACH])

    async def done(share):
        counts = (await place.store.stats()).counts
        return counts["done"] >= share * len(written)

    async with running(place.url, kafka_url, "one") as one, running(place.url, kafka_url, "two"):
        await until(lambda: _members(place, 2), PATIENCE)
        writing = asyncio.create_task(write())
        await until(lambda: done(0.2), PATIENCE)
        one.kill()
        await writing
        await until(lambda: done(1.0), PATIENCE)
    assert one.returncode == -9
    seen = tap(kafka_url, topic)
    assert first_seen_by_key(seen) == {
        key: [event.id for event in written if event.key == key] for key in KEYS
    }
    # What the dead one had sent and not ticked off may be there again; most of it is not.
    assert len(copies(seen)) < len(written) / 2
    found = await place.store.find(Filter(limit=len(written)))
    assert {(record.state, record.attempts) for record in found} == {("done", 0)}


async def _members(place, count):
    return len(await place.owners()) == count
