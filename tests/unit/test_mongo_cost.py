"""What a read costs a MongoDB: documents and index entries that it looks at, counted by the server."""

from __future__ import annotations

import uuid

import pymongo
import pytest
from bson.int64 import Int64

from postroom.event import Event
from postroom.lookup import Filter
from postroom.outbox import Outbox
from postroom.record import key_hash, lane_of
from postroom.settlement import FailedOutcome
from postroom.stores.mongo import MongoStore, blocks, read_past_keys
from postroom.testing.store.tools import Hand, event, keys_of_lane, names
from postroom.transactions.mongo import without_transaction
from tests.contract.mongo_database import url_of

HOT = key_hash(None, "hot", "")
SHARE = {"rows": 100, "per_lane": 100, "size": 1_000_000_000}


class Bench:
    """A store, events of many sizes and keys, and the server's own count of what it looks at."""

    def __init__(self, url):
        self.store = MongoStore(url)
        self.client = pymongo.AsyncMongoClient(url)
        self.database = self.client.get_default_database()
        self.outbox = self.database["postroom_outbox"]
        self.commands = 0  # of the last call

    async def open(self):
        await self.store.migrate()
        await self.store.open()

    async def close(self):
        await self.store.close()
        await self.client.drop_database(self.database.name)
        await self.client.close()

    async def add(self, *events):
        await Outbox().add_many(without_transaction(self.database), events)

    async def multiply(self, name, number):
        """Put copies of an event behind it, without the work of adding each."""
        one = await self.outbox.find_one({"_id": name})
        copies = [
            {**one, "_id": f"{name}-{n}", "n": Int64(one["n"] + n)} for n in range(1, number + 1)
        ]
        await self.outbox.insert_many(copies, ordered=False)

    async def cost(self, call):
        """Return what a call returns, and the index entries and documents that it looked at."""
        await self.database.command("profile", 0)
        await self.database["system.profile"].drop()
        await self.database.command("profile", 2)
        result = await call
        await self.database.command("profile", 0)
        ours = {"ns": f"{self.database.name}.postroom_outbox"}
        keys = documents = self.commands = 0
        async for one in self.database["system.profile"].find(ours):
            self.commands += 1
            keys += one.get("keysExamined", 0)
            documents += one.get("docsExamined", 0)
        return result, keys, documents


@pytest.fixture(params=["mongo_url", "mongo_standalone_url"])
async def bench(request):
    made = Bench(url_of(request.getfixturevalue(request.param), f"cost_{uuid.uuid4().hex[:12]}"))
    await made.open()
    yield made
    await made.close()


# T/D: a hot key in flight
@pytest.mark.promise("R3", "P1", "D1")
async def test_what_waits_behind_a_key_in_flight_costs_a_read_nothing(bench, monkeypatch):
    monkeypatch.setattr(read_past_keys, "_SHORTEST", 3_600.0)  # a look to the end, once
    lane = lane_of(HOT)
    await bench.add(event("before", keys_of_lane(lane, 1)[0]), event("hot", "hot"))
    await bench.multiply("hot", 6_000)
    others = [event(f"e{n}", f"k{n}") for n in range(150)]
    await bench.add(*others, event("behind", keys_of_lane(lane, 2)[1]))
    hand = Hand(bench.store)
    plain, plain_keys, plain_documents = await bench.cost(hand.read(**SHARE))
    assert len(plain) == 100
    first = names(await hand.read(exclude=[HOT], **{**SHARE, "rows": 1_000}))
    assert {"before", "behind"} < set(first)  # looked for to the end of the lane
    assert len(first) == 152
    found, keys, documents = await bench.cost(hand.read(exclude=[HOT], **SHARE))
    assert names(found)[0] == "before"
    assert len(found) == 100
    assert documents <= 1.5 * plain_documents
    if bench.store.capabilities.transactions:  # else it walks a second time, for want of a snapshot
        assert keys < 3_000
    assert "behind" not in names(found)  # until the next look to the end

    bench.store._db.depths["main"].rest_until = 0.0
    assert "behind" in names(await hand.read(exclude=[HOT], **{**SHARE, "rows": 1_000}))


# T/D: the same, seen by the order of keys
@pytest.mark.promise("G4", "R1")
async def test_beside_busy_keys_every_other_key_is_read_from_its_first_event(bench):
    keys = [f"k{n}" for n in range(12)]
    await bench.add(*(event(f"{key}.{n}", key) for n in range(60) for key in keys))
    await bench.add(event("hot", "hot"))
    await bench.multiply("hot", 1_500)
    await bench.add(*(event(f"{key}.{n}", key) for n in range(60, 70) for key in keys))
    busy = [key_hash(None, key, "") for key in ("hot", "k3", "k7")]
    for rows, per_lane in ((50, 50), (400, 100), (2_000, 2_000), (30, 2)):
        found = await Hand(bench.store).read(rows=rows, per_lane=per_lane, exclude=busy)
        assert found == sorted(found, key=lambda record: record.seq)
        assert 0 < len(found) <= rows
        for key in keys:
            of_key = [record.id for record in found if record.key == key]
            expected = [] if key in ("k3", "k7") else [f"{key}.{n}" for n in range(len(of_key))]
            assert of_key == expected


# T/D: large events
@pytest.mark.promise("R4", "D1")
async def test_large_events_are_fetched_as_far_as_they_are_returned(bench):
    await bench.add(Event("t", "x" * 500_000, id="big", key="a"))
    await bench.multiply("big", 60)
    share = {"rows": 200, "per_lane": 200, "size": 4_200_000}
    hand = Hand(bench.store)
    first, _, documents = await bench.cost(hand.read(**share))
    assert len(first) == 8
    assert documents <= 35  # what the server puts into one answer, 16 MB
    again, _, documents = await bench.cost(hand.read(**share))
    assert names(again) == names(first)
    assert documents <= 12
    beside_another, _, documents = await bench.cost(hand.read(**share, exclude=[HOT]))
    assert names(beside_another) == names(first)
    assert documents <= 12


# T/D: people
@pytest.mark.req("S1.9")
async def test_the_events_of_a_key_are_found_by_an_index(bench):
    await bench.add(*(event(f"e{n}", f"k{n}") for n in range(500)), event("a", "wanted"))
    await bench.add(event("b", "wanted"))
    for wanted in (Filter(key="wanted"), Filter(key="wanted", state="pending")):
        found, keys, documents = await bench.cost(bench.store.find(wanted))
        assert names(found) == ["a", "b"]
        assert documents <= 4
        assert keys <= 20


async def test_the_counts_of_many_streams_cost_few_commands(bench):  # E-8.4
    costs = []
    for first, last in ((0, 30), (30, 90)):
        await bench.add(*(event(f"e{n}", stream=f"s{n:02}") for n in range(first, last)))
        stats, _, documents = await bench.cost(bench.store.stats())
        assert stats.counts["pending"] == last
        assert stats.lag_seconds > 0
        assert documents <= last
        costs.append(bench.commands)
    assert 0 < costs[0] == costs[1] < 20


# T/D: mending with nothing to mend
@pytest.mark.promise("B4", "D1")
async def test_mending_looks_at_a_bounded_number_of_heads_at_a_time(bench, monkeypatch):
    monkeypatch.setattr(blocks, "HEADS_STEP", 40)
    await bench.add(*(event(f"e{n}", f"k{n}") for n in range(200)))
    hand = await Hand(bench.store).take()
    records = await hand.read()
    await hand.settle(failed=[FailedOutcome(record, 1, 3_600.0, "boom") for record in records])
    steps = []
    look = blocks.load_broken

    async def counted(db, session, stream, lanes, limit):
        number = await bench.database["postroom_block"].count_documents(
            {"stream": stream, "lane": {"$in": list(lanes)}}
        )
        steps.append((len(lanes), number))
        return await look(db, session, stream, lanes, limit)

    monkeypatch.setattr(blocks, "load_broken", counted)
    assert await bench.store.repair_blocks("main", "anna", hand.held, 100) == 0
    assert sum(number for _, number in steps) == 200
    assert all(number <= 40 or lanes == 1 for lanes, number in steps)
    await bench.outbox.delete_many({"_id": {"$in": ["e3", "e77", "e199"]}})
    assert await bench.store.repair_blocks("main", "anna", hand.held, 100) == 3
    assert await bench.store.repair_blocks("main", "anna", hand.held, 100) == 0
