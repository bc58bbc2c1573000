"""The beginning of an id instead of all of it, in every command that takes an id (U19)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from postroom.event import Event
from tests.cli.command import call

FIRST, SECOND = "0199c1a0-7f3e-7aaa-8d43-0c2f5be1d9aa", "0199c1a0-7f3e-7bbb-8d43-0c2f5be1d9aa"


@pytest.fixture
def place(sqlite_place, tmp_path):
    sqlite_place.migrate()
    sqlite_place.add(
        Event("t", {}, id=FIRST, correlation_id="0199c1a0"),
        Event("t", {}, id=SECOND),
        Event("t", {}, id="later-1", available_at=datetime.now(UTC) + timedelta(hours=1)),
    )

    def run(*arguments, code=0):
        done = call(*arguments, "--store", sqlite_place.url, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        return done

    return run


def state_of(place, event_id):
    return json.loads(place("show", event_id, "--json").stdout)["state"]


def test_a_unique_beginning_is_enough(place):
    done = place("show", FIRST[:16], "--json")
    assert json.loads(done.stdout)["id"] == FIRST
    assert done.stderr == f"event {FIRST}\n"
    assert place("show", FIRST, "--json").stderr == ""  # nothing to add


def test_commands_change_the_event_that_is_meant(place):
    assert place("bury", FIRST[:16], "--reason", "x").stdout == "buried 1 event\n"
    assert (state_of(place, FIRST), state_of(place, SECOND)) == ("dead", "pending")
    edited = place("edit", FIRST[:16], "--header", "a=b", "--dry-run").stdout
    assert edited == f"would send {FIRST} with these changes; nothing was changed\n"
    assert place("replay", FIRST[:16], FIRST).stdout == "replayed 1 event\n"
    assert state_of(place, FIRST) == "pending"
    assert place("skip", SECOND[:16], "--reason", "x").stdout == "skipped 1 event\n"
    assert place("purge", SECOND[:16]).stdout == "deleted 1 event\n"
    assert place("reschedule", "later", "--in", "2h").stdout.startswith("rescheduled 1 event to ")
    assert place("cancel", "later").stdout == "cancelled 1 event\n"
    assert state_of(place, "later-1") == "cancelled"
    assert f'"asked": "{FIRST}"' in place("story", FIRST[:16], "--json").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "0199c1a0-7f3e"), ("bury", "0199c1a0-7f3e", "--reason", "x"),
        ("story", "0199c1a0-7f3e"), ("cancel", "0199c1a0-7f3e"), ("replay", "0199c1a0-7f3e"),
    ],
)  # fmt: skip
def test_candidates_are_listed_and_nothing_is_changed(place, arguments):
    done = place(*arguments, code=2)
    assert done.stdout == ""
    assert done.stderr == (
        f"  {FIRST}\n  {SECOND}\n"
        "postroom: '0199c1a0-7f3e' is the beginning of 2 ids; give more of it\n"
    )
    assert (state_of(place, FIRST), state_of(place, SECOND)) == ("pending", "pending")


def test_an_unknown_id_and_one_that_is_too_short(place):
    for given in ("019", "0199x", "nothing"):
        done = place("show", given, code=1)
        assert f"no event with id '{given}' in " in done.stderr
