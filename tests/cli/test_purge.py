"""`postroom purge`, through the real command."""

from __future__ import annotations

import json

import pytest

from postroom.event import Event
from tests.cli.command import call


@pytest.fixture
def place(sqlite_place):
    sqlite_place.migrate()
    return sqlite_place


def purge(place, folder, *arguments, code=0):
    done = call("purge", *arguments, cwd=folder, POSTROOM_STORE=place.url, POSTROOM_USER="anna")
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def ids(place, folder):
    done = call("list", "--oldest", "--json", cwd=folder, POSTROOM_STORE=place.url)
    return [json.loads(line)["id"] for line in done.stdout.splitlines()]


def test_dead_letters_are_purged_by_id_filter_and_age(place, tmp_path):
    place.add(*(Event("mail", id=name, stream="mail") for name in ("a", "b", "c")))
    place.add(Event("order", id="live"), Event("order", id="d"))

    async def bury(store):
        await store.bury(["a", "b", "c"], "no such host")
        await store.bury(["d"], "other")

    place(bury)
    dry = purge(place, tmp_path, "--stream", "mail", "--dry-run", "--json")
    assert json.loads(dry.stdout) == {
        "verb": "purge", "chosen": 3, "changed": 0, "dry_run": True,
    }  # fmt: skip
    said = purge(place, tmp_path, "a")
    assert said.stdout == "deleted 1 event\n"
    assert "these events cannot be replayed afterwards" in said.stderr
    assert "no event matches" in purge(place, tmp_path, "--older-than", "1h", code=1).stderr
    assert ids(place, tmp_path) == ["b", "c", "live", "d"]
    assert purge(place, tmp_path, "--error", "such host", "--older-than", "0s").returncode == 0
    assert ids(place, tmp_path) == ["live", "d"]
    audit = call("audit", "--json", cwd=tmp_path, POSTROOM_STORE=place.url)
    entries = [json.loads(line) for line in audit.stdout.splitlines()]
    assert [(e["who"], e["what"], e["how_many"], e["about"]) for e in entries] == [
        ("anna", "purge", 2, "b, c"),
        ("anna", "purge", 1, "a"),
    ]
    assert (
        "event 'live' is pending; it must be dead" in purge(place, tmp_path, "live", code=1).stderr
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "No events selected"),
        (["a", "--older-than", "1d"], "Give ids or filters, not both"),
        (["--older-than", "soon"], "'soon' is not a duration"),
        (["--state", "done", "--all"], "'done' is not one of 'dead', 'expired', 'cancelled'"),
        (["--state", "expired", "--group", "x"], "--group selects dead letters"),
    ],
)
def test_what_contradicts_itself_is_refused(place, tmp_path, arguments, said):
    assert said in purge(place, tmp_path, *arguments, code=2).stderr


def test_a_strict_gap_is_named_and_many_are_asked_about(place, tmp_path):
    place.add(Event("order", id="one", key="k"), strict=True)
    place.add(*(Event("order", id=f"m{n}") for n in range(101)))
    place(lambda store: store.bury(["one", *(f"m{n}" for n in range(101))], "x"))
    refused = purge(place, tmp_path, "--all", code=2)
    assert "1 of them have a number of strict order" in refused.stderr
    assert "102 events need confirmation" in refused.stderr
    assert purge(place, tmp_path, "--all", "--yes").stdout == "deleted 102 events\n"
