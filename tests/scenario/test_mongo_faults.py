"""MongoDB goes away in every way that it can, under traffic, with real elections."""

from __future__ import annotations

import asyncio

import pymongo
import pytest
from bson import Int64

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.errors import StoreUnknownError
from postroom.event import Event
from postroom.lookup import Filter
from postroom.outbox import Outbox
from postroom.record import key_hash, lane_of
from postroom.store import Member
from postroom.stores.mongo import MongoStore, connection, leases
from postroom.stores.mongo.change_stream import ChangeStream
from postroom.testing.store.tools import ALL, FAR, Hand, event, names
from postroom.transactions.mongo import without_transaction
from tests.contract.mongo_database import url_of
from tests.scenario.mongo_harm import (
    FAST,
    freeze_primary,
    freeze_secondary,
    kill_primary,
    make_whole,
    step_down,
)
from tests.scenario.mongo_place import MongoPlace
from tests.scenario.mongo_traffic import Traffic, check
from tests.scenario.place import QUICK, until
from tests.servers.mongo import MongoCluster
from tests.servers.proxy import Proxy

# pymongo leaves sockets to the garbage collector whose connecting was cut short by a close.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

RELAY = {**QUICK, "lease_seconds": 4.0, "batch_size": 5, "max_batch_size": 20}


@pytest.fixture(scope="module")
def cluster():
    """Three members of this module alone."""
    with MongoCluster() as started:
        yield started


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.req("S1.4", "S1.8", "S2.6")
@pytest.mark.promise("G1", "G2", "G4", "L5", "W6", "W8")
@pytest.mark.parametrize(
    "harm",
    [
        step_down,
        kill_primary,
        freeze_primary,
        pytest.param(freeze_secondary, marks=pytest.mark.nightly),
    ],
)
async def test_traffic_goes_on_over_two_elections(cluster, harm):
    """Adds, reads, settles and renewals are all under way when the primary goes, twice."""
    await asyncio.to_thread(make_whole, cluster)
    url = f"{url_of(cluster.url, harm.__name__)}&{FAST}"
    await MongoStore(url).migrate()
    broker = MemoryBroker()
    async with Traffic(url) as traffic:
        async with Relay(MongoStore(url), broker, **RELAY), Relay(MongoStore(url), broker, **RELAY):
            await traffic.more()
            for _ in range(2):
                await asyncio.to_thread(harm, cluster)
                await traffic.more()
                await asyncio.to_thread(make_whole, cluster)
            await traffic.stop()
            await check(traffic, broker)


@pytest.mark.req("S1.4", "S1.8")
@pytest.mark.promise("G1", "G2", "G4", "L5")
@pytest.mark.parametrize("harm", ["cut", "refuse", "swallow", "cut_after"])
async def test_traffic_goes_on_over_a_bad_network(mongo_url, harm):
    """The relay reaches the server through a proxy; replies and commits are lost on the way."""
    place = MongoPlace(mongo_url)
    await place.open()
    port = int(mongo_url.split(":")[2].split("/")[0])
    broker = MemoryBroker()
    with Proxy(port) as proxy:
        through = proxy.url_for(place.url).partition("?")[0] + f"?directConnection=true&{FAST}"
        async with Traffic(place.url, writers=2) as traffic:
            async with Relay(MongoStore(through), broker, **RELAY):
                await traffic.more()
                for round_ in range(3):
                    if harm == "cut_after":
                        await asyncio.to_thread(proxy.cut_after, 3_000 * (round_ + 1))
                    else:
                        await asyncio.to_thread(getattr(proxy, harm))
                    await traffic.more(20)
                    await asyncio.to_thread(proxy.accept)
                    await asyncio.to_thread(proxy.heal)
                    await traffic.more(20)
                await traffic.stop()
                await check(traffic, broker)
    await place.close()


@pytest.mark.req("S1.6", "S1.8")
async def test_a_server_that_is_away_at_the_start_is_waited_for(own_server):
    server = await asyncio.to_thread(own_server, "mongo")
    url = f"{server.url}&serverSelectionTimeoutMS=300"
    await MongoStore(url).migrate()
    async with pymongo.AsyncMongoClient(url) as client:
        async with client.start_session() as session, await session.start_transaction():
            await Outbox().add(session, Event("made", id="e1"))
    await asyncio.to_thread(server.kill)
    broker = MemoryBroker()
    relay = Relay(MongoStore(url), broker, **QUICK)
    asked = asyncio.Event()
    starting = asyncio.create_task(relay.start_patiently(asked))
    try:
        async with asyncio.timeout(60):
            await asyncio.wait({starting}, timeout=1.0)
            assert not starting.done()
            await asyncio.to_thread(server.restart)
            await starting
            await until(lambda: [m.record.id for m in broker.messages] == ["e1"], 30)
    finally:
        asked.set()
        await relay.kill()


@pytest.mark.req("S2.6")
@pytest.mark.promise("G2", "G4")
async def test_a_standalone_that_was_killed_goes_on(own_server):
    server = await asyncio.to_thread(own_server, "mongo_standalone")
    url = f"{server.url}?{FAST}"
    await MongoStore(url).migrate()
    broker = MemoryBroker()

    async def write(names):
        async with pymongo.AsyncMongoClient(url) as client:
            bare = without_transaction(client.get_default_database())
            for name in names:
                await Outbox().add(bare, Event("made", id=name, key="k"))

    first, second = [f"a{n}" for n in range(20)], [f"b{n}" for n in range(20)]
    async with Relay(MongoStore(url), broker, **RELAY):
        await write(first)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.restart)
        await write(second)
        await until(lambda: len({m.record.id for m in broker.messages}) == 40, 60)
    assert list(dict.fromkeys(m.record.id for m in broker.messages)) == first + second


# -- what a relay leaves behind ------------------------------------------------------------------
@pytest.fixture
async def place(mongo_url):
    made = MongoPlace(mongo_url)
    await made.open()
    yield made
    await made.close()


@pytest.mark.req("S2.3", "S4.7")
@pytest.mark.promise("L2", "G5")
async def test_the_lanes_of_a_relay_that_died_in_a_settle_are_free_after_its_lease(place):
    """MongoDB keeps the transaction of a dead client for a minute, and the leases in it."""
    dead = place.another()
    await dead.open()
    db = dead._db
    held = await dead.take("main", "anna", ALL, 1.0)
    async with db.borrowed() as session:
        await dead.heartbeat("main", Member("anna", healthy=True), 1.0, held)
        await session.start_transaction()
        assert await leases.fence(db, session, "main", "anna", held) == set(ALL)

        # Nothing more is ever heard of anna.
        taken = {}

        async def all_taken():
            taken.update(await place.store.take("main", "bert", ALL, FAR))
            return sorted(taken) == list(ALL)

        await until(all_taken, 20)
    await dead.close()


@pytest.mark.promise("L2", "G5")
async def test_a_lane_in_the_middle_of_a_settle_cannot_be_taken(place):
    anna, other = place.store, place.another()
    await other.open()
    held = await anna.take("main", "anna", [7], 0.3)
    db = anna._db
    async with db.borrowed() as session:
        await session.start_transaction()
        assert await leases.fence(db, session, "main", "anna", held) == {7}

        async def has_run_out():
            return not (await other.leases("main")).leases[7].live

        await until(has_run_out)
        taking = asyncio.create_task(other.take("main", "bert", [7], FAR))
        await asyncio.wait({taking}, timeout=0.3)
        assert not taking.done()
        await session.commit_transaction()
        async with asyncio.timeout(20):
            taken = await taking or await other.take("main", "bert", [7], FAR)
        assert taken == {7: held[7] + 1}
    await other.close()


@pytest.mark.promise("L5")
async def test_a_retake_ends_the_transaction_whose_commit_was_lost(place):
    """Its commit may still be on the way: it must not count any more."""
    store = place.store
    await place.write(event("e", "k"))
    hand = await Hand(store).take()
    record = await hand.only("e")
    db = store._db
    async with db.client.start_session() as lost:
        await lost.start_transaction()
        await leases.fence(db, lost, "main", "anna", hand.held)
        await db.outbox.update_one(
            {"_id": "e"}, {"$set": {"attempts": 77, "kseq": Int64(1)}}, session=lost
        )
        db._lost.append(lost.session_id["id"])
        async with asyncio.timeout(20):
            hand.held = await store.retake("main", "anna", hand.held, FAR)
        with pytest.raises(pymongo.errors.OperationFailure):
            await lost.commit_transaction()
    assert sorted(hand.held) == list(ALL)
    assert (await store.get("e")).attempts == 0
    assert await hand.settle(done=[record]) == set(ALL)


@pytest.mark.promise("L5")
async def test_a_settle_whose_commit_is_not_confirmed_is_ended_by_the_next_retake(
    place, monkeypatch
):
    store = place.store
    await place.write(event("e", "k"))
    hand = await Hand(store).take()
    record, sessions, ended = await hand.only("e"), [], []

    async def not_confirmed(session):
        sessions.append(session.session_id["id"])
        raise StoreUnknownError("the commit was not confirmed")

    async def end_sessions(ids):
        ended.extend(ids)

    monkeypatch.setattr(connection, "commit", not_confirmed)
    monkeypatch.setattr(store._db, "end_sessions", end_sessions)
    with pytest.raises(StoreUnknownError):
        await hand.settle(done=[record])
    monkeypatch.undo()
    monkeypatch.setattr(store._db, "end_sessions", end_sessions)
    assert sorted(await store.retake("main", "anna", hand.held, FAR)) == list(ALL)
    assert ended == sessions != []


@pytest.mark.promise("L5")
async def test_settles_of_two_groups_do_not_meet(place):
    """Each settle writes only the leases of its own lanes."""
    await place.write(*(event(f"e{n}", f"k{n}") for n in range(200)))
    store = place.store
    held = await store.take("main", "anna", ALL, FAR)
    records = await Hand(store).read()

    async def settle(part):
        hand = Hand(store)
        hand.held = {lane: token for lane, token in held.items() if lane % 4 == part}
        mine = [record for record in records if record.lane % 4 == part]
        return await hand.settle(done=mine)

    lanes = await asyncio.gather(*(settle(part) for part in range(4)))
    assert set().union(*lanes) == set(ALL)
    assert {r.state for r in await store.find(Filter(limit=500))} == {"done"}


@pytest.mark.promise("L7")
async def test_an_operator_gets_through_to_a_relay_that_never_rests(place):
    await place.write(*(event(f"e{n}", "k") for n in range(50)))
    store, busy = place.store, place.another()
    await busy.open()
    hand = await Hand(busy).take()
    stop = asyncio.Event()

    async def settle_all_the_time():
        while not stop.is_set():
            await hand.settle()

    task = asyncio.create_task(settle_all_the_time())
    async with asyncio.timeout(30):
        assert await store.bury(["e0", "e1"], "by hand") == 2
    stop.set()
    await task
    assert names(await store.find(Filter(state="dead"))) == ["e0", "e1"]
    await busy.close()


async def test_a_commit_wakes_the_relay_that_holds_its_lane_and_no_other(place, monkeypatch):
    store, heard = place.store, []
    listen = ChangeStream._listen

    async def listening(self, seconds):
        found = await listen(self, seconds)
        heard.extend(found)
        return found

    monkeypatch.setattr(ChangeStream, "_listen", listening)
    mine, other = lane_of(key_hash(None, "mine", "")), lane_of(key_hash(None, "other", ""))
    held = await store.take("main", "anna", [mine], FAR)
    async with asyncio.timeout(30):
        while await store.wait_for_change(0.0):
            pass
        await place.write_quietly(event("a", key="other"))
        while not heard:
            assert await store.wait_for_change(0.1) is False
        await place.write_quietly(event("b", key="mine"))
        assert await store.wait_for_change(FAR) is True
        await store.heartbeat("main", Member("anna", healthy=True), FAR, {**held, other: 1})
        await place.write_quietly(event("c", key="other"))
        assert await store.wait_for_change(FAR) is True
        await store.leave("main", "anna")
        await place.write_quietly(event("d", key="any"))
        assert await store.wait_for_change(FAR) is True


async def test_a_dropped_change_stream_is_opened_again(place):
    store = place.store
    async with asyncio.timeout(30):
        while await store.wait_for_change(0.0):
            pass
        await place.client.admin.command(
            {"killSessions": [store._change_stream._session.session_id]}
        )
        heard = False
        while not heard:
            try:
                heard = await store.wait_for_change(1.0)
            except Exception:
                continue
        while await store.wait_for_change(0.0):
            pass
        waiting = asyncio.create_task(store.wait_for_change(FAR))
        await place.write_quietly(event("news"))
        assert await waiting is True
