"""X-M4: one odd row, and every verb that shows events still shows them, and marks it."""

from __future__ import annotations

import json
import sqlite3

import pytest
from click.testing import CliRunner

from postroom.admin.event_facts import describe, summary
from postroom.admin.texts import instant
from postroom.cli.app import cli
from postroom.cli.dead import _facts, _lines
from postroom.cli.show import render
from postroom.event import Event
from postroom.lookup import Details
from postroom.model.dead_letters import DeadCause, group
from postroom.model.unreadable_rows import to_record
from postroom.outbox import SyncOutbox
from postroom.testing.broker_tools import make_record

INFINITY = 2**63 - 1
DETAILS = Details("over", None, 1_700_000_000_000_000, None, None, None)


@pytest.fixture
def url(tmp_path):
    """Four dead letters, three of them odd; the one in the middle is as it should be."""
    url, deep = f"sqlite:///{tmp_path / 'app.db'}", b"[" * 5_000 + b"]" * 5_000
    assert CliRunner().invoke(cli, ["migrate", "--store", url]).exit_code == 0
    conn, outbox = sqlite3.connect(tmp_path / "app.db"), SyncOutbox()
    with outbox.transaction(conn):
        for name in ("text", "times", "good", "deep", "headers"):
            payload = deep if name == "deep" else {"name": name}
            kind = "application/json" if name == "deep" else None
            outbox.add(conn, Event("t", payload, id=name, content_type=kind))
        conn.execute(
            "UPDATE postroom_outbox SET state = 'dead', stage = 'over', last_error = 'x',"
            " settled_at = CASE id WHEN 'times' THEN 9223372036854775807 ELSE 1700000000000000 END"
        )
        for name, flaw in {
            "text": "type = CAST(x'ff' AS TEXT), last_error = CAST(x'fe' AS TEXT)",
            "times": "created_at = 9223372036854775807, occurred_at = 'never', lease_until = 'x'",
            "deep": "type = 'u', settled_at = 'long ago'",
            "headers": "headers = '[', size = size + 1, causation_path = '7'",
        }.items():
            conn.execute(f"UPDATE postroom_outbox SET {flaw} WHERE id = ?", (name,))
    conn.close()
    return url


def run(*arguments):
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_odd_rows_are_listed_and_marked(url):
    said = run("list", "--store", url)
    assert said.count("the stored row is not an event: ") == 3
    rows = [json.loads(line) for line in run("list", "--store", url, "--json").splitlines()]
    flaws = {row["id"]: row["flaw"] for row in rows}
    assert flaws.pop("good") is flaws.pop("deep") is None
    assert "type is not UTF-8 text: \\xff" in flaws["text"]
    assert "occurred_at is str, not int: 'never'" in flaws["times"]
    assert "headers are not a JSON object of text: '['" in flaws["headers"]


@pytest.mark.parametrize("name", ["text", "times", "good", "deep", "headers"])
def test_an_odd_row_is_shown(url, name):
    said = run("show", name, "--store", url)
    assert ("the stored row is not an event" in " ".join(said.split())) == (
        name in ("text", "times", "headers")
    )
    facts = json.loads(run("show", name, "--store", url, "--json"))
    assert facts["id"] == name
    if name == "deep":
        assert "JSON, nested deeper than 100 levels:\n[[[" in said
        assert facts["payload"]["text"].startswith("[[[")
    if name == "times":
        assert {"at": "infinity", "what": "dead"} in facts["timeline"]
        assert facts["lease_until"] == "not a date: 'x'"


def test_odd_rows_among_the_dead_are_grouped(url):
    groups = [json.loads(line) for line in run("dead", "--store", url, "--json").splitlines()]
    assert sum(one["count"] for one in groups) == 5
    assert "infinity" in run("dead", "--store", url)


def test_odd_rows_are_counted(url):
    (stream,) = json.loads(run("status", "--store", url, "--json"))["streams"]
    assert stream["counts"]["dead"] == 5


# -- values that only PostgreSQL has -----------------------------------------------------------------
def test_an_infinite_time_is_shown_as_such():
    assert instant(INFINITY) == "infinity"
    assert instant(-(2**63)) == "-infinity"
    assert instant(INFINITY - 5).startswith("not a date: 922337203685477580")
    assert instant(None) is None
    assert instant(0) == "1970-01-01T00:00:00Z"


def test_every_time_may_be_infinite():
    times = {"created_us": INFINITY, "occurred_us": -(2**63), "next_attempt_us": INFINITY}
    record = to_record(tuple((make_record(1)._asdict() | times).values()))
    details = Details("waiting", INFINITY, INFINITY, "owner", INFINITY, None)
    facts = describe(record, details, (None, ""))
    assert json.loads(json.dumps(facts))["lease_until"] == "infinity"
    assert any("infinity" in line for line in render(facts))
    assert summary(record)["flaw"] == record.flaw
    (one,) = group([DeadCause("t", "boom", 2, -(2**63), INFINITY)])
    assert _facts(one)["last_at"] == "infinity"
    assert "-infinity … infinity" in _lines(one)[0]
