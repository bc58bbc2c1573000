"""`postroom list`: filters that an index answers, and bounds of all others."""

from __future__ import annotations

import json
import sqlite3

import pytest

from postroom.event import Event
from tests.cli.command import call

HOUR = 3_600_000_000


class Listing:
    def __init__(self, place, folder):
        self.place = place
        self.folder = folder

    def __call__(self, *arguments, code=0):
        done = call("list", "--store", self.place.url, "--json", *arguments, cwd=self.folder)
        assert done.returncode == code, done.stderr
        assert all(len(line) <= 80 for line in done.stderr.splitlines() if " in sqlite" not in line)
        return [json.loads(line)["id"] for line in done.stdout.splitlines()], done.stderr

    def run(self, *statements):
        with sqlite3.connect(self.folder / "app.db") as conn:
            for statement in statements:
                conn.execute(statement)
        conn.close()


@pytest.fixture
def listing(sqlite_place, tmp_path):
    sqlite_place.migrate()
    return Listing(sqlite_place, tmp_path)


def test_by_correlation_causation_header_and_payload(listing):
    listing.place.add(
        Event("a", {"order": {"total": 90}}, id="1", headers={"tenant": "acme"}),
        Event("b", {"order": {"total": 120}}, id="2", correlation_id="1", causation_id="1"),
        Event("b", b"raw", id="3", correlation_id="1", causation_id="2"),
        Event("c", {"order": {"total": 500}}, id="4", headers={"tenant": "other"}),
    )
    hint = "no index of these ids: postroom migrate --index correlation\n"
    window = "looked at events of the last 24 hours; others: --since, --after 0\n"
    assert listing("--correlation", "1") == (["3", "2"], hint)
    assert listing("--correlation", "1", "--oldest") == (["2", "3"], window + hint)
    assert listing("--header", "tenant=acme") == (["1"], "")
    found, said = listing("--payload", "order.total>100")
    assert found == ["4", "2"]
    assert said == "1 event without a JSON payload left out\n"
    assert listing("--payload", "order.total>100", "--header", "tenant=other")[0] == ["4"]
    made = call(
        "migrate", "--index", "correlation", "--store", listing.place.url, cwd=listing.folder
    )
    assert made.stdout.endswith("the index correlation is there\n"), made
    assert listing("--correlation", "1") == (["3", "2"], "")
    assert listing("--correlation", "1", "--oldest") == (["2", "3"], "")
    assert listing("--causation", "1") == (["2"], "")
    assert listing("--causation", "1", "--payload", "order.total>1000")[0] == []
    gone = call(
        "migrate", "--drop-index", "correlation", "--store", listing.place.url, cwd=listing.folder
    )
    assert gone.stdout.endswith("the index correlation is gone\n"), gone
    assert listing("--causation", "1") == (["2"], hint)


def test_a_search_without_matches_stops_at_its_limit_and_says_how_to_go_on(listing):
    listing.place.add(*(Event("t", {"n": n}, id=f"e{n:02}") for n in range(30)))
    asked = ("--payload", "n>=25", "--after", "0", "--scan-limit")
    found, said = listing(*asked, "20")
    assert found == []
    assert "looked at 20 events, up to 2" in said
    place = said.split("go on: --after ")[1].strip()
    found, said = listing("--payload", "n>=25", "--after", place, "--scan-limit", "20")
    assert found == ["e25", "e26", "e27", "e28", "e29"]
    assert said == ""
    # The rows that the statement reads, not only those that are returned, are bounded.
    listing.run("UPDATE postroom_outbox SET type = 'late' WHERE seq = 21")
    assert listing("--type", "late", "--after", "0", "--scan-limit", "20")[0] == []
    assert listing("--type", "late", "--after", "0", "--scan-limit", "21")[0] == ["e20"]
    said = listing("--type", "t", "--limit", "3", "--oldest")[1]
    assert "more events match; next page: --after 3" in said


def test_the_newest_first_and_their_pages(listing):  # U19
    listing.place.add(*(Event("t", {"n": n}, id=f"e{n:02}") for n in range(30)))
    assert listing("--limit", "2") == (
        ["e29", "e28"], "more events match; next page: --before 29\n",
    )  # fmt: skip
    assert listing("--limit", "2", "--before", "29")[0] == ["e27", "e26"]
    assert listing("--before", "3") == (["e01", "e00"], "")
    assert listing("--last", "3") == (["e27", "e28", "e29"], "")
    assert listing("--last", "2", "--before", "10") == (["e07", "e08"], "")
    assert listing("--oldest", "--limit", "2")[0] == ["e00", "e01"]
    assert listing("--after", "27")[0] == ["e27", "e28", "e29"]
    # A search without matches ends at its limit, counted from the newest event.
    found, said = listing("--payload", "n<=3", "--scan-limit", "20")
    assert found == []
    assert "looked at 20 events, down to 2" in said
    assert said.endswith("; no event matched\ngo on: --before 11\n")
    found, said = listing("--payload", "n<=3", "--scan-limit", "20", "--before", "11")
    assert (found, said) == (["e03", "e02", "e01", "e00"], "")
    listing.run("UPDATE postroom_outbox SET type = 'early' WHERE seq = 10")
    assert listing("--type", "early", "--scan-limit", "20")[0] == []
    assert listing("--type", "early", "--scan-limit", "21")[0] == ["e09"]
    done = call("list", "--store", listing.place.url, "--oldest", "--last", "3", cwd=listing.folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Give --oldest or --last, not both." in done.stderr


def test_a_window_begins_where_its_time_was(listing):
    listing.place.add(*(Event("t", {}, id=f"e{n:02}") for n in range(40)))
    listing.run(f"UPDATE postroom_outbox SET created_at = created_at - (40 - seq) * 10 * {HOUR}")
    recent = listing("--type", "t", "--oldest")[0]
    assert recent == ["e37", "e38", "e39"]  # 24 hours: 20, 10, 0
    assert listing("--type", "t", "--since", "45h")[0] == ["e39", "e38", "e37", "e36", "e35"]
    # Only what lies in the window is looked at, and not what is before or after it.
    window = ("--type", "t", "--since", "205h", "--until", "175h", "--scan-limit")
    assert listing(*window, "4") == (["e21", "e20", "e19"], "")
    assert listing("--oldest", *window, "4") == (["e19", "e20", "e21"], "")
    assert listing("--type", "t", "--after", "0", "--limit", "99")[0][0] == "e00"
    assert len(listing("--limit", "99")[0]) == 40  # no filter: all
    stuck = listing("--state", "pending", "--limit", "1", "--oldest")[0]
    assert stuck == ["e00"]
    assert listing("--type", "t", "--until", "385h")[0] == ["e00"]


def test_a_window_ends_where_its_time_was(listing):
    """Also if numbers and times differ by some minutes: a slow transaction commits later."""
    ages = {"e0": 300, "e1": 100, "e2": 50, "e3": 70, "e4": 0}  # in minutes, in their order
    listing.place.add(*(Event("t", {}, id=name) for name in ages))
    for name, age in ages.items():
        back = f"created_at - {age} * 60000000"
        listing.run(f"UPDATE postroom_outbox SET created_at = {back} WHERE id = '{name}'")
    assert listing("--type", "t", "--until", "60m")[0] == ["e3", "e1", "e0"]
    assert listing("--until", "60m")[0] == ["e3", "e1", "e0"]


def test_hostile_rows_cost_nothing_but_themselves(listing):
    listing.place.add(*(Event("t", {"n": n}, id=f"e{n}") for n in range(4)))
    listing.run(
        "PRAGMA ignore_check_constraints = ON",
        "UPDATE postroom_outbox SET payload = '{\"n\":' WHERE id = 'e1'",
        "UPDATE postroom_outbox SET headers = '[[', correlation_id = x'ff' WHERE id = 'e2'",
    )
    assert listing("--payload", "n>=0")[0] == ["e3", "e2", "e0"]
    assert listing("--header", "a=b")[0] == []
    assert listing("--correlation", "x' OR 1=1 --")[0] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--payload", "total"), "'total' is not a condition such as order.total>100"),
        (("--header", "tenant"), "'tenant' is not a header such as tenant=acme"),
        (("--scan-limit", "0"), "0 is not in the range x>=1"),
    ],
)
def test_what_cannot_be_meant_is_refused(listing, arguments, said):
    done = call("list", "--store", listing.place.url, *arguments, cwd=listing.folder)
    assert done.returncode == 2
    assert said in done.stderr
