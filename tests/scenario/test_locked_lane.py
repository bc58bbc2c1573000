"""A transaction stays open that has locked one lane: it costs that lane, and no other (E-2)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import psycopg
import pytest
from pymongo import AsyncMongoClient

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.errors import StoreLockedError
from postroom.observer import StoreTrouble
from postroom.outbox import Outbox
from postroom.store import Member
from postroom.stores import lock_pauses
from postroom.stores.mongo import MongoStore
from postroom.stores.mysql import MysqlStore
from postroom.stores.postgres import PostgresStore
from postroom.testing.store.tools import ALL, event, keys_of_lane
from tests.contract.mongo_database import emptied, in_transaction
from tests.contract.mysql_database import own_database
from tests.scenario.place import Notes, first_seen, ids, until
from tests.scenario.postgres_place import own_schema, writing

pytestmark = pytest.mark.server
LOCKED = 7
OTHERS = set(ALL) - {LOCKED}
LEASE = 2.0
ANNA = Member("anna", healthy=True)


class Ground:
    """A store, a writer, and a stranger who locks a lane, or all members, and stays."""

    def __init__(self, make, write, lock, lock_members):
        self.make, self.write, self.lock = make, write, lock
        self.lock_members = lock_members

    async def add(self, *events):
        async with self.write() as tx:
            await Outbox().add_many(tx, events)


@asynccontextmanager
async def postgres(request, strength):
    with own_schema(request.getfixturevalue("postgres_url")) as url:

        @asynccontextmanager
        async def lock():
            async with await psycopg.AsyncConnection.connect(url) as stranger:
                await stranger.execute(
                    f"SELECT 1 FROM postroom_lease WHERE lane = {LOCKED} FOR {strength}"
                )
                yield

        @asynccontextmanager
        async def lock_members():
            async with await psycopg.AsyncConnection.connect(url) as stranger:
                await stranger.execute(f"SELECT 1 FROM postroom_member FOR {strength}")
                yield

        make = lambda: PostgresStore(url)  # noqa: E731
        yield Ground(make, lambda: writing(url), lock, lock_members)


@asynccontextmanager
async def mysql(request):
    with own_database(request.getfixturevalue("mariadb_url")) as database:

        @asynccontextmanager
        async def lock():
            with database.connection() as (_, cursor):
                cursor.execute(
                    "UPDATE postroom_lease SET settles = settles + 1 "
                    f"WHERE stream = 'main' AND lane = {LOCKED}"
                )
                yield

        @asynccontextmanager
        async def lock_members():
            with database.connection() as (_, cursor):
                cursor.execute("SELECT 1 FROM postroom_member FOR UPDATE")
                yield

        url = f"{database.url}?lock_seconds=1"
        make = lambda: MysqlStore(url)  # noqa: E731
        yield Ground(make, database.writing, lock, lock_members)


@asynccontextmanager
async def mongo(request):
    async with emptied(request.getfixturevalue("mongo_url")) as url:

        @asynccontextmanager
        async def locked(name, which, change):
            async with AsyncMongoClient(url) as client, client.start_session() as session:
                await session.start_transaction()
                found = client.get_default_database()[name]
                await found.update_many(which, change, session=session)
                yield
                await session.abort_transaction()

        def lock():
            return locked("postroom_lease", {"lane": LOCKED}, {"$inc": {"settles": 1}})

        def lock_members():
            return locked("postroom_member", {}, {"$set": {"locked": True}})

        make = lambda: MongoStore(url)  # noqa: E731
        yield Ground(make, lambda: in_transaction(url), lock, lock_members)


GROUNDS = {
    "postgres-share": lambda request: postgres(request, "SHARE"),
    "postgres-update": lambda request: postgres(request, "UPDATE"),
    "mysql": mysql,
    "mongo": mongo,
}


@pytest.fixture(params=sorted(GROUNDS))
async def ground(request):
    async with GROUNDS[request.param](request) as ground:
        yield ground


@pytest.fixture
async def store(ground):
    store = ground.make()
    await store.migrate()
    await store.open()
    yield store
    await store.close()


@pytest.mark.req("S2.3")
@pytest.mark.promise("L1", "L5")
async def test_the_other_lanes_of_a_dead_relay_are_taken(ground, store):
    await store.take("main", "dead", ALL, -1.0)
    async with ground.lock():
        assert set(await store.take("main", "anna", ALL, LEASE)) == OTHERS
    assert set(await store.take("main", "anna", [LOCKED], LEASE)) == {LOCKED}


@pytest.mark.promise("L1", "L6")
async def test_the_other_lanes_are_renewed_and_taken_again(ground, store):
    held = await store.take("main", "anna", ALL, 60.0)
    async with ground.lock():
        assert (await store.heartbeat("main", ANNA, LEASE, held)).renewed == OTHERS
        again = await store.retake("main", "anna", held, LEASE)
        assert again == {lane: token + 1 for lane, token in held.items() if lane in OTHERS}
        await store.release("main", "anna", {3: again[3]})
        assert set(await store.take("main", "bert", [3, LOCKED], LEASE)) == {3}
    assert (await store.heartbeat("main", ANNA, LEASE, held)).renewed == {LOCKED}


@pytest.mark.promise("L1", "L6")
async def test_a_locked_member_costs_no_lane(ground, store):
    """The row by which others know a relay, and that of one who has been gone for long."""
    held = await store.take("main", "anna", ALL, 60.0)
    await store.heartbeat("main", ANNA, 60.0, held)
    await store.heartbeat("main", Member("gone", healthy=True), -60.0, {})
    async with ground.lock_members(), asyncio.timeout(20):
        membership = await store.heartbeat("main", ANNA, LEASE, held)
    assert membership.renewed == set(ALL)
    assert {member.owner for member in membership.members} == {"anna"}


@pytest.mark.req("S2.3")
@pytest.mark.promise("L6", "G7")
async def test_a_relay_goes_on_delivering_in_the_other_lanes(ground, store):
    """The lane is locked for longer than a lease, while one of its events is under way."""
    broker, notes = MemoryBroker(), Notes()
    keys = {lane: keys_of_lane(lane, 1)[0] for lane in (LOCKED, 8, 9, 40, 41)}
    await ground.add(*(event(f"first-{lane}", key) for lane, key in keys.items()))
    relay = Relay(
        store, broker, observers=[notes], lease_seconds=LEASE, poll_seconds=0.05, stop_seconds=5.0
    )
    async with relay:
        await until(lambda: len(ids(broker)) == len(keys))
        await until(lambda: relay.counts.done == len(keys))
        async with ground.lock():
            await ground.add(*(event(f"second-{lane}", key) for lane, key in keys.items()))
            await until(lambda: len(relay_lanes_past_their_end(relay)) == 1, 30.0)
            await ground.add(*(event(f"third-{lane}", keys[lane]) for lane in (8, 9, 40, 41)))
            await until(
                lambda: {f"third-{lane}" for lane in (8, 9, 40, 41)} <= set(ids(broker)), 30.0
            )
            await until(lambda: relay.counts.done >= len(keys) + 2 * 4, 30.0)
        await until(lambda: f"second-{LOCKED}" in ids(broker), 30.0)
        await until(lambda: all_done(store, len(keys) * 2 + 4), 30.0)
    assert len(first_seen(broker)) == len(keys) * 2 + 4
    told = [fact.error for fact in notes.of(StoreTrouble) if "make no progress" in fact.error]
    assert len(told) <= 2, "said once, not with every beat"


@pytest.mark.promise("L4")
async def test_who_leaves_waits_for_a_lane_that_is_soon_unlocked(ground, store):
    """A cancelled heartbeat that the server has not rolled back yet had locked all of them."""
    await store.heartbeat("main", ANNA, 60.0, await store.take("main", "anna", ALL, 60.0))
    async with asyncio.timeout(30):
        async with ground.lock():
            leaving = asyncio.create_task(store.leave("main", "anna"))
            await until(lambda: owned(store, {LOCKED}), 20.0)  # no other lane waits for it
        await again_if_locked(leaving, store)
    assert await owned(store, set())
    assert (await store.leases("main")).members == ()


@pytest.mark.promise("L4")
async def test_who_cannot_release_a_lane_names_it_and_leaves(ground, store, monkeypatch):
    monkeypatch.setattr(lock_pauses, "_LEAVE_SECONDS", 0.2)
    await store.heartbeat("main", ANNA, 60.0, await store.take("main", "anna", ALL, 60.0))
    async with ground.lock(), asyncio.timeout(30):
        with pytest.raises(StoreLockedError, match=f"^lanes {LOCKED} are locked by another"):
            await store.leave("main", "anna")
        assert await owned(store, {LOCKED})
        assert (await store.leases("main")).members == ()


async def owned(store, lanes):
    """Whether these lanes have an owner, and no others."""
    return {lease.lane for lease in (await store.leases("main")).leases if lease.live} == lanes


async def again_if_locked(leaving, store):
    """A loaded machine may need more than the two seconds that a leave waits."""
    try:
        await leaving
    except StoreLockedError:
        await store.leave("main", "anna")


def relay_lanes_past_their_end(relay):
    """Lanes that the relay holds no longer, or may no longer send from."""
    now = relay._clock.monotonic()
    return set(ALL) - set(relay._context.keeper.readable(now))


async def all_done(store, count):
    return (await store.stats("main")).counts["done"] == count
