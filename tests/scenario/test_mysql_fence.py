"""Nobody else can own a lane from the check of a settle to its commit (G5), on MariaDB.

Every test here fails when the fence is weakened; the mutants named `my-…` do so one by one.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta

import pytest

from postroom.errors import StoreRetryableError
from postroom.lookup import Filter
from postroom.outbox import Outbox
from postroom.record import LANES
from postroom.settlement import Settlement
from postroom.store import ReadRequest
from postroom.stores.mysql import settle
from postroom.stores.mysql.session import Session
from postroom.testing.store.tools import ALL, FAR, Hand, event, keys_of_lane, until
from tests.contract.mysql_database import own_database
from tests.scenario.place import Stop

(KEY,) = keys_of_lane(7, 1)


@pytest.fixture
def database(mariadb_url):
    with own_database(mariadb_url) as database:
        yield database


@pytest.fixture
async def store(database):
    async with database.store() as store:
        yield store


@pytest.fixture
async def other(database):
    async with database.store() as store:
        yield store


async def add(database, *added, strict=False):
    async with database.writing() as connection:
        await Outbox(ordering="strict" if strict else "keyed").add_many(connection, added)


@pytest.fixture
def held_up(monkeypatch):
    """A settle that stops between its fence and its commit."""
    stop, fence = Stop(), settle.fence

    async def slow(*args):
        lanes = await fence(*args)
        await stop()
        return lanes

    monkeypatch.setattr(settle, "fence", slow)
    return stop


@pytest.mark.req("S2.3")
@pytest.mark.promise("G5", "L2")
async def test_a_lane_cannot_be_taken_between_the_check_and_the_commit(
    database, store, other, held_up
):
    await add(database, event("e", KEY))
    anna = Hand(store)
    anna.held = await store.take("main", "anna", [7], 0.3)
    settling = asyncio.create_task(anna.settle(done=await anna.read([7])))
    await reached(held_up)
    await until(lambda: expired(other, 7))
    assert await other.take("main", "bert", [7], FAR) == {}
    assert [r.state for r in await other.find(Filter())] == ["pending"]
    held_up.released.set()
    assert await settling == {7}
    assert await other.take("main", "bert", [7], FAR) == {7: anna.held[7] + 1}
    assert await other.read(ReadRequest("main", [7], 10, 10, 10**6)) == []


@pytest.mark.promise("G5", "L2")
async def test_a_settle_waits_for_a_take_under_way_and_sees_it(database, store):
    await add(database, event("e", KEY))
    anna = await Hand(store).take()
    records = await anna.read()
    with database.connection() as (connection, cursor):
        cursor.execute("UPDATE postroom_lease SET owner = 'bert', token = token + 1 WHERE lane = 7")
        settling = asyncio.create_task(anna.settle(done=records))
        await until(lambda: waits_for_a_lock(database))
        assert not settling.done()
        connection.commit()
    assert await settling == set(ALL) - {7}
    assert [r.state for r in await store.find(Filter())] == ["pending"]


@pytest.mark.promise("G5", "L2")
async def test_a_settle_that_sees_a_take_come_to_nothing_goes_on(database, store):
    await add(database, event("e", KEY))
    anna = await Hand(store).take()
    records = await anna.read()
    with database.connection() as (connection, cursor):
        cursor.execute("UPDATE postroom_lease SET owner = 'bert', token = token + 1 WHERE lane = 7")
        settling = asyncio.create_task(anna.settle(done=records))
        await until(lambda: waits_for_a_lock(database))
        connection.rollback()
    assert await settling == set(ALL)
    assert [r.state for r in await store.find(Filter())] == ["done"]


@pytest.mark.promise("L5")
async def test_a_retake_takes_no_lane_from_a_transaction_in_limbo(database, store, other, held_up):
    await add(database, event("e", KEY))
    anna = await Hand(store).take()
    settling = asyncio.create_task(anna.settle(done=await anna.read()))
    await reached(held_up)
    assert await other.retake("main", "anna", anna.held, 1.0) == {}
    held_up.released.set()
    assert await settling == set(ALL)
    again = await other.retake("main", "anna", anna.held, FAR)
    assert again == {lane: token + 1 for lane, token in anna.held.items()}
    assert [r.state for r in await other.find(Filter())] == ["done"]


@pytest.mark.promise("L1", "L5")
async def test_a_lane_in_limbo_does_not_keep_the_others_from_being_taken(database, store, other):
    await store.take("main", "anna", ALL, -1.0)
    with database.connection() as (_, cursor):
        cursor.execute(
            "UPDATE postroom_lease SET settles = settles + 1 WHERE stream = 'main' AND lane IN (3, 7)"
        )
        async with asyncio.timeout(2):
            taken = await other.take("main", "bert", ALL, FAR)
    assert sorted(taken) == [lane for lane in ALL if lane not in (3, 7)]
    assert sorted(await other.take("main", "bert", ALL, FAR)) == [3, 7]


@pytest.mark.promise("G5", "L7")
async def test_an_operator_waits_for_a_settle_and_changes_what_it_left(
    database, store, other, held_up
):
    await add(database, event("sent", KEY), event("unsent", KEY))
    anna = await Hand(store).take()
    sent, _ = await anna.read()
    settling = asyncio.create_task(anna.settle(done=[sent]))
    await reached(held_up)
    burying = asyncio.create_task(other.bury(["sent", "unsent"], "by hand"))
    await until(lambda: waits_for_a_lock(database))
    held_up.released.set()
    assert await settling == set(ALL)
    assert await burying == 1
    assert {r.id: r.state for r in await other.find(Filter())} == {"sent": "done", "unsent": "dead"}


@pytest.mark.promise("G5", "W7")
async def test_an_operator_waits_for_a_cancel_under_way_and_leaves_the_event(database, store):
    await add(database, event("e", KEY, available_at=datetime.now(UTC) + timedelta(days=1)))
    async with database.writing() as application:
        assert await Outbox().cancel(application, "e")
        changing = asyncio.create_task(store.reschedule(["e"], 0, by="anna"))
        await until(lambda: waits_for_a_lock(database))
    assert await changing == 0
    assert [(r.id, r.state) for r in await store.find(Filter())] == [("e", "cancelled")]
    assert await store.audit_log(1) == []


@pytest.mark.promise("L7")
async def test_an_operator_fences_also_a_lane_that_was_never_leased(database, store, other):
    """The lane's row is made first: whoever takes it meanwhile has to wait for the verb."""
    await add(database, event("e", KEY))
    stop = Stop()
    rows = Session.rows

    async def slow(self, name, /, **values):
        found = await rows(self, name, **values)
        if name == "chosen_now":
            await stop()
        return found

    Session.rows = slow
    try:
        burying = asyncio.create_task(store.bury(["e"], "by hand"))
        await reached(stop)
        assert 7 not in await other.take("main", "bert", ALL, FAR)
        stop.released.set()
        assert await burying == 1
    finally:
        Session.rows = rows


@pytest.mark.promise("L2")
@pytest.mark.parametrize("where", ["with the commit", "before it"])
async def test_a_lock_that_is_not_free_leaves_nothing_behind(database, where):
    """A lock wait that runs out undoes one statement; the rest must go with it.

    The statements of a settle travel with its commit, unless it has to look at a block first.
    """
    async with database.store(lock_seconds=1, pool_size=1) as store:
        await add(database, event("first", KEY), event("locked", keys_of_lane(8, 1)[0]))
        anna = await Hand(store).take()
        first, locked = await anna.read()
        if where == "before it":
            locked = locked._replace(barrier=locked.seq)
        with database.connection() as (connection, cursor):
            cursor.execute("SELECT 1 FROM postroom_outbox WHERE id = 'locked' FOR UPDATE")
            with pytest.raises(StoreRetryableError, match="lock"):
                await anna.settle(starts=[first], done=[locked])
            cursor.execute("SELECT lane FROM postroom_lease FOR UPDATE NOWAIT")
            connection.rollback()
        assert {r.id: (r.state, r.attempts) for r in await store.find(Filter())} == {
            "first": ("pending", 0),
            "locked": ("pending", 0),
        }
        assert await anna.settle(starts=[first], done=[locked]) == set(ALL)
        assert {r.id: (r.state, r.attempts) for r in await store.find(Filter())} == {
            "first": ("processing", 1),
            "locked": ("done", 0),
        }


@pytest.mark.promise("L2")
async def test_a_deadlock_is_a_conflict_and_the_settle_can_be_repeated(database, store):
    await add(database, *(event(f"e{n}", f"k{n}") for n in range(500)), event("mine", KEY))
    anna = await Hand(store).take()
    mine = await anna.only("mine")
    with database.connection() as (connection, cursor):
        # Many changes, so that the server sacrifices the settle and not this one.
        cursor.execute("UPDATE postroom_outbox SET last_error = 'x'")
        settling = asyncio.create_task(anna.settle(done=[mine]))
        await until(lambda: waits_for_a_lock(database))
        waiting = asyncio.get_running_loop().run_in_executor(
            None, cursor.execute, "UPDATE postroom_lease SET settles = 0"
        )
        with pytest.raises(StoreRetryableError, match="deadlock"):
            await settling
        await waiting
        connection.rollback()
    assert await anna.settle(done=[mine]) == set(ALL)
    assert (await store.get("mine")).state == "done"


@pytest.mark.slow
@pytest.mark.req("S2.3", "S4.7")
@pytest.mark.promise("G5", "L1", "L2", "L3")
async def test_two_owners_never_own_one_lane(database):
    """Four owners with leases too short to be kept, for a few seconds; the server is the judge."""
    async with database.store() as store:
        await store.take("main", "nobody", ALL, -1.0)
    database.run(
        "CREATE TABLE violations (what VARCHAR(200))",
        """CREATE TRIGGER one_owner AFTER UPDATE ON postroom_lease FOR EACH ROW
           IF NOT (OLD.owner <=> NEW.owner) AND NEW.owner IS NOT NULL
              AND (NEW.token = OLD.token OR (OLD.owner IS NOT NULL AND OLD.until > UTC_TIMESTAMP(6)))
           THEN INSERT INTO violations VALUES (CONCAT(NEW.lane, ': ', OLD.owner, ' → ', NEW.owner));
           END IF""",
    )
    await add(database, *(event(f"e{n}", f"k{n % 200}") for n in range(4_000)))
    settled = defaultdict(list)  # lane → (seq, token), as the owners were told
    deadline = asyncio.get_running_loop().time() + 6.0

    async def own(name, seed):
        dice = random.Random(seed)
        async with database.store() as store:
            while asyncio.get_running_loop().time() < deadline:
                lanes = dice.sample(ALL, 24)
                try:
                    held = await store.take("main", name, lanes, dice.choice([0.01, 0.03, 0.2]))
                    if not held:
                        continue
                    question = ReadRequest("main", list(held), 4, 60, 10**6, (), name, held)
                    records = await store.read(question)
                    await asyncio.sleep(dice.choice([0, 0, 0.02]))
                    settlement = Settlement("main", name, 1.0, held, done=records)
                    for lane in await store.settle(settlement):
                        settled[lane] += [(r.seq, held[lane]) for r in records if r.lane == lane]
                    if dice.random() < 0.7:
                        await store.release("main", name, held)
                except StoreRetryableError:
                    continue

    await asyncio.gather(*(own(f"owner-{n}", n) for n in range(4)))
    assert database.run("SELECT * FROM violations") == []
    told = [seq for lane in settled.values() for seq, _ in lane]
    assert len(told) == len(set(told)) > 500
    for lane in settled.values():
        tokens = [token for _, token in sorted(lane)]
        assert tokens == sorted(tokens)
    done = database.run("SELECT seq FROM postroom_outbox WHERE state = 'done' ORDER BY seq")
    assert [seq for (seq,) in done] == sorted(told)


@pytest.mark.promise("L1")
async def test_takers_at_the_same_moment_share_out_the_lanes_many_times(database):
    """Once is luck: a take without locks gives some lane away twice only now and then."""
    async with database.store() as one, database.store() as two, database.store() as three:
        for turn in range(15):
            taken = await asyncio.gather(
                *(take(s, f"{n}-{turn}") for n, s in enumerate((one, two, three)))
            )
            assert sorted(lane for lanes in taken for lane in lanes) == list(range(LANES))
            for n, (store, lanes) in enumerate(zip((one, two, three), taken, strict=True)):
                await store.release("main", f"{n}-{turn}", lanes)


async def test_members_that_are_long_gone_are_forgotten_without_a_deadlock(database):
    from postroom.store import Member

    async with database.store() as one, database.store() as two:
        for n in range(5):
            await one.heartbeat("main", Member(f"gone-{n}", healthy=True), -1.0, {})
        database.run("UPDATE postroom_member SET until = '2001-01-01'")
        for _ in range(5):
            await asyncio.gather(
                one.heartbeat("main", Member("anna", healthy=True), FAR, {}),
                two.heartbeat("main", Member("bert", healthy=True), FAR, {}),
            )
        assert database.run("SELECT owner FROM postroom_member ORDER BY owner") == [
            (b"anna",),
            (b"bert",),
        ]


async def test_a_member_with_a_zero_date_stops_no_heartbeat(database, store):
    """MariaDB keeps such dates, and computes nothing from them: what it computes is NULL."""
    from postroom.store import Member

    database.run(
        "SET STATEMENT sql_mode = '' FOR INSERT INTO postroom_member "
        "(stream, owner, name, healthy, length, until) "
        "VALUES ('main', 'zero', 'zero', 1, 1000000, '0000-00-00')"
    )
    for _ in range(2):
        membership = await store.heartbeat("main", Member("anna", healthy=True), FAR, {})
        assert [member.owner for member in membership.members] == ["anna"]
    assert len(await store.take("main", "anna", ALL, FAR)) == LANES
    assert database.run("SELECT owner FROM postroom_member") == [(b"anna",)]


async def take(store, owner):
    """Take all lanes; after a deadlock, which has changed nothing, again as a relay does."""
    while True:
        try:
            return await store.take("main", owner, ALL, FAR)
        except StoreRetryableError:
            await asyncio.sleep(0.01)


async def reached(stop):
    async with asyncio.timeout(10):
        await stop.reached.wait()


async def expired(store, lane):
    return not (await store.leases("main")).leases[lane].live


async def waits_for_a_lock(database):
    await asyncio.sleep(0.15)  # looked at more often than every 0.1 s, this table shows the past
    return database.run(
        "SELECT 1 FROM information_schema.innodb_trx AS t JOIN information_schema.processlist AS p "
        f"ON p.id = t.trx_mysql_thread_id WHERE p.db = '{database.name}' "
        "AND t.trx_state = 'LOCK WAIT'"
    )
