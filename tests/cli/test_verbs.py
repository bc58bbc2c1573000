"""The verbs of the person on call, through the real command, on every store."""

from __future__ import annotations

import json
import sqlite3

import pytest

from postroom.event import Event
from postroom.inbox import SyncInbox
from tests.cli.command import Running, call

SUMMARY = {
    "seq", "id", "stream", "state", "type", "topic", "key", "aggregate_type", "aggregate_id",
    "attempts", "created_at", "next_attempt_at", "last_error", "size", "flaw", "correlation_id",
    "causation_id",
}  # fmt: skip
DETAILS = SUMMARY | {
    "stage", "lane", "lane_owner", "lane_relay", "blocked_after", "lease_owner", "lease_until",
    "kseq", "causation_path", "replaced_by", "schema_version", "headers",
    "content_type", "options", "payload", "timeline", "history", "receipt", "received",
}  # fmt: skip
STREAM = {
    "stream", "counts", "lag_seconds", "blocked_keys", "lanes", "relays", "failing", "warnings",
    "consumer",
}  # fmt: skip
RELAY = {"owner", "name", "state", "lanes"}


class Desk:
    """Calls commands about one store."""

    def __init__(self, place, folder):
        self.place = place
        self.folder = folder
        self.full = place.url.startswith("sqlite:")  # what is the same on all stores, once

    def __call__(self, *arguments, code=0):
        done = call(*arguments, cwd=self.folder, POSTROOM_STORE=self.place.url)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    def json(self, *arguments, code=0):
        return json.loads(self(*arguments, "--json", code=code).stdout)

    def lines(self, *arguments, code=0):
        return [
            json.loads(line) for line in self(*arguments, "--json", code=code).stdout.splitlines()
        ]

    def ids(self, *arguments):
        return [event["id"] for event in self.lines("list", "--oldest", *arguments)]


@pytest.fixture(
    params=[
        pytest.param("sqlite_place", marks=pytest.mark.nightly),
        pytest.param("postgres_place", marks=pytest.mark.slow),
        pytest.param("mariadb_place", marks=pytest.mark.nightly),
        pytest.param("mongo_place", marks=pytest.mark.slow),
    ]
)
def reporter(request, tmp_path):
    return Desk(request.getfixturevalue(request.param), tmp_path)


@pytest.mark.req("S1.9", "S4.9")
@pytest.mark.promise("G7", "L7")
def test_a_night_on_call(reporter):
    # Before there is anything.
    assert "run: postroom migrate" in reporter("list", code=3).stderr
    assert reporter.lines("doctor", code=1)[0]["level"] == "error"
    before = reporter.json("migrate", "status", code=1)
    assert set(before) == {"store", "current", "newest", "up_to_date"}
    assert (before["current"], before["up_to_date"]) == (0, False)
    assert "postroom_dead" in reporter("migrate", "sql").stdout
    made = reporter.json("migrate")
    assert made == {"store": before["store"], "version": before["newest"]}
    assert reporter.json("migrate", "status") == before | {
        "current": before["newest"], "up_to_date": True,
    }  # fmt: skip
    if reporter.full:
        assert reporter("list").stdout == reporter("audit").stdout == reporter("dead").stdout == ""

    # Some are delivered, some die.
    place = reporter.place
    place.add(
        Event("order.created", {"n": 1}, id="a1", key="a", topic="orders"),
        Event("order.created", {"n": 2}, id="a2", key="a", topic="orders"),
        Event("order.created", {"n": 3}, id="b1", key="b", topic="orders"),
        Event("mail", b"\x00\xff", id="m1", headers={"to": "ada"}, correlation_id="c-1"),
    )
    sent = place.deliver(broken={"a1", "a2"})
    assert sorted(sent) == ["b1", "m1"]

    # Looking.
    assert reporter.ids() == ["a1", "a2", "b1", "m1"]
    assert reporter.ids("--state", "dead") == ["a1", "a2"]
    assert reporter.ids("--type", "mail", "--since", "1h") == ["m1"]
    assert reporter.ids("--key", "b", "--topic", "orders") == ["b1"]
    assert reporter.ids("--error", "such host") == ["a1", "a2"]
    assert reporter.ids("--until", "1h") == []
    first = reporter("list", "--oldest", "--limit", "3", "--json")
    rows = [json.loads(line) for line in first.stdout.splitlines()]
    assert [set(row) for row in rows] == [SUMMARY] * 3
    assert first.stderr == f"more events match; next page: --after {rows[-1]['seq']}\n"
    assert reporter.ids("--after", rows[-1]["seq"]) == ["m1"]
    shown = reporter.json("show", "m1")
    assert set(shown) == DETAILS
    assert shown["payload"] == {"hex": "00ff"}
    assert (shown["state"], shown["stage"]) == ("done", "over")
    assert (shown["headers"], shown["correlation_id"]) == ({"to": "ada"}, "c-1")
    *before, last = [moment["what"] for moment in shown["timeline"]]
    assert before == ["occurred", "written to the outbox"]
    assert last.startswith("done: sent by ")
    if reporter.full:
        assert max(len(line) for line in reporter("list").stdout.splitlines()) <= 80
        assert '"n": 1' in reporter("show", "a1").stdout
        assert reporter.json("status")["streams"][0]["counts"]["dead"] == 2
    assert "no event with id 'zz'" in reporter("show", "zz", code=1).stderr

    # The dead, by what killed them.
    (group,) = reporter.lines("dead")
    assert set(group) == {"group", "count", "type", "pattern", "example", "first_at", "last_at"}
    assert (group["count"], group["type"]) == (2, "order.created")
    assert group["pattern"] == "no such host <n>"
    assert reporter.ids("--group", group["group"]) == ["a1", "a2"]

    # Replay: first without, then with an effect.
    tried = reporter.json("replay", "--group", group["group"], "--dry-run")
    assert tried == {"verb": "replay", "chosen": 2, "changed": 0, "dry_run": True}
    if reporter.full:
        assert reporter.ids("--state", "dead") == ["a1", "a2"]
        assert "no event with id 'zz'" in reporter("replay", "a1", "zz", code=1).stderr
    said = reporter("replay", "--all")
    assert said.stdout == "replayed 2 events\n"
    assert "2 events of 1 key" in said.stderr
    assert "inboxes ignore events they have handled" in said.stderr
    assert "is pending; it must be dead or done" in reporter("replay", "a1", code=1).stderr
    assert place.deliver() == ["a1", "a2"]
    assert reporter("replay", "--all", code=1).stderr.startswith(
        "postroom: no event matches state=dead"
    )
    again = reporter.json("replay", "b1", "--new-id", "--by", "anna")
    assert again["changed"] == 1
    (copy,) = reporter.ids("--state", "pending")
    assert copy != "b1"
    assert place.deliver() == [copy]

    # Bury and skip what is not finished.
    place.add(Event("order.created", id="c1", key="c"), Event("order.created", id="c2", key="c"))
    if reporter.full:
        tried = reporter("bury", "c1", "--reason", "by mistake", "--dry-run").stdout
        assert tried == "would bury 1 event; nothing was changed\n"
        assert "Missing option '--reason'" in reporter("bury", "c1", code=2).stderr
    assert reporter.json("bury", "c1", "--reason", "by mistake")["changed"] == 1
    assert reporter.json("show", "c1")["last_error"] == "by mistake"
    if reporter.full:
        assert "is dead; it must be" in reporter("bury", "c1", "--reason", "x", code=1).stderr
    assert (
        reporter.json("bury", "--state", "pending", "--key", "c", "--reason", "y")["changed"] == 1
    )
    place.add(Event("order.created", id="s1", key="s"), strict=True)
    if reporter.full:
        assert reporter("skip", "s1", "--reason", "not needed", "--dry-run").returncode == 0
    assert reporter.json("skip", "s1", "--reason", "not needed")["changed"] == 1
    assert place.deliver() == ["skip:s1"]

    # The doctor has seen them; the book knows who did what.
    findings = reporter.lines("doctor")
    assert all(set(finding) == {"level", "what", "why", "fix"} for finding in findings)
    assert "3 dead letters in stream main" in [finding["what"] for finding in findings]
    told = reporter.lines("audit")
    assert all(set(entry) == {"at", "who", "what", "how_many", "about"} for entry in told)
    told = [entry for entry in told if not entry["what"].startswith("operation")]
    assert [(entry["what"], entry["how_many"], entry["about"]) for entry in told] == [
        ("skip", 1, "s1: not needed"),
        ("bury", 1, "c2: y"),
        ("bury", 1, "c1: by mistake"),
        ("replay", 1, "b1"),
        ("replay", 2, "a1, a2"),
    ]
    assert told[3]["who"] == "anna"
    assert "@" in told[4]["who"]
    if reporter.full:
        for shown in (reporter("audit").stdout, reporter("dead").stdout, reporter("status").stdout):
            assert max(len(line) for line in shown.splitlines()) <= 80

    # Prune.
    assert reporter.json("prune", "--older-than", "1h", "--dry-run") == {
        "done": 6, "removed": 0, "dry_run": True,
    }  # fmt: skip
    if reporter.full:
        assert reporter.json("prune", "--older-than", "1h")["removed"] == 0
    assert reporter.json("prune", "--older-than", "0")["removed"] == 6
    assert sorted(reporter.ids()) == ["c1", "c2", "s1"]
    assert reporter.lines("audit", "--limit", "1")[0]["what"] == "prune"

    # Health, for a probe.
    assert reporter.json("health", "--store-only") == {
        "healthy": True, "problems": [], "warnings": ["stream main has 3 dead letters"],
        "notes": [],
    }  # fmt: skip
    if reporter.full:
        unhealthy = reporter("health", code=1).stdout
        assert unhealthy.startswith("not healthy\n  no heartbeat from a relay on this host")

    # A relay as a process.
    place.add(Event("order.created", id="last", key="z"))
    arguments = ("run", "--broker", "null:", "--log-level", "debug")
    with Running(*arguments, cwd=reporter.folder, POSTROOM_STORE=place.url) as relay:
        relay.hear("settled stream=main done=1")
        assert reporter.json("health")["healthy"] is True
        told = reporter.json("status")
        assert set(told) == {"store", "at", "streams", "paused", "limited", "operations"}
        (seen,) = told["streams"]
        assert (set(seen), set(seen["relays"][0])) == (STREAM, RELAY)
        assert seen["counts"] == {
            "pending": 0, "processing": 0, "done": 1, "failed": 0, "dead": 3,
            "expired": 0, "cancelled": 0,
        }  # fmt: skip
        assert seen["lanes"] == {"total": 64, "held": 64, "free": 0}
        assert [(one["state"], one["lanes"]) for one in seen["relays"]] == [("healthy", 64)]
        relay.send()
        relay.hear("stopped how=gracefully done=1")
        assert relay.end() == 0
    assert reporter.json("show", "last")["state"] == "done"


def test_prune_removes_the_inbox_rows_of_one_consumer(tmp_path):
    """R-B1: for handlers that no longer exist."""
    there = {"cwd": tmp_path, "POSTROOM_STORE": "sqlite:///shop.db"}
    assert call("migrate", **there).returncode == 0
    conn = sqlite3.connect(tmp_path / "shop.db")
    for consumer in ("payments/old", "payments/charge"):
        SyncInbox(consumer).accept(conn, Event("t", id="m-1"))
    conn.commit()
    removed = [
        json.loads(
            call("prune", "--older-than", span, "--inbox", "payments/old", "--json", **there).stdout
        )
        for span in ("1h", "0")
    ]
    assert [found["removed"] for found in removed] == [0, 1]
    left = conn.execute("SELECT consumer FROM postroom_inbox").fetchall()
    conn.close()
    assert left == [("payments/charge",)]
    assert "inbox rows of payments/old" in call("audit", **there).stdout
