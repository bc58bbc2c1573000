"""What the MongoDB store asks of its server: round trips, plans, collections."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import uuid
from datetime import UTC, datetime, timedelta

import pymongo
import pytest
from bson.binary import Binary
from pymongo.errors import WriteError
from pymongo.monitoring import CommandListener

from postroom.errors import ConfigError, SchemaError, StoreError
from postroom.event import Event
from postroom.inbox import Inbox
from postroom.lookup import Filter
from postroom.outbox import Outbox
from postroom.settlement import DeadOutcome, FailedOutcome
from postroom.store import ReadRequest
from postroom.stores.mongo import MongoStore, read, work_index
from postroom.testing.store.tools import ALL, FAR, Hand, event
from postroom.transaction import Acceptance
from postroom.transactions.mongo.sessions import AsyncBareWrites, without_transaction
from tests.contract.mongo_database import url_of


class Commands(CommandListener):
    """Counts what goes over the wire."""

    def __init__(self):
        self.names = []

    def started(self, event):
        self.names.append(event.command_name)

    def succeeded(self, event): ...

    def failed(self, event): ...


@pytest.fixture
async def url(mongo_url):
    made = url_of(mongo_url, f"unit_{uuid.uuid4().hex[:12]}")
    yield made
    async with pymongo.AsyncMongoClient(made) as client:
        await client.drop_database(client.get_default_database().name)


@pytest.fixture
def commands():
    return Commands()


@pytest.fixture
async def store(url, commands):
    store = MongoStore(url)
    store._address.options["event_listeners"] = [commands]
    await store.migrate()
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def add(url):
    async with pymongo.AsyncMongoClient(url) as client:

        async def add(*events):
            async with client.start_session() as session, await session.start_transaction():
                await Outbox().add_many(session, events)

        yield add


# -- round trips -------------------------------------------------------------------------------
@pytest.mark.promise("D1", "L2")
@pytest.mark.parametrize("number", [1, 500, 1_000])
@pytest.mark.parametrize("keep_done", [True, False])
async def test_a_batch_takes_five_round_trips_whatever_its_size(
    store, add, commands, number, keep_done
):
    await add(*(event(f"e{n}", f"k{n % 100}") for n in range(number)))
    hand = await Hand(store).take()
    commands.names.clear()
    question = ReadRequest("main", ALL, 1_000, 1_000, 10**9, (), "anna", hand.held)
    records = await store.read(question)
    assert len(records) == number
    assert commands.names == ["aggregate", "find"]
    commands.names.clear()
    told = {record.id: f'{{"offset":{record.seq}}}' for record in records}
    assert await hand.settle(done=records, receipts=told, keep_done=keep_done) == set(ALL)
    assert commands.names == ["update", "update" if keep_done else "delete", "commitTransaction"]


@pytest.mark.promise("D1")
async def test_a_settle_with_every_outcome_takes_six_round_trips(store, add, commands):
    await add(*(event(f"{name}{n}", f"{name}{n}") for n in range(20) for name in "abcde"))
    await add(*(event(f"after e{n}", f"e{n}") for n in range(20)))
    hand = await Hand(store).take()
    for record in await hand.read():
        if record.id.startswith("e"):
            await hand.fail(record)
    await hand.settle(parked=[r for r in await hand.read() if r.id.startswith("after")])
    await hand.stage()
    by_name = {}
    for record in await hand.read():
        by_name.setdefault(record.id[0], []).append(record)
    commands.names.clear()
    await hand.settle(
        done=by_name["a"] + by_name["e"],
        failed=[FailedOutcome(record, 1, FAR, "boom") for record in by_name["b"]],
        dead=[DeadOutcome(record, 1, "boom") for record in by_name["c"]],
        starts=by_name["d"],
    )
    assert commands.names == [
        "update",  # the fence
        "aggregate",  # blocks
        "update",  # events
        "update",  # blocks made
        "delete",  # blocks lifted
        "commitTransaction",
    ]
    assert {r.id[:5] for r in await hand.read()} == {"after"} | {f"d{n}" for n in range(20)}


async def test_an_idle_look_is_one_round_trip(store, commands):
    await Hand(store).take()
    commands.names.clear()
    assert await store.stage("main", ALL, 100) == (0, None, False)
    assert commands.names == ["aggregate"]
    commands.names.clear()
    assert await Hand(store).read() == []
    assert commands.names == ["aggregate"]


@pytest.mark.promise("D1", "R4")
async def test_a_hot_lane_costs_one_round_trip_more(store, add, commands):
    await add(*(event(f"hot{n}", "hot") for n in range(300)))
    await add(*(event(f"cold{n}", f"k{n}") for n in range(100)))
    commands.names.clear()
    found = await Hand(store).read(per_lane=10, rows=200)
    assert commands.names == ["aggregate", "find", "aggregate"]
    assert sum(record.key == "hot" for record in found) == 10
    assert len(found) > 90


# -- plans -------------------------------------------------------------------------------------
async def plan(store, pipeline):
    explained = await store._db.database.command(
        {
            "explain": {"aggregate": "postroom_outbox", "pipeline": pipeline, "cursor": {}},
            "verbosity": "executionStats",
        }
    )
    text = json.dumps(explained, default=str)
    keys = sum(map(int, re.findall(r'"totalKeysExamined": (\d+)', text)))
    documents = sum(map(int, re.findall(r'"totalDocsExamined": (\d+)', text)))
    plans = re.findall(r'"rejectedPlans": (\[\]?)', text)
    return set(re.findall(r'"stage": "([A-Z_]+)"', text)), keys, documents, set(plans)


@pytest.mark.promise("D1")
async def test_a_read_merges_its_lanes_and_looks_at_little_more_than_it_returns(store, add):
    await add(*(event(f"e{n}", f"k{n}") for n in range(1_000)))
    half = range(0, 64, 2)
    stages, keys, documents, rejected = await plan(
        store, read._oldest(work_index.ready_in("main", half), 100)
    )
    assert "SORT_MERGE" in stages
    assert "SORT" not in stages
    assert keys <= 100 + 2 * 32
    assert documents == 100
    assert rejected == {"[]"}  # a choice of plans would have to be tried out


@pytest.mark.promise("D1")
async def test_the_lanes_with_events_are_found_by_the_index_alone(store, add):
    await add(*(event(f"e{n}", f"k{n}") for n in range(1_000)))
    stages, keys, documents, rejected = await plan(
        store, work_index.first_of_lanes(work_index.ready_in("main", ALL))
    )
    assert "DISTINCT_SCAN" in stages
    assert keys <= 2 * 64
    assert documents == 0
    assert rejected == {"[]"}


@pytest.mark.promise("D3")
async def test_done_scheduled_and_parked_events_are_not_walked_over(store, add):
    await add(*(event(f"e{n}", f"k{n}") for n in range(500)))
    hand = await Hand(store).take()
    records = await hand.read()
    await hand.settle(
        done=records[:300], failed=[FailedOutcome(r, 1, FAR, "boom") for r in records[300:400]]
    )
    _, keys, _, _ = await plan(store, read._oldest(work_index.ready_in("main", ALL), 10))
    assert keys <= 10 + 2 * 64


@pytest.mark.req("S2.2", "S1.9")
async def test_people_are_served_by_indexes_too(store, add):
    await add(*(event(f"e{n}", f"k{n}") for n in range(200)))
    hand = await Hand(store).take()
    records = await hand.read()
    await hand.settle(done=records[:150], dead=[DeadOutcome(r, 1, "x") for r in records[150:155]])
    database = store._db.database
    listing = {
        "find": "postroom_outbox",
        "filter": {"size": {"$gte": 0}},
        "sort": {"ct": 1, "n": 1},
    }
    explained = await database.command({"explain": {**listing, "limit": 5}})
    assert '"SORT"' not in json.dumps(explained, default=str)
    assert [r.id for r in await store.find(Filter(state="dead"))] == [
        r.id for r in records[150:155]
    ]


# -- collections -------------------------------------------------------------------------------
@pytest.mark.req("S4.1")
async def test_ten_at_once_make_the_collections(url):
    stores = [MongoStore(url) for _ in range(10)]
    assert await asyncio.gather(*(store.migrate() for store in stores)) == [2] * 10
    await stores[0].open()
    assert len(await stores[0].identity()) == 36
    assert await stores[0].schema() == (2, 2)
    await stores[0].close()


async def test_a_database_without_collections_is_refused_with_advice(url):
    store = MongoStore(url)
    assert await store.schema() == (0, 2)
    with pytest.raises(SchemaError, match=r"are missing in 'unit_.*postroom migrate up --store"):
        await store.open()
    await store.close()


async def test_collections_of_a_newer_version_are_left_alone(url, store):
    async with pymongo.AsyncMongoClient(url) as client:
        meta = client.get_default_database()["postroom_meta"]
        await meta.update_one({"_id": "schema_version"}, {"$set": {"value": 99}})
        newer = MongoStore(url)
        with pytest.raises(SchemaError, match="newer postroom"):
            await newer.open()
        with pytest.raises(SchemaError, match="nothing was changed"):
            await newer.migrate()
        assert (await meta.find_one({"_id": "schema_version"}))["value"] == 99


@pytest.mark.req("S2.1", "S1.9")
async def test_an_operator_finds_the_fields_that_the_documents_name(url, store, add):
    await add(Event("page.saved", {"page": 1}, id="page:1", aggregate_id="1", stream="wiki"))
    hand = await Hand(store, stream="wiki").take()
    await hand.settle(starts=await hand.read())
    async with pymongo.AsyncMongoClient(url, tz_aware=True) as client:
        found = await client.get_default_database()["postroom_outbox"].find_one()
    for name, value in {
        "_id": "page:1",
        "stream": "wiki",
        "event_type": "page.saved",
        "aggregate_id": "1",
        "payload": '{"page":1}',
        "status": "processing",
        "attempts": 1,
        "last_error": None,
        "next_attempt_at": None,
        "lease_owner": "anna",
    }.items():
        assert found[name] == value
    assert found["lease_until"] > found["created_at"]


@pytest.mark.parametrize(
    "broken",
    [
        {"stage": "over"},
        {"status": "lost"},
        {"status": "done"},
        {"stage": "waiting", "awaits": 0},
        {"lane": 64},
        {"attempts": -1},
        {"payload": {"an": "object"}},
    ],
)
async def test_illegal_states_cannot_be_stored(url, store, add, broken):
    await add(event("e"))
    async with pymongo.AsyncMongoClient(url) as client:
        with pytest.raises(WriteError, match="validation"):
            await client.get_default_database()["postroom_outbox"].update_one({}, {"$set": broken})


@pytest.mark.req("S2.1")
async def test_dollars_and_dots_in_names_stay_what_they_are(store, add):
    payload = {"$set": {"a.b": "$x", "$$NOW": "$$ROOT"}, "": None, ".": {"$": 1}}
    await add(Event("$type", payload, id="$id", key="$k.e.y", headers={"$h": "$v", "a.b": "c"}))
    (record,) = await Hand(store).read()
    assert (record.id, record.type, record.key) == ("$id", "$type", "$k.e.y")
    assert record.data == payload
    assert record.headers == {"$h": "$v", "a.b": "c"}


# -- kinds of servers --------------------------------------------------------------------------
async def test_a_standalone_that_must_have_transactions_is_refused(mongo_standalone_url):
    store = MongoStore(mongo_standalone_url, transactions=True)
    with pytest.raises(ConfigError, match="standalone"):
        await store.open()
    await store.close()


async def test_transactions_can_be_declined(url, store, add):
    declined = MongoStore(url, transactions=False)
    await declined.open()
    assert not declined.capabilities.transactions
    await add(event("e", "k"))
    hand = await Hand(declined).take()
    assert await hand.work() == ["e"]
    await declined.close()


async def test_a_store_that_is_not_open_says_so():
    with pytest.raises(StoreError, match="not open"):
        await MongoStore("mongodb://127.0.0.1/d").get("e")


# -- without a snapshot ------------------------------------------------------------------------
@pytest.mark.req("S2.6")
@pytest.mark.promise("G4", "R1")
async def test_a_read_without_a_snapshot_leaves_nobody_behind(mongo_standalone_url, monkeypatch):
    """Two events of a key are written during the walk: it has passed the place of the first."""
    url = url_of(mongo_standalone_url, f"unit_{uuid.uuid4().hex[:12]}")
    store = MongoStore(url)
    await store.migrate()
    await store.open()
    async with pymongo.AsyncMongoClient(url) as client:
        database = client.get_default_database()
        bare, outbox = without_transaction(database), database["postroom_outbox"]
        await Outbox().add_many(bare, [event("a0", "a"), event("a1", "a"), event("b0", "b")])
        gather = read._gather

        async def passing_by(*args):
            first = await outbox.find_one_and_delete({"_id": "a0"})
            await gather(*args)
            await outbox.insert_one(first)

        hand = await Hand(store).take()
        monkeypatch.setattr(read, "_gather", passing_by)
        lane = (await store.get("a1")).lane
        await outbox.update_one({"_id": "b0"}, {"$set": {"lane": lane}})  # more than a head
        assert [record.id for record in await hand.read()] == ["b0"]
        monkeypatch.undo()
        assert [record.id for record in await hand.read()] == ["a0", "a1", "b0"]
        await client.drop_database(database.name)
    await store.close()


async def test_sessions_that_met_an_error_are_not_told_to_the_others(store):
    """A member's document names the sessions to end if it dies: those that it has."""
    before = store._db.session_ids
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            async with store._db.borrowed():
                raise ZeroDivisionError
    assert store._db.session_ids == before


@pytest.mark.promise("G2", "H3")
async def test_what_a_handler_adds_without_transactions_is_written_before_its_mark(
    url, store, monkeypatch
):
    declined = MongoStore(url, transactions=False)
    await declined.open()

    async def lost(*_):
        raise pymongo.errors.AutoReconnect

    monkeypatch.setattr(AsyncBareWrites, "accept", lost)
    with pytest.raises(StoreError):
        async with declined.transaction() as tx:
            assert await Inbox("c").accept(tx, Event("t", id="m"))
            await Outbox().add(tx, event("added"))
    assert await store.get("added") is not None
    await declined.close()


async def test_what_was_committed_before_the_listening_began_ends_the_first_wait(url, store, add):
    await add(event("early"))
    other = MongoStore(url)
    await other.open()
    async with asyncio.timeout(60):
        assert await other.wait_for_change(FAR) is True
    await other.close()


@pytest.mark.promise("D1")
async def test_the_old_messages_of_a_consumer_are_found_by_its_index(url, store):
    async with pymongo.AsyncMongoClient(url) as client:
        database = client.get_default_database()
        for consumer, count in (("others", 100), ("ours", 3)):
            for number in range(count):
                mark = Acceptance(consumer, str(number), "t", None)
                await without_transaction(database).accept(mark)
        old = {"_id.consumer": "ours", "status": "done", "processed_at": {"$lt": datetime.now(UTC)}}
        asked = {"find": "postroom_inbox", "filter": old, "sort": {"processed_at": 1}}
        told = await database.command("explain", asked, verbosity="executionStats")
    assert told["executionStats"]["totalKeysExamined"] <= 4


class Moving(CommandListener):
    """Moves an event to the stage that a scan begins with, once the scan has begun."""

    def __init__(self, url):
        self.url, self.moved = url, False

    def started(self, event):
        pass

    def failed(self, event):
        pass

    def succeeded(self, event):
        where = event.reply.get("cursor", {}).get("ns", "")
        if where.endswith(".postroom_outbox") and not self.moved:
            key = Binary(hashlib.md5(b"\x00b", usedforsecurity=False).digest())
            with pymongo.MongoClient(self.url) as client:
                outbox = client.get_default_database()["postroom_outbox"]
                change = {"stage": "parked", "awaits": key, "next_attempt_at": None}
                self.moved = (
                    outbox.update_one({"_id": "late"}, {"$set": change}).modified_count == 1
                )


async def test_no_key_is_missed_while_its_event_moves(url, add):
    """A later message of the key would overtake it (I3)."""
    store = MongoStore(url)
    store._address.options["event_listeners"] = [moving := Moving(url)]
    await store.migrate()
    await store.open()
    soon = datetime.now(UTC) + timedelta(hours=1)
    await add(*(event(f"a{n}", "a") for n in range(150)), event("late", "b", available_at=soon))
    found = await store.open_keys("main", 1_000)
    await store.close()
    assert (moving.moved, len(found), len(set(found))) == (True, 151, 2)


async def test_the_counts_of_many_streams_cost_few_commands(store, add, commands):  # E-8
    costs = []
    for first, last in ((0, 3), (3, 60)):
        await add(*(Event("t", id=f"e{n}", stream=f"s{n}") for n in range(first, last)))
        await store.bury([f"e{n}" for n in range(first, last)], "no use")
        commands.names.clear()
        assert (await store.stats()).counts == {
            "pending": 0, "processing": 0, "done": 0, "failed": 0, "dead": last,
            "expired": 0, "cancelled": 0,
        }  # fmt: skip
        costs.append(len(commands.names))
    assert costs[1] <= costs[0] < 20
