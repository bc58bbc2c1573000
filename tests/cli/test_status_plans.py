"""`status` on a big table is answered by indexes: EXPLAIN shows it."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
import pymongo
import pymysql
import pytest

from postroom.event import Event
from postroom.record import LANES
from postroom.stores.mongo.schema import load_migrations
from postroom.stores.mysql.read import lanes_of
from postroom.stores.mysql.statements import load_queries as load_mysql_queries
from postroom.stores.postgres.statements import load_queries
from postroom.stores.sqlite.statements import load_queries as load_sqlite_queries
from tests.cli.command import call
from tests.cli.search_plans import (
    mongo_profile,
    mysql_plans,
    postgres_plans,
    search,
    sqlite_plans,
)

MILLION = 1_000_000
ASKED = ("stats", "stats_done", "stats_oldest")
COUNTS = {
    "pending": 1_000, "processing": 0, "done": 998_000, "failed": 0, "dead": 1_000,
    "expired": 0, "cancelled": 0,
}  # fmt: skip


def counted(place, folder):
    """Return what `status` counts."""
    done = call("status", "--store", place.url, "--json", cwd=folder, timeout=120)
    assert done.returncode == 0, done.stderr
    (stream,) = json.loads(done.stdout)["streams"]
    return stream["counts"]


def asked(query):
    """Return a statement of PostgreSQL with its values in it."""
    values = {"stream": "'main'", "streams": "ARRAY['main']", "limit": "100"}
    text = query.sql
    for number, name in enumerate(query.names, 1):
        text = text.replace(f"${number}", values[name])
    return text


@pytest.mark.nightly
@pytest.mark.req("S2.7", "S4.9")
def test_a_million_rows_are_counted_by_indexes(tmp_path, sqlite_place):
    sqlite_place.migrate()
    conn = sqlite3.connect(tmp_path / "app.db")
    conn.execute(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?) "
        "INSERT INTO postroom_outbox (id, lane, key_hash, type, topic, payload, content_type, size,"
        " occurred_at, created_at, state, stage, settled_at, correlation_id, causation_id) "
        "SELECT n, n % 64, CAST(char(64 + n % 64) || printf('%015d', n) AS BLOB), 't', 't', '{}',"
        " 'application/json', 2, n, n,"
        " CASE WHEN n % 1000 = 0 THEN 'pending' WHEN n % 1000 = 1 THEN 'dead' ELSE 'done' END,"
        " CASE WHEN n % 1000 = 0 THEN 'ready' ELSE 'over' END,"
        " CASE WHEN n % 1000 > 0 THEN n END, n / 10, n / 10 FROM n",
        (MILLION,),
    )
    conn.commit()
    assert counted(sqlite_place, tmp_path) == COUNTS
    queries = load_sqlite_queries("postroom_")
    for name in ASKED:
        main = dict.fromkeys(("stream", "first", "last"), "main")
        plan = conn.execute("EXPLAIN QUERY PLAN " + queries[name], main)
        for *_, step in plan:
            if step.startswith(("SCAN postroom", "SEARCH postroom")):
                assert "INDEX" in step or "PRIMARY KEY" in step, (name, step)
    search(sqlite_place, tmp_path)
    sqlite_plans(conn)
    conn.close()


@pytest.mark.req("S2.7")
def test_counts_of_what_is_not_done_never_walk_the_done_ones(postgres_place):
    postgres_place.migrate()
    with psycopg.connect(postgres_place.url, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO postroom_outbox (id, lane, key_hash, type, topic, payload, content_type,"
            " size, occurred_at, created_at, state, stage, settled_at) "
            "SELECT n::text, 1, set_byte(decode(md5(n::text), 'hex'), 0, 1), 't', 't', '{}', 'application/json', 2,"
            " now(), now(), 'done', 'over', now() FROM generate_series(1, 50000) AS n"
        )
        conn.execute("VACUUM ANALYZE postroom_outbox")
        queries = load_queries("postroom_")
        for name in ("stats", "stats_oldest", "dead_causes"):
            text = asked(queries[name])
            plan = [row for (row,) in conn.execute("EXPLAIN " + text)]
            assert not any("Seq Scan on postroom_outbox" in row for row in plan), plan
            assert any("Index" in row for row in plan)


# -- PostgreSQL -------------------------------------------------------------------------------
@pytest.mark.nightly
@pytest.mark.req("S2.7", "S4.9")
def test_a_million_rows_of_postgresql(tmp_path, postgres_place):
    postgres_place.migrate()
    with psycopg.connect(postgres_place.url, autocommit=True) as conn:
        conn.execute("ALTER TABLE postroom_outbox SET UNLOGGED")  # only to fill it quickly
        conn.execute(
            "INSERT INTO postroom_outbox (id, lane, key_hash, type, topic, payload, content_type,"
            " size, occurred_at, created_at, state, stage, settled_at, correlation_id, causation_id) "
            "SELECT n::text, n %% 64, set_byte(decode(md5(n::text), 'hex'), 0, n %% 64), 't', 't', '{}',"
            " 'application/json', 2, now(), now(),"
            " CASE n %% 1000 WHEN 0 THEN 'pending' WHEN 1 THEN 'dead' ELSE 'done' END,"
            " CASE n %% 1000 WHEN 0 THEN 'ready' ELSE 'over' END,"
            " CASE WHEN n %% 1000 > 0 THEN now() END, (n / 10)::text, (n / 10)::text"
            " FROM generate_series(1, %s) AS n",
            (MILLION,),
        )
        seen = "SELECT relallvisible > 0.9 * relpages FROM pg_class WHERE oid = 'postroom_outbox'::regclass"
        while True:  # until no transaction of a neighbour's test needs what is older
            conn.execute("VACUUM ANALYZE postroom_outbox")
            if conn.execute(seen).fetchone()[0]:
                break
            time.sleep(0.5)
        assert counted(postgres_place, tmp_path) == COUNTS
        queries = load_queries("postroom_")
        for name in ASKED:
            text = asked(queries[name])
            plan = [row for (row,) in conn.execute("EXPLAIN " + text)]
            assert not any("Seq Scan on postroom_outbox" in row for row in plan), plan
        # Dead letters by themselves do not walk over the others.
        plan = [row for (row,) in conn.execute("EXPLAIN ANALYZE SELECT * FROM postroom_dead")]
        assert any("postroom_outbox_other" in row for row in plan), plan
        search(postgres_place, tmp_path)
        postgres_plans(conn)


# -- MariaDB ----------------------------------------------------------------------------------
@contextmanager
def without_indexes(cursor, table):
    """Leave the indexes out while much is written, and build them at the end."""
    cursor.execute(
        "SELECT index_name, MAX(non_unique), GROUP_CONCAT(CONCAT('`', column_name, '`') ORDER BY seq_in_index) "
        "FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = %s "
        "AND index_name <> 'PRIMARY' GROUP BY index_name",
        (table,),
    )
    found = cursor.fetchall()
    cursor.execute(f"ALTER TABLE {table} " + ", ".join(f"DROP INDEX {name}" for name, *_ in found))
    yield
    added = [
        f"ADD {'' if many else 'UNIQUE '}INDEX {name} ({columns})" for name, many, columns in found
    ]
    cursor.execute(f"ALTER TABLE {table} " + ", ".join(added))


@pytest.mark.nightly
@pytest.mark.req("S2.7", "S4.9")
def test_a_million_rows_of_mariadb(tmp_path, mariadb_place):
    mariadb_place.migrate()
    parts = urlsplit(mariadb_place.url)
    with pymysql.connect(
        host=parts.hostname, port=parts.port, user=parts.username, database=parts.path[1:],
        autocommit=True,
    ) as conn, conn.cursor() as cursor:  # fmt: skip
        with without_indexes(cursor, "postroom_outbox"):
            cursor.execute(
                "INSERT INTO postroom_outbox (id, lane, key_hash, type, topic, payload,"
                " content_type, size, occurred_at, created_at, state, stage, settled_at,"
                " correlation_id, causation_id) "
                "SELECT n, ASCII(h) %% 64, h, 't', 't', '{}', 'application/json', 2,"
                " UTC_TIMESTAMP(6), UTC_TIMESTAMP(6),"
                " CASE n %% 1000 WHEN 0 THEN 'pending' WHEN 1 THEN 'dead' ELSE 'done' END,"
                " CASE n %% 1000 WHEN 0 THEN 'ready' ELSE 'over' END,"
                " CASE n %% 1000 WHEN 0 THEN '9999-12-31' ELSE UTC_TIMESTAMP(6) END,"
                " n DIV 10, n DIV 10 "
                "FROM (SELECT seq AS n, UNHEX(MD5(seq)) AS h FROM seq_1_to_1000000) AS s",
                (),
            )
        assert counted(mariadb_place, tmp_path) == COUNTS
        queries = load_mysql_queries("postroom_")
        oldest = queries["stats_oldest"].replace("{lanes}", lanes_of(queries, range(LANES)))
        for text in (queries["stats"], oldest):
            cursor.execute("EXPLAIN " + text, {"stream": "main", "per_lane": 10})
            steps = [dict(zip((c[0] for c in cursor.description), row, strict=True))
                     for row in cursor.fetchall()]  # fmt: skip
            looked = [step for step in steps if step["table"] == "postroom_outbox"]
            assert looked
            for step in looked:
                assert step["key"], step
                assert "Using index" in step["Extra"], step  # and no row is looked at
        cursor.execute("EXPLAIN SELECT * FROM postroom_dead")
        ((*_, key, _, _, rows, _),) = cursor.fetchall()
        assert (key, int(rows) <= 2_000) == ("postroom_outbox_open", True)
        search(mariadb_place, tmp_path)
        mysql_plans(cursor)


# -- MongoDB ----------------------------------------------------------------------------------
def a_million_documents(database):
    """Make them of one, in the server."""
    outbox = database["postroom_outbox"]
    kinds = {"$switch": {"branches": [{"case": {"$eq": ["$k", 0]}, "then": "pending"},
                                      {"case": {"$eq": ["$k", 1]}, "then": "dead"}],
                         "default": "done"}}  # fmt: skip
    awaits = {"$switch": {"branches": [{"case": {"$eq": ["$k", 0]}, "then": 0},
                                       {"case": {"$eq": ["$k", 1]}, "then": "dead"}],
                          "default": "$$NOW"}}  # fmt: skip
    number = {"$add": [{"$multiply": ["$m", 1_000]}, "$k"]}
    own = {
        "_id": {"$toString": number}, "n": {"$toLong": number}, "lane": {"$mod": ["$m", 64]},
        "status": kinds, "awaits": awaits,
        "correlation_id": {"$toString": {"$floor": {"$divide": [number, 10]}}},
        "causation_id": {"$toString": {"$floor": {"$divide": [number, 10]}}},
        "stage": {"$cond": [{"$eq": ["$k", 0]}, "ready", "over"]},
        "settled_at": {"$cond": [{"$eq": ["$k", 0]}, None, "$$NOW"]},
    }  # fmt: skip
    needed = ("stream", "ct", "size", "created_at", "next_attempt_at")  # what is asked for is small
    event = outbox.find_one()
    database["one"].insert_one({"event": {name: event[name] for name in needed}})
    outbox.drop()
    database["one"].aggregate(
        [
            {"$set": {"m": {"$range": [0, 1_000]}}}, {"$unwind": "$m"},
            {"$set": {"k": {"$range": [0, 1_000]}}}, {"$unwind": "$k"},
            {"$replaceWith": {"$mergeObjects": ["$event", own]}},
            {"$out": "postroom_outbox"},
        ]
    )  # fmt: skip
    for command in load_migrations("postroom_")[0].commands:
        if command.get("createIndexes") == "postroom_outbox":
            database.command(command)


@pytest.mark.nightly
@pytest.mark.req("S2.7", "S4.9")
def test_a_million_documents_of_mongodb(tmp_path, mongo_place):
    mongo_place.migrate()
    mongo_place.add(Event("t", {}, id="one", key="k"))
    with pymongo.MongoClient(mongo_place.url) as client:
        database = client.get_default_database()
        a_million_documents(database)
        database.command("profile", 2)
        assert counted(mongo_place, tmp_path) == COUNTS
        database.command("profile", 0)
        asked = list(database["system.profile"].find({"ns": f"{database.name}.postroom_outbox"}))
        assert len(asked) >= 5
        for one in asked:
            assert "COLLSCAN" not in one["planSummary"]
            assert one["docsExamined"] <= 1_000, one["planSummary"]  # the oldest that wait
        plan = database.command("explain", {"find": "postroom_dead"}, verbosity="executionStats")
        walked = plan["stages"][0]["$cursor"]["executionStats"]
        assert walked["nReturned"] == 1_000
        assert walked["totalKeysExamined"] <= 2_000
        database["system.profile"].drop()
        mongo_profile(database, mongo_place, tmp_path)
