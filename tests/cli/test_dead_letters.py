"""Dead letters by themselves: the view `postroom_dead` of each database shows them whole."""

from __future__ import annotations

import sqlite3
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pymysql
import pytest
from psycopg.rows import dict_row
from pymongo import MongoClient

from postroom.event import Event
from tests.cli.command import call

COLUMNS = {
    "seq", "id", "stream", "type", "topic", "key", "aggregate_type", "aggregate_id", "payload",
    "payload_bytes", "content_type", "headers", "correlation_id", "causation_path",
    "schema_version", "kseq", "occurred_at", "created_at", "attempts", "last_error", "died_at",
    "causation_id", "options", "expires_at", "history", "replaced_by",
}  # fmt: skip
FIELDS = {
    "_id", "stream", "event_type", "topic", "key", "payload", "content_type", "headers",
    "correlation_id", "occurred_at", "created_at", "attempts", "last_error", "died_at", "status",
}  # fmt: skip


def sqlite_rows(url):
    conn = sqlite3.connect(url.removeprefix("sqlite:///"))
    conn.row_factory = sqlite3.Row
    rows = [dict(row) for row in conn.execute("SELECT * FROM postroom_dead ORDER BY seq")]
    conn.close()
    return rows


def postgres_rows(url):
    with psycopg.connect(url, row_factory=dict_row) as conn:
        return conn.execute("SELECT * FROM postroom_dead ORDER BY seq").fetchall()


def mariadb_rows(url):
    parts = urlsplit(url)
    with pymysql.connect(
        host=parts.hostname, port=parts.port, user=parts.username, database=parts.path[1:],
        cursorclass=pymysql.cursors.DictCursor,
    ) as conn, conn.cursor() as cursor:  # fmt: skip
        cursor.execute("SELECT * FROM postroom_dead ORDER BY seq")
        return list(cursor.fetchall())


def mongo_rows(url):
    with MongoClient(url) as client:
        rows = list(client.get_default_database()["postroom_dead"].find().sort({"ct": 1, "n": 1}))
    assert all(set(row) >= FIELDS for row in rows)
    assert all(row["status"] == "dead" for row in rows)
    as_columns = {"_id": "id", "event_type": "type"}
    found = [{as_columns.get(name, name): value for name, value in row.items()} for row in rows]
    for row in found:
        binary = isinstance(row["payload"], bytes)
        row["payload_bytes"] = row["payload"] if binary else None
        row["payload"] = None if binary else row["payload"]
    return found


ROWS = {"sqlite": sqlite_rows, "postgresql": postgres_rows, "mysql": mariadb_rows,
        "mongodb": mongo_rows}  # fmt: skip


@pytest.mark.req("S2.4")
@pytest.mark.parametrize("store", ["sqlite", "postgres", "mariadb", "mongo"])
def test_dead_letters_have_a_place_of_their_own(tmp_path, request, store):
    place = request.getfixturevalue(f"{store}_place")
    place.migrate()
    place.add(
        Event("order.created", {"n": 1}, id="a1", key="a", topic="orders", correlation_id="c-1"),
        Event("mail", b"\x00\xff", id="m1", headers={"to": "ada"}),
        Event("order.created", {"n": 2}, id="b1", key="b", topic="orders"),
    )
    look = ROWS[place.url.partition(":")[0]]
    assert look(place.url) == []
    place.deliver(broken={"a1", "m1"}, error="no such host")
    first, second = look(place.url)
    if store != "mongo":
        assert set(first) == COLUMNS
    assert (first["id"], first["type"], first["key"]) == ("a1", "order.created", "a")
    assert (first["topic"], first["correlation_id"]) == ("orders", "c-1")
    assert (first["payload"], first["payload_bytes"]) == ('{"n":1}', None)
    assert (first["attempts"], first["last_error"]) == (1, "no such host")
    assert first["died_at"] >= first["created_at"]
    assert (second["id"], second["payload"]) == ("m1", None)
    assert bytes(second["payload_bytes"]) == b"\x00\xff"

    # There is one copy of an event, so a replay takes it out.
    done = call("replay", "a1", cwd=tmp_path, POSTROOM_STORE=place.url)
    assert done.returncode == 0, done.stderr
    assert [row["id"] for row in look(place.url)] == ["m1"]
    assert place.deliver() == ["a1"]
    assert [row["id"] for row in look(place.url)] == ["m1"]


def test_who_may_look_at_dead_letters_needs_no_right_on_the_outbox(postgres_place):
    postgres_place.migrate()
    postgres_place.add(Event("mail", {"to": "ada"}, id="m1"))
    postgres_place.deliver(broken={"m1"})
    name = f"r_{uuid4().hex[:12]}"
    schema = postgres_place.url.rpartition("%3D")[2]
    with psycopg.connect(postgres_place.url, autocommit=True) as server:
        server.execute(f"CREATE ROLE {name} LOGIN")
        server.execute(f"GRANT USAGE ON SCHEMA {schema} TO {name}")
        server.execute(f"GRANT SELECT ON postroom_dead TO {name}")
        try:
            server.execute(f"SET ROLE {name}")
            assert server.execute("SELECT id FROM postroom_dead").fetchall() == [("m1",)]
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                server.execute("SELECT id FROM postroom_outbox")
            server.execute("RESET ROLE")
        finally:
            server.execute(f"DROP OWNED BY {name}")
            server.execute(f"DROP ROLE {name}")


def test_very_many_different_errors_are_grouped_up_to_a_limit_which_is_told(  # X-low.5
    tmp_path, sqlite_place
):
    sqlite_place.migrate()
    conn = sqlite3.connect(tmp_path / "app.db")
    with conn:
        conn.execute(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 12007) "
            "INSERT INTO postroom_outbox (id, lane, key_hash, type, topic, payload, content_type,"
            " size, occurred_at, created_at, state, stage, settled_at, last_error) "
            "SELECT n, 0, CAST('@' || printf('%015d', n) AS BLOB), 't', 't', '{}', 'text/plain', 2,"
            " n, n, 'dead', 'over', n, CASE WHEN n <= 8 THEN 'often' ELSE 'no file ' || n END FROM n"
        )
    conn.close()
    done = call("dead", "--store", sqlite_place.url, cwd=tmp_path)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines[1::2]] == ["9,999", "8"]
    assert lines[2].strip() == "no file <n>"
    assert (
        "2,000 more dead letters are not grouped: only the 10,000 most frequent errors are counted."
        in done.stderr
    )
