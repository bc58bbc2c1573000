"""Which index each statement of the SQLite store walks, and how many statements there are."""

from __future__ import annotations

import pytest

from postroom.lookup import Filter
from postroom.outbox import Outbox
from postroom.record import State
from postroom.settlement import FailedOutcome, Settlement
from postroom.store import ReadRequest
from postroom.stores.sqlite import SqliteStore
from postroom.testing.store.tools import Hand, event


@pytest.fixture
async def store(tmp_path):
    store = SqliteStore(tmp_path / "app.db", busy_seconds=0.05)
    await store.migrate()
    await store.open()
    yield store
    await store.close()


async def add(store, *events):
    async with store.transaction() as tx:
        await Outbox().add_many(tx, events)


# -- reading --------------------------------------------------------------------------------------
async def plan_of(store, name, **values):
    def explain(db):
        rows = db.connection.execute("EXPLAIN QUERY PLAN " + db._sql[name], values)
        return [row[3] for row in rows]

    return await store._read.call(explain)


@pytest.mark.req("S2.2")
@pytest.mark.promise("D1")
@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("read_seqs", "COVERING INDEX postroom_outbox_ready (stream=? AND lane=? AND stage=?)"),
        ("read_seqs_except", "INDEX postroom_outbox_ready (stream=? AND lane=? AND stage=?)"),
        ("read", "SEARCH o USING INTEGER PRIMARY KEY (rowid=?)"),
        ("stage", "INDEX postroom_outbox_waiting (stream=? AND lane=? AND next_attempt_at<?)"),
        ("stage_look", "INDEX postroom_outbox_waiting (stream=? AND lane=?)"),
        ("advance", "INDEX postroom_outbox_parked (stream=? AND key_hash=?)"),
        ("repair_blocks", "SEARCH h USING INTEGER PRIMARY KEY (rowid=?)"),  # T-D.4
        ("prune", "INDEX postroom_outbox_done (settled_at<?)"),
        ("prune_dead_page", "INDEX postroom_outbox_other (stream=? AND state=? AND seq>?)"),
        ("purge", "INDEX sqlite_autoindex_postroom_outbox_1 (id=?)"),
        ("get", "INDEX sqlite_autoindex_postroom_outbox_1 (id=?)"),
        ("find_other", "INDEX postroom_outbox_other"),
        ("find_by_key", "INDEX postroom_outbox_key (key=? AND rowid>?)"),
        ("reach", "SEARCH o USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ("reach_by_key", "INDEX postroom_outbox_key (key=? AND rowid>? AND rowid<?)"),
        ("reach_state", "INDEX postroom_outbox_other"),
        ("find_newest", "SEARCH o USING INTEGER PRIMARY KEY (rowid>?"),
        ("find_other_newest", "INDEX postroom_outbox_other"),
        ("find_by_key_newest", "INDEX postroom_outbox_key (key=? AND rowid>?)"),
        ("reach_newest", "SEARCH o USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ("reach_by_key_newest", "INDEX postroom_outbox_key (key=? AND rowid>? AND rowid<?)"),
        ("ids", "COVERING INDEX sqlite_autoindex_postroom_outbox_1 (id>?)"),
        ("outline_newest", "INDEX postroom_outbox_key (key=?)"),
        ("newest", "SEARCH o USING INTEGER PRIMARY KEY (rowid>?)"),
        ("outlines", "INDEX sqlite_autoindex_postroom_outbox_1 (id=?)"),
        ("position", "SEARCH o USING INTEGER PRIMARY KEY (rowid>?)"),
        (
            "find_by_correlation_id",
            "INDEX postroom_outbox_correlation (correlation_id=? AND rowid>?)",
        ),
        ("reach_by_causation_id", "INDEX postroom_outbox_causation (causation_id=? AND rowid>?"),
        ("outline_by_correlation_id", "INDEX postroom_outbox_correlation (correlation_id=?)"),
        ("dead_causes", "INDEX postroom_outbox_other"),
        ("details", "INDEX sqlite_autoindex_postroom_outbox_1 (id=?)"),
        ("stats", "INDEX postroom_outbox_ready (stream>? AND stream<?)"),
        ("stats", "INDEX postroom_outbox_waiting (stream>? AND stream<?)"),
        ("stats", "INDEX postroom_outbox_parked (stream>? AND stream<?)"),
        ("stats", "INDEX postroom_outbox_other (stream>? AND stream<?)"),
        ("stats_oldest", "INDEX postroom_outbox_ready (stream=? AND lane=? AND stage=?)"),
        ("stats_done", "INDEX postroom_outbox_done"),
    ],
)
async def test_a_statement_walks_its_index(store, name, index):
    values = dict.fromkeys(
        (
            "stream",
            "lanes",
            "exclude",
            "key_hash",
            "id",
            "type",
            "topic",
            "key",
            "state",
            "seqs",
            "owner",
            "error",
            "first",
            "last",
            "ids",
            "value",
            "correlation_id",
            "causation_id",
            "beginning",
        ),
        "[]",
    ) | dict.fromkeys(
        (
            "lane", "per_lane", "rows", "step", "before", "limit", "most", "now", "after_seq",
            "from_us", "before_us", "settled_before_us", "until_seq", "seq",
        ),
        1,
    )  # fmt: skip
    await store.search.set_index("correlation", present=True)
    plan = await plan_of(store, name, **values)
    assert any(index in step for step in plan), plan
    tables = ("SCAN b", "SCAN h", "SCAN o", "SCAN r", "SCAN w", "SCAN postroom_outbox")
    bare = [step for step in plan if step in tables]
    assert bare == []


READS = ("read_seqs", "read_seqs_except", "read")
ASKED = {
    "stream": "main",
    "lanes": "[1]",
    "per_lane": 1,
    "exclude": '["00"]',
    "seqs": "[1]",
    "owner": "me",
}


async def test_a_read_sorts_nothing(store):
    for name in READS:
        plan = await plan_of(store, name, **ASKED)
        assert not any("TEMP B-TREE" in step for step in plan), plan


@pytest.mark.promise("D4")
async def test_statistics_of_an_empty_outbox_change_no_plan(store):
    before = [await plan_of(store, name, **ASKED) for name in READS]
    await store._write.call(lambda db: db.connection.execute("ANALYZE"))
    await add(store, *(event(f"e{n}", "k") for n in range(100)))
    await store.close()
    await store.open()
    assert [await plan_of(store, name, **ASKED) for name in READS] == before


async def test_a_read_leaves_no_snapshot_open(store):
    await add(store, *(event(f"e{n}", "k") for n in range(50)))
    await Hand(store).read(size=1)

    def checkpoint(db):
        return db.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    assert await store._write.call(checkpoint) == (0, 0, 0)


# -- statements -----------------------------------------------------------------------------------
@pytest.mark.parametrize("keep_done", [True, False])
async def test_a_batch_of_500_costs_four_statements(store, keep_done):
    await add(store, *(event(f"e{n}", f"k{n}") for n in range(500)))
    hand = await Hand(store).take()
    seen = []
    for thread in (store._read, store._write):
        await thread.call(lambda db: db.connection.set_trace_callback(seen.append))
    records = await store.read(ReadRequest("main", range(64), 500, 500, 10**9))
    assert len(records) == 500
    await hand.settle(done=records, keep_done=keep_done)
    kinds = [sql.split("\n")[-1] if sql.startswith("--") else sql for sql in seen]
    frames = ("BEGIN", "BEGIN IMMEDIATE", "COMMIT", "ROLLBACK")
    assert len([sql for sql in kinds if sql not in frames]) == 4, seen


async def test_the_counts_of_all_streams_cost_what_those_of_one_do(store):  # E-8.4
    await add(store, *(event(f"e{n}", "k", stream=f"s{n:02}") for n in range(50)))
    seen = []
    await store._look.call(lambda db: db.connection.set_trace_callback(seen.append))
    alone = await store.stats("s07")
    one = len(seen)
    seen.clear()
    every = await store.stats()
    assert (alone.counts["pending"], every.counts["pending"]) == (1, 50)
    assert min(alone.lag_seconds, every.lag_seconds) > 0
    assert 0 < len(seen) == one


ERROR = 'it\'s "bad" \x00 \ud800 🦊 \n'


async def test_failures_of_500_keys_cost_as_many_statements_as_one(store):
    await add(store, *(event(f"e{n}", f"k{n}") for n in range(500)))
    hand = await Hand(store).take()
    records = await hand.read()
    seen = []
    await store._write.call(lambda db: db.connection.set_trace_callback(seen.append))
    await store.settle(_failing(hand, records[:1]))
    one = len(seen)
    seen.clear()
    await store.settle(_failing(hand, records[1:]))
    assert len(seen) == one
    assert (await store.stats()).blocked_keys == 500
    errors = {r.last_error for r in await store.find(Filter(state=State.FAILED, limit=1_000))}
    assert errors == {'it\'s "bad" \\0 ? 🦊 \n'}


def _failing(hand, records) -> Settlement:
    return hand.settlement(failed=[FailedOutcome(r, 1, 5.0, ERROR) for r in records])
