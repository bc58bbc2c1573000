"""What searches look at in a million rows: `tests/cli/test_status_plans.py` fills the tables.

In these ten events each share a correlation id and a causation id, the number of the first one
divided by ten.
"""

from __future__ import annotations

import json
import re

from postroom.stores.mysql.statements import load_queries as load_mysql_queries
from postroom.stores.postgres.statements import load_queries
from postroom.stores.sqlite.statements import load_queries as load_sqlite_queries
from tests.cli.command import call

BOUND = 1_000
CORRELATED = {"find_by": "correlation", "reach_by": "correlation", "outline_by": "correlation"}
VALUES = {
    "after_seq": 0, "limit": 100, "rows": BOUND, "seq": 500_000, "value": "777", "until_seq": None,
    "correlation_id": "777", "causation_id": None, "key": None, "state": None, "stream": None,
    "type": None, "topic": None, "error": None, "from_us": None, "before_us": None,
    "settled_before_us": None, "beginning": "777",
}  # fmt: skip
BOUNDED = VALUES | {"correlation_id": None, "type": "nothing", "until_seq": BOUND}


def search(place, folder):
    """Ask the real command, before and after there is an index."""

    def asked(*arguments):
        done = call("list", "--store", place.url, "--json", *arguments, cwd=folder, timeout=120)
        assert done.returncode == 0, done.stderr
        return [json.loads(line)["id"] for line in done.stdout.splitlines()], done.stderr

    found, said = asked("--type", "nothing", "--after", "0", "--scan-limit", str(BOUND))
    assert found == []
    assert said.startswith(f"looked at {BOUND:,} events, up to ")
    found, said = asked("--type", "nothing", "--scan-limit", str(BOUND))
    assert found == []
    assert said.startswith(f"looked at {BOUND:,} events, down to ")
    made = call("migrate", "--index", "correlation", "--store", place.url, cwd=folder, timeout=120)
    assert made.returncode == 0, made.stderr
    found, said = asked("--correlation", "777")
    assert (len(found), said) == (10, "")
    assert len(asked("--causation", "778")[0]) == 10


def sqlite_plans(conn):
    queries = load_sqlite_queries("postroom_")
    for name in CORRELATED:
        plan = conn.execute("EXPLAIN QUERY PLAN " + queries[f"{name}_correlation_id"], VALUES)
        steps = [step for *_, step in plan]
        assert any("INDEX postroom_outbox_correlation" in step for step in steps), steps
    for name in ("find", "reach", "find_newest", "reach_newest", "position"):
        plan = conn.execute("EXPLAIN QUERY PLAN " + queries[name], BOUNDED)
        steps = [step for *_, step in plan]
        assert any("USING INTEGER PRIMARY KEY (rowid>?" in step for step in steps), steps


def postgres_plans(conn):
    for name in CORRELATED:
        nodes = _analyzed(conn, f"{name}_correlation_id", VALUES)
        assert {n["Index Name"] for n in nodes if "Index Name" in n} == {
            "postroom_outbox_correlation"
        }
        assert max(n["Actual Rows"] for n in nodes) <= 10
    for name in ("find", "reach", "find_newest", "reach_newest"):
        nodes = _analyzed(conn, name, BOUNDED)
        assert not any(n["Node Type"] == "Seq Scan" for n in nodes)
        looked = [n["Actual Rows"] + n.get("Rows Removed by Filter", 0) for n in nodes]
        assert max(looked) <= BOUND, name
    nodes = _analyzed(conn, "position", BOUNDED)
    assert max(n["Actual Rows"] for n in nodes) == 1
    nodes = _analyzed(conn, "ids", VALUES)
    assert max(n["Actual Rows"] for n in nodes) <= VALUES["limit"]


def _analyzed(conn, name, values):
    query = load_queries("postroom_")[name]

    def said(found):
        value = values[query.names[int(found[1]) - 1]]
        return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value)

    text = re.sub(r"\$(\d+)", said, query.sql)
    ((plan,),) = conn.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}".encode()).fetchall()
    stack, found = [plan[0]["Plan"]], []
    while stack:
        found.append(stack.pop())
        stack += found[-1].get("Plans", ())
    return found


def mysql_plans(cursor):
    queries = load_mysql_queries("postroom_")

    def plan(name, values):
        cursor.execute("EXPLAIN " + queries[name], values)
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        return [row for row in rows if row["table"] in ("o", "h")]

    for name in CORRELATED:
        for step in plan(f"{name}_correlation_id", VALUES):
            assert step["key"] == "postroom_outbox_correlation", step
            assert int(step["rows"]) <= 100, step
    for name in ("find", "reach", "find_newest", "reach_newest"):
        for step in plan(name, BOUNDED):
            assert (step["key"], step["type"]) == ("PRIMARY", "range"), step
            assert int(step["rows"]) <= 10 * BOUND, step


def mongo_profile(database, place, folder):
    database.command("profile", 2)
    search(place, folder)
    database.command("profile", 0)
    asked = list(database["system.profile"].find({"ns": f"{database.name}.postroom_outbox"}))
    read = [one for one in asked if one["op"] in ("query", "command") and "planSummary" in one]
    assert read
    for one in read:
        assert "COLLSCAN" not in one["planSummary"], one
        assert one["docsExamined"] <= BOUND, one["planSummary"]
        assert one["keysExamined"] <= 2 * BOUND, one["planSummary"]
