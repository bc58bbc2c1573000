"""`status` on a big table is answered by indexes: EXPLAIN shows it."""

from __future__ import annotations

import json
import sqlite3

import psycopg
import pytest

from postroom.stores.postgres.statements import load_queries
from postroom.stores.sqlite.statements import load_queries as load_sqlite_queries
from tests.cli.command import call

MILLION = 1_000_000
ASKED = ("stats", "stats_done", "stats_oldest")


@pytest.mark.slow
@pytest.mark.req("S2.7", "S4.9")
def test_a_million_rows_are_counted_by_indexes(tmp_path, sqlite_place):
    sqlite_place.migrate()
    conn = sqlite3.connect(tmp_path / "app.db")
    conn.execute(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?) "
        "INSERT INTO postroom_outbox (id, lane, key_hash, type, topic, payload, content_type, size,"
        " occurred_at, created_at, state, stage, settled_at) "
        "SELECT n, n % 64, randomblob(16), 't', 't', '{}', 'application/json', 2, n, n,"
        " CASE WHEN n % 1000 = 0 THEN 'pending' WHEN n % 1000 = 1 THEN 'dead' ELSE 'done' END,"
        " CASE WHEN n % 1000 = 0 THEN 'ready' ELSE 'over' END,"
        " CASE WHEN n % 1000 > 0 THEN n END FROM n",
        (MILLION,),
    )
    conn.commit()
    done = call("status", "--store", sqlite_place.url, "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["streams"][0]["counts"] == {
        "pending": 1_000, "processing": 0, "done": 998_000, "failed": 0, "dead": 1_000,
    }  # fmt: skip
    queries = load_sqlite_queries("postroom_")
    for name in ASKED:
        plan = conn.execute("EXPLAIN QUERY PLAN " + queries[name], {"stream": "main"})
        for *_, step in plan:
            if step.startswith(("SCAN postroom", "SEARCH postroom")):
                assert "INDEX" in step or "PRIMARY KEY" in step, (name, step)
    conn.close()


@pytest.mark.req("S2.7")
def test_counts_of_what_is_not_done_never_walk_the_done_ones(postgres_place):
    postgres_place.migrate()
    with psycopg.connect(postgres_place.url, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO postroom_outbox (id, lane, key_hash, type, topic, payload, content_type,"
            " size, occurred_at, created_at, state, stage, settled_at) "
            "SELECT n::text, 1, decode(md5(n::text), 'hex'), 't', 't', '{}', 'application/json', 2,"
            " now(), now(), 'done', 'over', now() FROM generate_series(1, 50000) AS n"
        )
        conn.execute("VACUUM ANALYZE postroom_outbox")
        queries = load_queries("postroom_")
        for name in ("stats", "stats_oldest", "causes"):
            text = queries[name].sql
            for mark in ("$1", "$2"):
                text = text.replace(mark, "'main'")
            plan = [row for (row,) in conn.execute("EXPLAIN " + text)]
            assert not any("Seq Scan on postroom_outbox" in row for row in plan), plan
            assert any("Index" in row for row in plan)
