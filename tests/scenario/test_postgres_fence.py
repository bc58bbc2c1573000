"""Nobody else can own a lane from the check of a settle to its commit (G5), on PostgreSQL.

Every test here fails when the fence is weakened; the mutants named `pg-…` do so one by one.
"""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from postroom.errors import NotFoundError
from postroom.lookup import Filter
from postroom.outbox import Outbox
from postroom.record import LANES
from postroom.store import Member
from postroom.stores.postgres import leases
from postroom.stores.postgres.statements import numbers, texts
from postroom.testing.store.tools import ALL, FAR, Hand, event, keys_of_lane, names, patience, until
from tests.scenario.postgres_place import opened, own_schema, writing

(KEY,) = keys_of_lane(7, 1)


@pytest.fixture(params=["postgres_url", "postgres18_url"])
def url(request):
    with own_schema(request.getfixturevalue(request.param)) as url:
        yield url


@pytest.fixture
async def store(url):
    async with opened(url) as store:
        yield store


@pytest.fixture
async def other(url, store):
    async with opened(url, migrate=False) as store:
        yield store


async def add(url, *events):
    async with writing(url) as connection:
        await Outbox().add_many(connection, events)


def names_of(records):
    return {"seqs": numbers(r.seq for r in records), "ids": texts(r.id for r in records)}


async def settle_done(session, hand, records):
    """What the store does for a settlement in which all went well, but in a transaction."""
    return await session.rows(
        "settle", stream="main", owner=hand.owner, lanes=numbers(hand.held),
        tokens=numbers(hand.held.values()), **names_of(records), receipts="{}", keep=True,
    )  # fmt: skip


async def settle_others(session, hand, records):
    """What the store does first for any other settlement."""
    lanes = await leases.fence(session, "main", hand.owner, hand.held)
    assert lanes == set(hand.held)
    return await session.run(
        "settle_done", stream="main", lanes=numbers(lanes), **names_of(records), receipts="{}"
    )


both_settles = pytest.mark.parametrize("settle", [settle_done, settle_others])


async def expired(store, lane):
    return not (await store.leases("main")).leases[lane].live


async def waits_or_ends(url, task):
    """Return once the task has ended, or once somebody waits for a lock in this schema."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as look:

        async def seen():
            rows = await look.execute(
                "SELECT 1 FROM pg_locks AS w JOIN pg_locks AS r USING (pid) WHERE NOT w.granted "
                "AND r.relation IN (CAST('postroom_lease' AS regclass), "
                "CAST('postroom_outbox' AS regclass))"
            )
            return task.done() or await rows.fetchone()

        await until(seen)


@both_settles
@pytest.mark.req("S2.3")
@pytest.mark.promise("G5", "L2")
async def test_a_lane_cannot_be_taken_between_the_check_and_the_commit(url, store, other, settle):
    await add(url, event("e", KEY))
    anna = await Hand(store).take([7], 0.4)
    records = await anna.read([7])
    async with store.database.change() as session:
        await settle(session, anna, records)
        await until(lambda: expired(other, 7))
        async with patience():
            taken = await other.take("main", "bert", [7], FAR)
        assert taken == {}, "the lane was taken before the settle had committed"
    assert await other.take("main", "bert", [7], FAR) == {7: anna.held[7] + 1}
    assert await Hand(other, "bert").read([7]) == []


@pytest.mark.parametrize("outcomes", [("done",), ("done", "returned")])
@pytest.mark.promise("G5", "L2", "L3")
async def test_a_settle_waits_for_who_takes_its_lane_and_then_changes_nothing(
    url, store, other, outcomes
):
    """The lease row is locked by an operator's verb that has not committed: the old token is in
    force in every snapshot, and yet it must not be believed.
    """
    await add(url, event("e", KEY))
    anna = await Hand(store).take([7])
    records = await anna.read([7])
    async with other.database.change() as session:
        await session.rows("fence_lock", ids=["e"])
        await session.run("fence_lanes", seqs=numbers([records[0].seq]))
        settling = asyncio.create_task(anna.settle(**dict.fromkeys(outcomes, records)))
        await waits_or_ends(url, settling)
        assert not settling.done(), "the settle did not look at the lock"
    async with patience():
        assert await settling == set()
    assert [r.state for r in await store.find(Filter())] == ["pending"]


@pytest.mark.promise("G5", "L2")
async def test_a_lease_that_runs_out_while_the_settle_waits_is_not_held(url, store, other):
    """The clock is the one at the check: now() would stand still at the start of the wait."""
    await add(url, event("e", KEY))
    anna = await Hand(store).take([7], 0.4)
    records = await anna.read([7])
    async with other.database.change() as session:
        # A renewal of the same token, which ends the lease instead.
        await session.rows(
            "renew", stream="main", owner="anna", lanes="{7}", tokens=numbers([anna.held[7]]),
            seconds=0.3, step=0, doubt=0.0,
        )  # fmt: skip
        settling = asyncio.create_task(anna.settle(done=records))
        await waits_or_ends(url, settling)
        rows = await session.connection.execute(
            "SELECT pg_sleep_until((SELECT until FROM postroom_lease WHERE lane = 7))"
        )
        await rows.fetchall()
    async with patience():
        assert await settling == set()
    assert [r.state for r in await store.find(Filter())] == ["pending"]


@pytest.mark.promise("L1", "L2")
async def test_of_two_who_take_a_free_lane_one_gets_it(url, store, other):
    await store.heartbeat("main", Member("anna", healthy=True), FAR, {})  # makes the lanes
    async with other.database.change() as session:
        assert await session.rows("lock_free", stream="main", lanes="{7}") == [(7,)]
        await session.rows("take", stream="main", owner="bert", lanes="{7}", seconds=FAR)
        async with patience():
            assert await store.take("main", "anna", [6, 7, 8], FAR) == {6: 1, 8: 1}
    assert (await store.leases("main")).leases[7].owner == "bert"


@pytest.mark.promise("L2", "L3")
async def test_a_renewal_takes_no_lane_from_a_settle(url, store, other):
    """Renewals commit all the time; every settle sees all its lanes, and nobody deadlocks."""
    await add(url, *(event(f"e{n}", f"k{n}") for n in range(300)))
    anna = await Hand(store).take()
    member, stop = Member("anna", healthy=True), asyncio.Event()

    async def renew(through):
        while not stop.is_set():
            await through.heartbeat("main", member, FAR, anna.held)

    async with patience(), asyncio.TaskGroup() as group:
        group.create_task(renew(store))
        group.create_task(renew(other))
        for _ in range(150):
            if records := await anna.read(rows=2):
                assert await anna.settle(done=records[:1]) == set(ALL)
                assert await anna.settle(returned=records, parked=records) == set(ALL)
        stop.set()


@pytest.mark.promise("L6")
async def test_a_lane_that_is_locked_for_a_moment_is_renewed_by_the_same_beat(
    url, store, monkeypatch
):
    anna = await Hand(store).take()
    with psycopg.connect(url) as settling:
        settling.execute("SELECT lane FROM postroom_lease WHERE lane = 7 FOR SHARE")

        async def until_the_settle_has_ended(_):
            settling.rollback()
            return True

        monkeypatch.setattr(leases.LockPauses, "next", until_the_settle_has_ended)
        membership = await store.heartbeat("main", Member("anna", healthy=True), FAR, anna.held)
    assert membership.renewed == set(ALL)


@pytest.mark.slow
@pytest.mark.req("S2.3")
@pytest.mark.promise("G5", "L1", "L2")
async def test_two_owners_never_hold_one_lane(url, store):
    """Owners with very short leases fight for lanes; each writes down what it does in its lane.

    In a lane everything under one token must come before everything under the next.
    """
    with psycopg.connect(url) as connection:
        connection.execute(
            "CREATE TABLE work (n bigint GENERATED ALWAYS AS IDENTITY, lane int, token bigint)"
        )
    fought, seconds = range(0, LANES, 16), 4.0
    loop = asyncio.get_running_loop()
    until_time = loop.time() + seconds
    written = {lane: set() for lane in fought}

    def is_enough():
        return loop.time() >= until_time and all(len(seen) > 3 for seen in written.values())

    async def fight(name):
        chance = random.Random(name)
        async with opened(url, migrate=False) as mine:
            held = {}
            while not is_enough():
                held |= await mine.take("main", name, fought, chance.uniform(0.02, 0.1))
                if not held:
                    await asyncio.sleep(0.005)  # a take never waits: leave the server to the others
                    continue
                async with mine.database.change() as session:
                    lanes = await leases.fence(session, "main", name, held)
                    pause = chance.uniform(0, 0.06)
                    await session.connection.execute("SELECT pg_sleep(%s)", (pause,))
                    for lane in lanes:
                        await session.connection.execute(
                            "INSERT INTO work (lane, token) VALUES (%s, %s)", (lane, held[lane])
                        )
                held = {lane: token for lane, token in held.items() if lane in lanes}
                for lane in lanes:
                    written[lane].add(held[lane])

    async with patience(), asyncio.TaskGroup() as group:
        for n in range(6):
            group.create_task(fight(f"owner {n}"))
    with psycopg.connect(url) as connection:
        done = connection.execute("SELECT lane, token FROM work ORDER BY n").fetchall()
    for lane in fought:
        tokens = [token for at, token in done if at == lane]
        assert tokens == sorted(tokens), f"lane {lane} had two owners at once"
        assert len(set(tokens)) > 3


@pytest.mark.slow
@pytest.mark.promise("G2", "G3", "G5")
async def test_events_are_settled_once_under_hand_over(url, store):
    """Several relays take, read and settle with leases that run out under them: what one has
    settled, no later one reads, and nothing is forgotten.
    """
    await add(url, *(event(f"e{n}", f"k{n}") for n in range(600)))
    settled = []

    async def work(name):
        chance = random.Random(name)
        async with opened(url, migrate=False) as mine:
            hand = Hand(mine, name)
            while len(settled) < 600:
                await hand.take(ALL, chance.uniform(0.05, 0.5))
                records = await hand.read(rows=chance.randrange(1, 30))
                lanes = await hand.settle(done=records)
                settled.extend(r.id for r in records if r.lane in lanes)
                hand.held = {n: t for n, t in hand.held.items() if n in lanes}

    async with patience(), asyncio.TaskGroup() as group:
        for n in range(4):
            group.create_task(work(f"owner {n}"))
    assert sorted(settled) == sorted(names(await store.find(Filter(limit=1_000))))


@both_settles
@pytest.mark.promise("G5", "L7")
async def test_a_skip_waits_for_a_settle_under_way_and_finds_the_event_done(
    url, store, other, settle
):
    await add(url, event("e", KEY))
    anna = await Hand(store).take([7])
    records = await anna.read([7])
    async with store.database.change() as session:
        await settle(session, anna, records)
        skipping = asyncio.create_task(other.skip("e", "no use"))
        await waits_or_ends(url, skipping)
        assert not skipping.done(), "the event was skipped before the settle had committed"
    async with patience():
        with pytest.raises(NotFoundError):
            await skipping
    assert [(r.id, r.state) for r in await store.find(Filter())] == [("e", "done")]


@pytest.mark.promise("G5", "W7")
async def test_an_operator_waits_for_a_cancel_under_way_and_leaves_the_event(url, store):
    await add(url, event("e", KEY, available_at=datetime.now(UTC) + timedelta(days=1)))
    async with writing(url) as application:
        assert await Outbox().cancel(application, "e")
        changing = asyncio.create_task(store.reschedule(["e"], 0, by="anna"))
        await waits_or_ends(url, changing)
        assert not changing.done(), "the event was rescheduled before the cancel had committed"
    async with patience():
        assert await changing == 0
    assert [(r.id, r.state) for r in await store.find(Filter())] == [("e", "cancelled")]
    assert await store.audit_log(1) == []
