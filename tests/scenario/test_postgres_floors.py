"""Reads begin at a proven floor (R6): nothing is ever below it, and a long transaction elsewhere
does not make them walk over everything that was settled since.
"""

from __future__ import annotations

import asyncio
import random
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from postroom.errors import StoreError, StoreRetryableError
from postroom.event import Event
from postroom.outbox import Outbox
from postroom.settlement import FailedOutcome
from postroom.store import ReadRequest
from postroom.stores.postgres import PostgresStore
from postroom.stores.postgres.database import Session
from postroom.stores.postgres.floors import Floors
from postroom.stores.postgres.statements import numbers
from postroom.testing.store.tools import ALL, FAR, Hand, event, keys_of_lane, names, patience, until
from tests.scenario.postgres_place import opened, own_schema, writing

(KEY,) = keys_of_lane(7, 1)


@pytest.fixture(params=["postgres_url", "postgres18_url"])
def url(request):
    with own_schema(request.getfixturevalue(request.param)) as url:
        yield url


@pytest.fixture
async def store(url):
    """A store that goes on with a proof at every read, as if all of them were slow."""
    async with opened(url) as store:
        store._floors = Floors(slow_seconds=0.0, slow_reads=1, pause=0.0)
        yield store


async def add(url, *events):
    async with writing(url) as connection:
        await Outbox().add_many(connection, events)


class Owner(Hand):
    """A hand that says who reads."""

    async def read(self, lanes=ALL, *, rows=100_000):
        return await self.store.read(
            ReadRequest("main", lanes, rows, rows, 10**9, (), self.owner, dict(self.held))
        )


def floor_of(store, lane):
    return store._floors._streams["main"][lane].floor


def insert_at(url, number, name):
    """Write an event under a number that no sequence has given."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO postroom_outbox (seq, id, lane, key_hash, type, topic, key, payload, "
            "content_type, size, occurred_at, created_at) OVERRIDING SYSTEM VALUE "
            "VALUES (%s, %s, 7, set_byte(decode(md5(chr(1)), 'hex'), 0, 7), 't', 't', 'k', 'null', "
            "'application/json', 4, now(), now())",
            (number, name),
        )


@pytest.mark.promise("R6")
async def test_once_all_is_sent_reads_begin_after_the_last_number(url, store):
    await add(url, *(event(f"e{n}", KEY) for n in range(5)))
    anna = await Owner(store).take()
    records = await anna.read()
    assert floor_of(store, 7) == records[0].seq  # the lowest that is unsettled
    assert floor_of(store, 8) == records[-1].seq + 1
    await anna.settle(done=records, keep_done=False)
    assert await anna.read() == []
    assert floor_of(store, 7) == records[-1].seq + 1


@pytest.mark.promise("R6")
async def test_a_slow_read_of_some_lanes_raises_the_floors_of_all_that_its_reader_has(url, store):
    """A relay reads its lanes in groups, and fast reads of one hid the slow ones of the other."""
    await add(url, event("e", KEY))
    anna, bert = await Owner(store, "anna").take((7, 8)), await Owner(store, "bert").take((9,))
    (record,) = await anna.read((7,))
    assert [floor_of(store, lane) for lane in (7, 8, 9)] == [record.seq, record.seq + 1, 0]
    await bert.read((9,))
    assert floor_of(store, 9) == record.seq + 1


@pytest.mark.promise("R1", "R6", "G2")
async def test_the_floor_waits_for_every_writer_that_has_a_number(url, store):
    anna = await Owner(store).take()
    async with writing(url) as late:
        await Outbox().add(late, event("late", KEY))
        await add(url, *(event(f"e{n}", KEY) for n in range(3)))
        for _ in range(3):
            assert names(await anna.read()) == ["e0", "e1", "e2"]
        assert floor_of(store, 7) == 0
    assert names(await anna.read()) == ["late", "e0", "e1", "e2"]
    await anna.read()
    assert floor_of(store, 7) == (await anna.only("late")).seq


@pytest.mark.promise("R1", "R6", "G2")
async def test_a_floor_is_not_above_the_number_of_its_proof(url, store):
    """The lowest ready event may be later: a writer between the two has not committed yet."""
    anna = await Owner(store).take()
    (elsewhere,) = keys_of_lane(8, 1)
    async with writing(url) as slow:
        async with writing(url) as first:
            await Outbox().add(first, event("first", elsewhere))
            await anna.read()  # a proof begins, and waits for this writer
            await Outbox().add(slow, event("slow", KEY))
            await add(url, event("quick", KEY))
        assert sorted(names(await anna.read())) == ["first", "quick"]
        assert floor_of(store, 7) == (await anna.only("first")).seq + 1
    assert names(await anna.read((7,))) == ["slow", "quick"]


@pytest.mark.promise("R6")
async def test_a_reader_elsewhere_does_not_keep_the_floor_down(url, store):
    await add(url, event("e", KEY))
    with psycopg.connect(url) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT count(*) FROM postroom_outbox")
        anna = await Owner(store).take()
        (record,) = await anna.read()
        assert floor_of(store, 8) == record.seq + 1


@pytest.mark.promise("R6", "G2")
async def test_what_becomes_due_below_the_floor_is_read(url, store):
    soon = datetime.now(UTC) + timedelta(seconds=1)
    await add(url, event("scheduled", KEY, available_at=soon), event("head", KEY), event("e", KEY))
    anna = await Owner(store).take()
    head, after = await anna.read()
    await anna.settle(done=[after], failed=[FailedOutcome(head, 1, 0.0, "boom")])
    await anna.read()
    assert floor_of(store, 7) > after.seq
    await anna.stage()
    assert names(await anna.read()) == ["head"]
    await anna.settle(done=await anna.read())
    await until(anna.stage)
    assert names(await anna.read()) == ["scheduled"]


@pytest.mark.promise("R6", "G4", "B3")
async def test_parked_followers_come_back_below_the_floor(url, store):
    await add(url, *(event(name, KEY) for name in ("head", "1", "2")), event("other", "x"))
    anna = await Owner(store).take()
    await anna.fail(await anna.only("head"))
    await anna.settle(parked=[r for r in await anna.read() if r.barrier])
    await anna.read()
    assert floor_of(store, 7) > 1
    await anna.stage()
    await anna.settle(done=[await anna.only("head")])
    await add(url, event("new", KEY))
    assert [r.id for r in await anna.read() if r.key == KEY] == ["1", "2", "new"]


@pytest.mark.promise("R6", "B3", "L5")
async def test_a_head_that_ends_while_it_waits_brings_its_followers_back_below_the_floor(
    url, store
):
    """As in a settle that is repeated: the head was never ready again, and lowered no floor."""
    await add(url, *(event(name, KEY) for name in ("head", "1", "2")), event("other", "x"))
    anna = await Owner(store).take()
    head = await anna.only("head")
    await anna.fail(head, delay=FAR)
    await anna.settle(parked=[r for r in await anna.read() if r.barrier])
    await anna.read()
    assert floor_of(store, 7) > head.seq + 2
    await anna.settle(done=[head._replace(barrier=head.seq)])
    assert [r.id for r in await anna.read() if r.key == KEY] == ["1", "2"]


@pytest.mark.promise("R6", "L7", "G2")
@pytest.mark.parametrize("verb", ["replay", "bury"])
async def test_what_an_operator_brings_back_below_the_floor_is_read(url, store, verb):
    await add(url, *(event(name, KEY) for name in ("1", "2", "3")))
    anna = await Owner(store).take()
    if verb == "replay":
        await anna.settle(done=await anna.read())
    else:
        await anna.fail(await anna.only("1"), delay=FAR)
        await anna.settle(parked=await anna.read())
    assert await anna.read() == []
    assert floor_of(store, 7) > 1
    async with opened(url, migrate=False) as elsewhere:
        if verb == "replay":
            await elsewhere.replay(["1"])
        else:
            await elsewhere.bury(["1"], "by hand")
    if verb == "replay":  # the lane stays with its owner, whose floor no longer counts
        assert (await store.stage("main", ALL, 1)).ready
    else:
        assert await anna.read() == []  # the lane is no longer held so …
        await anna.take()
    assert names(await anna.read()) == (["1"] if verb == "replay" else ["2", "3"])


@pytest.mark.promise("R6", "L1")
async def test_a_relay_that_has_lost_a_lane_brings_nothing_back_in_it(url, store):
    """It would lie below the floor of the new owner, who would never look there."""
    soon = datetime.now(UTC) + timedelta(seconds=0.3)
    await add(url, event("scheduled", KEY, available_at=soon), event("e", KEY))
    async with opened(url, migrate=False) as zombie:
        await zombie.take("main", "zombie", ALL, -1.0)
        anna = await Owner(store).take()
        await anna.settle(done=await anna.read())
        await anna.read()
        assert floor_of(store, 7) > 1

        async def due():
            return datetime.now(UTC) > soon

        await until(due)
        assert (await zombie.stage("main", ALL, 10)).moved == 0
        assert await anna.stage() == 1
        assert names(await anna.read()) == ["scheduled"]


@pytest.mark.promise("R6", "G2")
async def test_what_is_staged_while_a_floor_is_looked_for_is_not_passed_over(
    url, store, monkeypatch
):  # P1
    """It was not ready when the lowest event was looked for, and is below the floor that is set."""
    soon = datetime.now(UTC) + timedelta(milliseconds=300)
    await add(url, event("scheduled", KEY, available_at=soon), event("e", KEY))
    async with store.database.change() as one, store.database.change() as two:
        assert one.connection is not two.connection  # both are older than any proof
    anna = await Owner(store).take()
    await anna.settle(done=await anna.read(), keep_done=False)
    with psycopg.connect(url, autocommit=True) as connection:
        due = "SELECT 1 FROM postroom_outbox WHERE next_attempt_at < clock_timestamp()"
        while not connection.execute(due).fetchone():
            await asyncio.sleep(0.01)
    staged, execute = [], Session.rows

    async def rows(self, name, /, **values):
        found = await execute(self, name, **values)
        if name == "floor_lowest" and not staged:
            staged.append(await anna.stage())
        return found

    monkeypatch.setattr(Session, "rows", rows)
    await anna.read()
    assert staged == [1]
    assert names(await anna.read()) == ["scheduled"]


def run(url, *statements):
    with psycopg.connect(url) as connection:
        for sql in statements:
            connection.execute(sql)


async def settled_up_to(url, store, count):
    """Have so many events settled and a floor after the last of them; returns who did that."""
    await add(url, *(event(f"e{n}", KEY) for n in range(count)))
    anna = await Owner(store).take()
    records = await anna.read()
    await anna.settle(done=records, keep_done=False)
    assert await anna.read() == []
    assert floor_of(store, 7) == records[-1].seq + 1
    store._floors._slow_seconds = FAR  # from now on no read seems slow
    return anna


SEQUENCE = "pg_get_serial_sequence('postroom_outbox', 'seq')"


@pytest.mark.promise("R6", "G2")
@pytest.mark.parametrize(
    ("harm", "written"),
    [
        ((f"SELECT setval({SEQUENCE}, 3)",), 2),
        (("TRUNCATE postroom_outbox RESTART IDENTITY",), 2),
        # So many that the sequence is beyond the floor again before anyone looks.
        (("TRUNCATE postroom_outbox RESTART IDENTITY",), 30),
        (("ALTER TABLE postroom_outbox ALTER COLUMN seq RESTART WITH 2",), 30),
    ],
    ids=["setval", "truncate", "truncate-and-fill", "restart-and-fill"],
)
async def test_a_floor_is_not_used_when_numbers_were_taken_back(url, store, harm, written):  # E-3
    anna = await settled_up_to(url, store, 20)
    run(url, *harm)
    new = [f"new{n}" for n in range(written)]
    await add(url, *(event(name, KEY) for name in new))
    assert names(await anna.read()) == new
    assert (await store.stage("main", ALL, 1)).ready
    # It heals: the next proof forgets the old floors, and nothing unsettled is below the new ones.
    store._floors._slow_seconds = 0.0
    records = await anna.read()
    assert names(records) == new
    assert floor_of(store, 7) == records[0].seq
    await anna.settle(done=records, keep_done=False)
    assert await anna.read() == []
    assert floor_of(store, 7) == records[-1].seq + 1


@pytest.mark.promise("R6", "G2")
async def test_a_floor_is_not_used_by_a_backend_that_is_younger_than_its_proof(url, store):  # E-3
    """It may have been started after a crash; behind a pooler nobody here would know."""
    anna = await settled_up_to(url, store, 20)
    insert_at(url, 10, "below")
    assert await anna.read() == []
    for connection in store.database._pool._pool:
        run(url, f"SELECT pg_terminate_backend({connection.pgconn.backend_pid}, 10000)")
    with pytest.raises(StoreError):
        await anna.read()
    assert names(await anna.read()) == ["below"]


@pytest.mark.promise("R6", "G2")
async def test_a_sequence_with_a_cache_has_no_floor(url, store):  # E-3
    """A session that is idle holds numbers below the highest, and no lock."""
    run(url, "ALTER TABLE postroom_outbox ALTER COLUMN seq SET CACHE 20")
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as early:
        async with early.transaction():
            await Outbox().add(early, event("first", KEY))  # holds twenty numbers now
        await add(url, event("second", KEY))
        anna = await Owner(store).take()
        await anna.settle(done=await anna.read(), keep_done=False)
        assert await anna.read() == []
        assert floor_of(store, 7) == 0
        async with early.transaction():
            await Outbox().add(early, event("late", KEY))
        assert names(await anna.read()) == ["late"]


@pytest.mark.promise("R6", "G2")
async def test_a_change_with_an_unknown_end_leaves_no_floor(url, store):
    await add(url, event("e", KEY))
    anna = await Owner(store).take()
    await anna.settle(done=await anna.read())
    await anna.read()
    with pytest.raises(ZeroDivisionError), store._floors.moving("main", [7]):
        1 / 0
    await anna.read()
    assert floor_of(store, 7) == 0
    assert floor_of(store, 8) > 0
    anna.held = await store.retake("main", "anna", anna.held, FAR)
    await anna.read()
    assert floor_of(store, 7) > 0


@pytest.mark.slow
@pytest.mark.req("S4.7")
@pytest.mark.promise("R1", "R6", "G2")
async def test_under_random_writers_no_event_is_ever_skipped(url, store):
    """Writers begin, linger, commit or roll back at random; every read goes on with the proof.

    Staging and mending go on beside the reads of two workers (E-9): what they bring back must
    lower the floors before anybody reads.
    """
    written, raised, writing_ends = [], 0, asyncio.get_running_loop().time() + 4.0
    loop = asyncio.get_running_loop()

    async def write(number):
        chance = random.Random(number)
        async with await psycopg.AsyncConnection.connect(url) as connection:
            for turn in range(100_000):
                if loop.time() > writing_ends and raised > 5:
                    return
                ids = [f"{number}-{turn}-{n}" for n in range(chance.randrange(1, 4))]
                due = chance.choice([None, None, timedelta(seconds=chance.uniform(0, 0.3))])
                at = due and datetime.now(UTC) + due
                await Outbox().add_many(
                    connection,
                    [
                        Event("t", id=i, key=f"k{chance.randrange(20)}", available_at=at)
                        for i in ids
                    ],
                )
                await connection.execute("SELECT pg_sleep(%s)", (chance.expovariate(100),))
                if chance.random() < 0.8:
                    await connection.commit()
                    written.extend(ids)
                else:
                    await connection.rollback()

    anna, over, seen = await Owner(store).take(), asyncio.Event(), []

    async def work(lanes):
        """Read and settle some of the lanes, as each worker of a relay does."""
        nonlocal raised
        chance = random.Random(lanes[0])
        while not over.is_set():
            before = [floor_of(store, lane) for lane in ALL]
            records = await anna.read(lanes, rows=chance.randrange(1, 50))
            raised += before < [floor_of(store, lane) for lane in ALL]
            failed = [r for r in records if r.attempts == 0 and chance.random() < 0.02]
            stopped = {r.key_hash: r.seq for r in reversed(failed)}
            free = [r for r in records if r.barrier is None or r.seq <= r.barrier]
            done = [r for r in free if r.seq < stopped.get(r.key_hash, 2**60)]
            parked = [r for r in records if r.barrier is not None and r.seq > r.barrier]
            failures = [
                FailedOutcome(r, 1, 0.02, "boom")
                for r in failed
                if r.seq == stopped[r.key_hash] and r in free
            ]
            with suppress(StoreRetryableError):  # nothing was changed
                await anna.settle(done=done, failed=failures, parked=parked, keep_done=False)
                seen.extend(names(done))

    async def beside(step):
        """Do it now and then while the workers read: events come back at any moment."""
        chance = random.Random(1)
        while not over.is_set():
            with suppress(StoreRetryableError):
                await step()
            await asyncio.sleep(chance.expovariate(20))

    async def watch(writers):
        idle = 0
        while idle < 5:
            waits = (await store.stats()).counts
            still = any(waits.values()) or not all(task.done() for task in writers)
            idle = 0 if still else idle + 1
        over.set()

    async with patience(), asyncio.TaskGroup() as group:
        writers = [group.create_task(write(n)) for n in range(6)]
        group.create_task(watch(writers))
        group.create_task(work(ALL[::2]))
        group.create_task(work(ALL[1::2]))
        group.create_task(beside(anna.stage))
        group.create_task(beside(lambda: store.repair_blocks("main", "anna", anna.held, 100)))
    assert len(written) > 200
    assert raised > 5
    assert sorted(seen) == sorted(written)


BUFFERS = re.compile(r"Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?")


def pages_of_a_read(connection, store, hand):
    """How many pages a read touches, as the server counts them.

    The connection is older than the proof of a floor: a younger one does not believe it.
    """
    query = (
        "EXPLAIN (ANALYZE, BUFFERS) SELECT * FROM postroom_read3('main', %s, 'anna', %s, %s, %s, "
        "100, 100, 1000000, NULL)"
    )
    question = ReadRequest("main", ALL, 1, 1, 1, (), "anna", hand.held)
    values = (
        numbers(ALL), numbers(hand.held[lane] for lane in ALL),
        store._floors.under(question), store._floors.epoch,
    )  # fmt: skip
    for _ in range(2):  # the first fills the caches of a new connection
        rows = connection.execute(query, values).fetchall()
    (line,) = [line for (line,) in rows if "Function Scan" not in line and "Buffers" in line][:1]
    return sum(int(n or 0) for n in BUFFERS.search(line).groups())


@pytest.mark.slow
@pytest.mark.req("S4.7")
@pytest.mark.promise("R6", "D3")
async def test_a_long_transaction_elsewhere_does_not_slow_reads_down_in_the_end(url, store):
    settled = 30_000
    with psycopg.connect(url) as old, psycopg.connect(url, autocommit=True) as writer:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("SELECT 1 FROM postroom_meta")
        writer.execute(
            "INSERT INTO postroom_outbox (id, lane, key_hash, type, topic, payload, content_type, "
            "size, occurred_at, created_at) SELECT g, g %% 64, h, 't', 't', "
            "'null', 'application/json', 4, now(), now() FROM generate_series(1, %s) AS g, "
            "set_byte(decode(md5(g::text), 'hex'), 0, g %% 64) AS h",
            (settled,),
        )
        anna = await Owner(store).take()
        store._floors._slow_seconds = FAR  # no proof
        while records := await anna.read(rows=3_000):
            await anna.settle(done=records, keep_done=False)
        await add(url, *(event(f"new {n}", f"k{n}") for n in range(50)))
        walked = pages_of_a_read(writer, store, anna)
        assert walked > settled  # one page for each entry: the counterexample is there
        store._floors._slow_seconds = 0.0
        assert len(await anna.read()) == 50
        assert pages_of_a_read(writer, store, anna) < 1_000
        assert len(await anna.read()) == 50


@pytest.mark.promise("R6")
async def test_a_role_that_may_not_look_at_the_sequence_reads_all_the_same(url, store, monkeypatch):
    await add(url, event("e", KEY))
    anna = await Owner(store).take()
    query = store.database._sql["floor_number"]
    monkeypatch.setitem(store.database._sql, "floor_number", query._replace(sql="SELECT 1 / 0, 0"))
    assert names(await anna.read()) == ["e"]
    assert floor_of(store, 7) == 0


def test_a_read_is_slow_after_some_milliseconds():
    assert 0.005 <= PostgresStore("postgresql:")._floors._slow_seconds <= 0.1
