"""What cannot go now costs nothing: big tables around a small backlog, on MariaDB.

One database for all: 50,000 done rows, 25,000 scheduled ones, 10,000 parked followers of a blocked
key (in `make nightly` 1,000,000, 500,000 and 100,000), and statistics that were taken when it was
empty. The server counts the rows that each statement touches. The limits are the same for both
sizes, far below the smaller one.
"""

from __future__ import annotations

import asyncio

import pytest

from postroom.event import Event
from postroom.lookup import Filter
from postroom.outbox import Outbox
from postroom.record import State, key_hash, lane_of
from postroom.store import ReadRequest
from postroom.stores.mysql import MysqlStore
from postroom.testing.store.tools import ALL, FAR, Hand
from tests.contract.mysql_database import own_database

pytestmark = pytest.mark.slow

READY = 5_000
BLOCKED = key_hash(None, "blocked", "")
COLUMNS = (
    "id, lane, key_hash, type, topic, `key`, payload, content_type, size, occurred_at, created_at, "
    "state, stage, next_attempt_at, settled_at"
)
NOW, NEVER = "UTC_TIMESTAMP(6)", "'9999-12-31'"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((50_000, 25_000, 10_000), id="large"),
        pytest.param((1_000_000, 500_000, 100_000), id="a million", marks=pytest.mark.nightly),
    ],
)
def database(request, mariadb_url):
    done, scheduled, followers = request.param
    with own_database(mariadb_url) as database:
        asyncio.run(MysqlStore(database.url).migrate())
        database.run(
            "ALTER TABLE postroom_outbox STATS_AUTO_RECALC = 0, STATS_PERSISTENT = 1",
            "ANALYZE TABLE postroom_outbox",
        )
        crowd(database, "done", done, "'done'", "'over'", "NULL", NOW)
        crowd(
            database, "later", scheduled, "'pending'", "'waiting'", f"{NOW} + INTERVAL 1 DAY", NEVER
        )
        head = (
            f"INSERT INTO postroom_outbox ({COLUMNS}) VALUES ('head', {lane_of(BLOCKED)}, "
            f"0x{BLOCKED.hex()}, 't', 't', 'blocked', '{{}}', 'application/json', 2, {NOW}, {NOW}, "
            f"'failed', 'waiting', {NOW} + INTERVAL 1 DAY, {NEVER})"
        )
        block = (
            "INSERT INTO postroom_block (stream, key_hash, lane, barrier, `key`, since) SELECT "
            f"stream, key_hash, lane, seq, `key`, {NOW} FROM postroom_outbox WHERE id = 'head'"
        )
        database.run(head, block)
        crowd(
            database, "follower", followers, "'pending'", "'parked'", "NULL", NEVER,
            hashed=f"0x{BLOCKED.hex()}", key="'blocked'",
        )  # fmt: skip
        crowd(database, "ready", READY, "'pending'", "'ready'", "NULL", NEVER)
        yield database


def crowd(database, name, count, state, stage, due, settled, hashed=None, key=None):
    hashed = hashed or "UNHEX(MD5(CONCAT(CHAR(0), 'k', seq % 1000)))"
    key = key or "CONCAT('k', seq % 1000)"
    database.run(
        f"INSERT INTO postroom_outbox ({COLUMNS}) SELECT CONCAT('{name}-', seq), "
        f"ASCII({hashed}) % 64, {hashed}, 't', 't', {key}, '{{\"a\":1}}', 'application/json', 7, "
        f"{NOW}, {NOW}, {state}, {stage}, {due}, {settled} FROM seq_1_to_{count}"
    )


async def touched(session, call):
    """Return what a call answers, and how many rows the server has looked at for it."""
    before = await _reads(session)
    answer = await call
    return answer, await _reads(session) - before


async def _reads(session):
    """Of the tables; what goes through memory on its way, to be sorted, is counted apart."""
    ((_, count),) = await session.query("SHOW SESSION STATUS LIKE 'Rows_read'")
    return int(count)


async def test_a_read_touches_little_more_than_it_brings(database):
    from postroom.stores.mysql.read import read

    async with database.store() as store:
        held = await store.take("main", "anna", ALL, FAR)
        question = ReadRequest("main", ALL, 16, 500, 10**7, (), "anna", held)
        async with store.session() as session:
            records, rows = await touched(session, read(session, question))
            assert len(records) == 500
            assert {r.id.partition("-")[0] for r in records} == {"ready"}
            # 64 × 16 candidates, 500 rows, as many looks for their blocks, 64 for the leases.
            assert rows < 5 * 500
        await store.release("main", "anna", held)


async def test_a_read_walks_past_a_deep_key_in_its_index(database):  # E-8, T-D
    """The rows of a key that is left out are looked at in the index; none of them is fetched."""
    from postroom.stores.mysql.read import lanes_of

    hot = key_hash(None, "k7", "")
    async with database.store() as store, store.session() as session:
        part = lanes_of(session.sql, [lane_of(hot)], [hot]).strip("()")
        asked = session._cursor.mogrify(part, {"stream": "main", "per_lane": 16})
        ((plan,),) = await session.query(f"EXPLAIN FORMAT=JSON {asked}")
        assert '"using_index": true' in plan
        assert "postroom_outbox_shelf" in plan


async def test_a_read_that_finds_nothing_touches_next_to_nothing(database):
    from postroom.stores.mysql.read import read

    async with database.store() as store, store.session() as session:
        records, rows = await touched(
            session, read(session, ReadRequest("empty", ALL, 16, 500, 10**7))
        )
        assert records == []
        assert rows < 200


async def test_a_look_of_an_idle_relay_touches_a_few_rows_for_each_lane(database):
    from postroom.stores.mysql.stage import stage

    async with database.store() as store, store.session() as session:
        staged, rows = await touched(session, stage(session, "main", ALL, 1_000))
        assert staged.moved == 0
        assert staged.ready
        assert 0 < staged.next_due_seconds <= 86_400
        assert rows < 5 * 64


async def test_a_settle_touches_what_it_settles(database):
    from postroom.stores.mysql.commands import replay
    from postroom.stores.mysql.settle import settle

    async with database.store() as store:
        hand = await Hand(store).take()
        records = await hand.read(rows=500, per_lane=16)
        async with store.session() as session:
            held, rows = await touched(session, settle(session, hand.settlement(done=records)))
            assert held == set(ALL)
            assert rows < 3 * 500
            again, rows = await touched(
                session, replay(session, [r.id for r in records], new_id=False, by=None)
            )
            assert again == 500
            assert rows < 7 * 500  # their history is read, too
        await hand.take()
        async with store.session() as session:
            settlement = hand.settlement(done=records, keep_done=False)
            held, rows = await touched(session, settle(session, settlement))
            assert held == set(ALL)
            assert rows < 3 * 500
        await store.leave("main", "anna")


async def test_prune_touches_what_it_deletes(database):
    from postroom.stores.mysql.prune import prune

    async with database.store() as store, store.session() as session:
        removed, rows = await touched(session, prune(session, FAR * 24, 1_000))
        assert removed == 0
        assert rows < 100
        removed, rows = await touched(session, prune(session, -60.0, 1_000))
        assert removed == 1_000
        assert rows < 4_000


async def test_people_find_the_few_among_the_many(database):
    from postroom.stores.mysql.lookup import find, streams

    async with database.store() as store, store.session() as session:
        found, rows = await touched(
            session, find(session, store.prefix, Filter(state=State.FAILED))
        )
        assert [r.id for r in found] == ["head"]
        assert rows < 20
        found, rows = await touched(session, find(session, store.prefix, Filter(state=State.DEAD)))
        assert found == []
        assert rows < 20
        found, rows = await touched(
            session, find(session, store.prefix, Filter(key="k7", limit=10))
        )
        assert {r.key for r in found} == {"k7"}
        assert len(found) == 10
        assert rows < 30
        found, rows = await touched(session, find(session, store.prefix, Filter(key="nobody")))
        assert found == []
        assert rows < 10
        found, rows = await touched(session, streams(session))
        assert found == ["main"]
        assert rows < 300


async def test_the_blocked_key_goes_on_in_steps(database):
    from postroom.stores.mysql.blocks import advance

    async with database.store() as store, store.session() as session:
        database.run("UPDATE postroom_block SET barrier = 0")
        async with session.change():
            moved, rows = await touched(session, advance(session, "main", BLOCKED))
            assert moved
            assert rows < 2 * 500 + 50
        database.run(
            "UPDATE postroom_outbox SET stage = 'parked' WHERE id LIKE 'follower-%' AND stage = 'ready'"
        )
        database.run(
            "UPDATE postroom_block SET barrier = (SELECT seq FROM postroom_outbox WHERE id = 'head')"
        )


async def test_a_backlog_behind_a_few_lanes_is_not_sorted(database):
    """A relay that owns a part of the lanes does not pay for the rest."""
    async with database.writing() as connection:
        await Outbox().add_many(
            connection, [Event("t", id=f"one-{n}", key="one") for n in range(50)]
        )
    from postroom.stores.mysql.read import read

    lane = lane_of(key_hash(None, "one", ""))
    async with database.store() as store, store.session() as session:
        records, rows = await touched(
            session, read(session, ReadRequest("main", [lane], 20, 20, 10**7))
        )
        assert len(records) == 20
        assert rows < 400
