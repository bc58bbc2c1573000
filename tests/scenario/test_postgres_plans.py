"""What the statements of a batch touch on a large outbox: about the batch, whatever lies around it.

50,000 done events, 25,000 scheduled ones, and a blocked key with 10,000 followers (in `make nightly`
1,000,000, 500,000 and 100,000). The statistics are those of an empty table, and one connection made
its plans when it was empty. `auto_explain` shows the plans inside of the functions. The limits are
the same for both sizes, far below the smaller one.
"""

from __future__ import annotations

import asyncio
import json

import psycopg
import pytest

from postroom.stores.postgres import PostgresStore
from postroom.stores.postgres.database import _CHANGE
from postroom.stores.postgres.statements import hashes, load_queries, numbers
from tests.scenario.postgres_place import own_database

pytestmark = pytest.mark.slow

LANES = list(range(0, 64, 2))
FILL = (
    "INSERT INTO postroom_outbox (id, lane, key_hash, type, topic, key, payload, content_type, "
    "size, occurred_at, created_at, state, stage, next_attempt_at, settled_at) "
    "SELECT '{kind}-' || g, get_byte(h, 0) % 64, h, 't', 't', 'k', 'null', 'application/json', 4, "
    "now(), now(), '{state}', '{stage}', {due}, {settled} "
    "FROM generate_series(1, {count}) AS g, decode(md5({key}), 'hex') AS h"
)
HELD = (
    "INSERT INTO postroom_lease (stream, lane, owner, token, until) "
    "SELECT 'main', g, 'anna', 1, 'infinity' FROM generate_series(0, 63) AS g"
)
BLOCKED = (
    "INSERT INTO postroom_block (stream, lane, key_hash, barrier, since) "
    "SELECT stream, lane, key_hash, seq, now() FROM postroom_outbox WHERE id = 'head-1'"
)
MANY_BLOCKED = (
    "INSERT INTO postroom_block (stream, lane, key_hash, barrier, since) SELECT stream, lane, "
    "key_hash, seq, now() FROM postroom_outbox WHERE id LIKE 'later-%' ORDER BY seq LIMIT 2000"
)
EXPLAINING = (
    "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_analyze = on;"
    "SET auto_explain.log_buffers = on; SET auto_explain.log_timing = off;"
    "SET auto_explain.log_nested_statements = on; SET auto_explain.log_format = json;"
    "SET client_min_messages = log"
)


class Looker:
    """A connection that keeps the plans of what it runs, those inside of functions too."""

    def __init__(self, url):
        self.url = url
        self.connection = psycopg.connect(url, autocommit=True, prepare_threshold=None)
        self.plans = []
        self.connection.execute(EXPLAINING)
        self.connection.add_notice_handler(self._keep)

    def _keep(self, notice):
        self.plans.append(json.loads(notice.message_primary.partition("plan:")[2])["Plan"])

    def explain(self, name, **values):
        """Run a statement of the store; returns its nodes, as a flat list, and its rows."""
        query = load_queries("postroom_")[name]
        self.plans.clear()
        cursor = psycopg.RawCursor(self.connection)
        cursor.execute(query.sql, [values[name] for name in query.names])
        rows = cursor.fetchall() if cursor.description else []
        return [node for plan in self.plans for node in nodes_of(plan)], rows

    def pages(self):
        """How many pages the last statement touched, all plans together."""
        return max(p["Shared Hit Blocks"] + p["Shared Read Blocks"] for p in self.plans)


def nodes_of(plan):
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes_of(part)


def fill(connection, kind, count, *, stage, state="pending", due="NULL", settled="NULL", key):
    connection.execute(
        FILL.format(
            kind=kind, count=count, stage=stage, state=state, due=due, settled=settled, key=key
        )
    )


def fill_blocked(connection, *, followers):
    """A key whose first event failed, and what waits behind it."""
    due = "now() + interval '1 day'"
    fill(connection, "head", 1, stage="waiting", state="failed", due=due, key="'held'")
    fill(connection, "follower", followers, stage="parked", key="'held'")
    connection.execute(BLOCKED)


LARGE, MILLION = (50_000, 25_000, 10_000), (1_000_000, 500_000, 100_000)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("postgres_url", LARGE), id="large"),
        pytest.param(("postgres_url", MILLION), id="a million", marks=pytest.mark.nightly),
        pytest.param(("postgres18_url", MILLION), id="a million, 18", marks=pytest.mark.nightly),
    ],
)
def outbox(request):
    """A large outbox, two lookers: one from before it was filled, and one from after."""
    server, (done, scheduled, followers) = request.param
    with own_database(request.getfixturevalue(server)) as url:
        asyncio.run(PostgresStore(url).migrate())
        early = Looker(url)
        for _ in range(8):  # long enough for the server to settle on a plan
            early.explain("read", **question())
            early.explain("stage", **staging())
            early.explain("settle", **settling([(1, "none")]))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ALTER TABLE postroom_outbox SET (autovacuum_enabled = off)")
            connection.execute("ANALYZE postroom_outbox")
            connection.execute(HELD)
            fill(
                connection,
                "done",
                done,
                stage="over",
                state="done",
                settled="now()",
                key="g::text",
            )
            fill(
                connection,
                "later",
                scheduled,
                stage="waiting",
                due="now() + interval '1 day'",
                key="g::text",
            )
            fill_blocked(connection, followers=followers)
            fill(connection, "ready", 20_000, stage="ready", key="(g % 1000)::text")
        late = Looker(url)
        yield {"early": early, "late": late}
        early.connection.close()
        late.connection.close()


@pytest.fixture(params=["early", "late"])
def looker(request, outbox):
    return outbox[request.param]


def question(**changed):
    return {
        "stream": "main", "lanes": numbers(LANES), "owner": "anna",
        "tokens": numbers([1] * len(LANES)), "floors": None, "epoch": None, "per_lane": 32,
        "rows": 500, "size": 8_000_000, "exclude": None,
    } | changed  # fmt: skip


def settling(rows, *, keep=True):
    """Settle what was read: rows begin with number and id."""
    return {
        "stream": "main", "owner": "anna", "lanes": numbers(LANES),
        "tokens": numbers([1] * len(LANES)), "seqs": numbers(row[0] for row in rows),
        "ids": [row[1] for row in rows], "receipts": [None] * len(rows), "keep": keep,
    }  # fmt: skip


def staging():
    return {
        "stream": "main", "streams": ["main"], "lanes": numbers(range(64)), "owners": ["anna"] * 64,
        "tokens": numbers([1] * 64), "floors": None, "epoch": None, "limit": 1_000,
    }  # fmt: skip


def removed(nodes):
    """How many rows were looked at and thrown away."""
    return sum(n.get("Rows Removed by Filter", 0) * n.get("Actual Loops", 1) for n in nodes)


def indexes(nodes):
    return {n["Index Name"] for n in nodes if n.get("Relation Name") == "postroom_outbox"}


def assert_no_detours(nodes):
    kinds = {n["Node Type"] for n in nodes if n.get("Relation Name") == "postroom_outbox"}
    kinds -= {"ModifyTable"}
    assert kinds <= {"Index Scan", "Index Only Scan"}, kinds
    assert not [n for n in nodes if n["Node Type"] == "Bitmap Index Scan"]
    assert all(n["Actual Rows"] <= 1_100 for n in nodes if n["Node Type"] == "Sort")


@pytest.mark.req("S2.2", "S4.7")
@pytest.mark.promise("D1", "D3", "D4")
def test_a_read_touches_what_it_returns(looker):
    assert_a_read_touches_what_it_returns(looker)


def assert_a_read_touches_what_it_returns(looker):
    nodes, rows = looker.explain("read", **question())
    assert len(rows) == 500
    assert_no_detours(nodes)
    assert indexes(nodes) == {"postroom_outbox_ready", "postroom_outbox_pkey"}
    assert removed(nodes) <= 100
    # 1,024 candidates, one page each at most; 500 rows by a key of three levels, and a look for
    # the block of each; 32 lanes.
    assert looker.pages() < 500 * 8


@pytest.mark.promise("D1", "R3")
def test_so_does_a_read_that_leaves_out_keys_in_flight(looker):
    with psycopg.connect(looker.url) as connection:
        found = connection.execute(
            "SELECT DISTINCT key_hash FROM postroom_outbox WHERE stage = 'ready' LIMIT 100"
        ).fetchall()
    exclude = hashes([key_hash for (key_hash,) in found])
    nodes, rows = looker.explain("read", **question(exclude=exclude))
    assert len(rows) == 500
    assert_no_detours(nodes)
    assert removed(nodes) <= 700
    assert looker.pages() < 6_000


@pytest.mark.promise("D1")
def test_a_read_of_empty_lanes_touches_next_to_nothing(looker):
    nodes, rows = looker.explain("read", **question(stream="other", owner=None))
    assert rows == []
    assert removed(nodes) == 0
    assert looker.pages() < 400


@pytest.mark.req("S2.2")
@pytest.mark.promise("D3", "D4", "D5")
@pytest.mark.parametrize("keep", [True, False])
def test_a_settle_touches_what_it_ends(looker, keep):
    _, rows = looker.explain("read", **question())
    connection = looker.connection
    connection.execute("BEGIN")
    try:
        nodes, answer = looker.explain("settle", **settling(rows, keep=keep))
    finally:
        connection.execute("ROLLBACK")
    assert answer[0][0] == LANES
    assert_no_detours(nodes)
    assert removed(nodes) <= 100  # lease rows, not events
    # A row is found by three pages; a new version goes into the table and three indexes.
    assert looker.pages() < 500 * (30 if keep else 8)


@pytest.mark.req("S4.7")
@pytest.mark.promise("D3", "D4")
def test_the_look_of_an_idle_relay_touches_next_to_nothing(looker):
    assert_the_look_of_an_idle_relay_touches_next_to_nothing(looker)


def assert_the_look_of_an_idle_relay_touches_next_to_nothing(looker):
    looker.explain("stage", **staging())  # a first call also reads the catalogue
    nodes, rows = looker.explain("stage", **staging())
    (moved, due, ready, _, _) = rows[0]
    assert (moved, ready) == (0, True)
    assert 3_600 < due < 86_401
    assert_no_detours(nodes)
    assert removed(nodes) == 0
    assert looker.pages() < 64 * 8


@pytest.mark.promise("B3", "D3", "D4")
def test_freeing_a_key_touches_a_step_of_its_followers(looker):
    assert_freeing_a_key_touches_a_step_of_its_followers(looker)


def assert_freeing_a_key_touches_a_step_of_its_followers(looker):
    connection = looker.connection
    connection.execute(_CHANGE)
    try:
        connection.execute("DELETE FROM postroom_outbox WHERE id = 'head-1'")
        held = connection.execute("SELECT key_hash FROM postroom_block").fetchone()
        nodes, rows = looker.explain("advance", stream="main", keys=hashes(held), step=500)
        barrier = connection.execute("SELECT barrier FROM postroom_block").fetchone()
    finally:
        connection.execute("ROLLBACK")
    assert len(rows) == 1
    assert barrier == (rows[0][1] + 499,)
    assert_no_detours(nodes)
    assert looker.pages() < 500 * 30


@pytest.mark.promise("B4", "D3", "D4")
def test_a_mend_with_nothing_to_mend_touches_the_heads_alone(looker):  # T-D.4
    connection = looker.connection
    connection.execute(_CHANGE)
    try:
        connection.execute(MANY_BLOCKED)
        everywhere = {"stream": "main", "lanes": numbers(range(64))}
        _, rows = looker.explain("repair_blocks", **everywhere, limit=100)
    finally:
        connection.execute("ROLLBACK")  # only now the statement is over, and its plan is told
    assert rows == []
    (plan,) = looker.plans
    assert_no_detours(list(nodes_of(plan)))
    assert looker.pages() < 2_000 * 6


def test_the_events_of_a_key_are_found_by_their_index(looker):  # T-D
    """All of 95,000 rows have the key `k`; those that people look for are few."""
    with psycopg.connect(looker.url, autocommit=True) as connection:
        connection.execute(
            "UPDATE postroom_outbox SET key = 'rare' WHERE id IN ('done-7', 'head-1')"
        )
    filters = ("state", "stream", "type", "topic", "error", "from_us", "before_us")
    none = dict.fromkeys(
        (*filters, "settled_before_us", "correlation_id", "causation_id", "until_seq")
    )
    for key, found in (("rare", ["done-7", "head-1"]), ("nobody", [])):
        nodes, rows = looker.explain("find_by_key", key=key, after_seq=0, limit=50, **none)
        assert [row[1] for row in rows] == found
        assert_no_detours(nodes)
        assert indexes(nodes) == {"postroom_outbox_key"}
        assert looker.pages() < 20


@pytest.mark.promise("B3", "D4")
def test_fresh_statistics_change_nothing(outbox):
    """Last: it takes the others' premise away."""
    late = outbox["late"]
    late.connection.execute("SET auto_explain.log_min_duration = -1")
    late.connection.execute("ANALYZE postroom_outbox")
    late.connection.execute("SET auto_explain.log_min_duration = 0")
    late.explain("read", **question())  # reads of the catalogue are not what is counted
    assert_a_read_touches_what_it_returns(late)
    assert_freeing_a_key_touches_a_step_of_its_followers(late)


@pytest.mark.promise("D3", "D4")
@pytest.mark.parametrize("stage", ["ready", "parked"])
@pytest.mark.parametrize("server", ["postgres_url", "postgres18_url"])
def test_statistics_of_one_key_do_not_lead_a_read_along_the_primary_key(request, server, stage):
    """They say that any row is what the read looks for. By now all of these are done."""
    with own_database(request.getfixturevalue(server)) as url:
        asyncio.run(PostgresStore(url).migrate())
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ALTER TABLE postroom_outbox SET (autovacuum_enabled = off)")
            connection.execute(HELD)
            fill(connection, "old", 100_000, stage=stage, key="'held'")
            connection.execute("ANALYZE postroom_outbox")
            connection.execute(
                "UPDATE postroom_outbox SET state = 'done', stage = 'over', settled_at = now()"
            )
            if stage == "ready":  # the walk over parked ones is tempting only before a vacuum
                connection.execute("VACUUM (INDEX_CLEANUP ON) postroom_outbox")
            fill_blocked(connection, followers=2_000)
            fill(connection, "ready", 2_000, stage="ready", key="(g % 1000)::text")
        looker = Looker(url)
        try:
            assert_a_read_touches_what_it_returns(looker)
            assert_freeing_a_key_touches_a_step_of_its_followers(looker)
            assert_the_look_of_an_idle_relay_touches_next_to_nothing(looker)
            for statement in ("floor_lowest", "stats_oldest"):
                nodes, _ = looker.explain(statement, **staging())
                assert indexes(nodes) == {"postroom_outbox_ready"}
        finally:
            looker.connection.close()
