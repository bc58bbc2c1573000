"""cancel and reschedule through the real command."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from postroom.event import Event
from tests.cli.command import call


@pytest.fixture
def desk(sqlite_place, tmp_path):
    sqlite_place.migrate()
    hours = [datetime.now(UTC) + timedelta(hours=n) for n in range(3)]
    sqlite_place.add(
        Event("reminder", id="one", available_at=hours[1]),
        Event("reminder", id="two", available_at=hours[1], deliver_by=hours[2]),
        Event("reminder", id="due"),
        Event("reminder", id="broken"),
    )

    def run(*arguments, code=0):
        done = call(*arguments, cwd=tmp_path, POSTROOM_STORE=sqlite_place.url)
        assert done.returncode == code, done.stderr
        return done

    run.place = sqlite_place
    return run


def test_a_delayed_event_is_cancelled_and_audited(desk):
    done = desk("cancel", "one", "--reason", "order cancelled", "--by", "anna")
    assert (done.stdout, done.stderr) == ("cancelled 1 event\n", "")
    desk.place.deliver(broken=("broken",))
    done = desk("cancel", "one", "due", "broken", "none", code=1)
    assert done.stdout == "cancelled 0 events\n"
    assert done.stderr.splitlines() == [
        "unchanged: one is cancelled",
        "unchanged: due is done",
        "unchanged: broken is dead",
        "unchanged: none does not exist; see: postroom list",
    ]
    (audit,) = map(json.loads, desk("audit", "--json").stdout.splitlines())
    assert (audit["who"], audit["what"], audit["how_many"]) == ("anna", "cancel", 1)
    assert audit["about"] == "one: order cancelled"
    shown = json.loads(desk("show", "one", "--json").stdout)
    assert shown["state"] == "cancelled"
    assert [json.loads(line)["id"] for line in
            desk("list", "--state", "cancelled", "--json").stdout.splitlines()] == ["one"]  # fmt: skip


def test_an_event_that_may_be_in_flight_is_too_late(desk):
    done = json.loads(desk("cancel", "due", "two", "--json", code=1).stdout)
    assert done == {
        "verb": "cancel",
        "changed": ["two"],
        "unchanged": [
            {
                "id": "due",
                "reason": "is too late: it was due, and may be in flight; see: postroom bury",
            }
        ],
    }


def test_a_delayed_event_gets_another_time(desk):
    done = desk("reschedule", "one", "--at", "2030-01-01T12:00Z")
    assert done.stdout == "rescheduled 1 event to 2030-01-01T12:00:00Z\n"
    assert "2030-01-01T12:00:00Z         due" in desk("show", "one").stdout
    done = desk("reschedule", "two", "--in", "5h", code=1)
    assert done.stderr == "unchanged: two would expire before that time\n"
    assert json.loads(desk("reschedule", "one", "--in", "0", "--json").stdout)["changed"] == ["one"]
    assert sorted(desk.place.deliver()) == ["broken", "due", "one"]
    whats = [json.loads(line)["what"] for line in desk("audit", "--json").stdout.splitlines()]
    assert whats == ["reschedule", "reschedule"]


def test_wrong_calls_are_refused(desk):
    for wrong in (
        ["cancel"],
        ["reschedule", "one"],
        ["reschedule", "one", "--in", "1h", "--at", "2030-01-01"],
        ["reschedule", "one", "--at", "2h"],
        ["reschedule", "one", "--in", "soon"],
    ):
        desk(*wrong, code=2)
