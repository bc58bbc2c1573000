"""What a stranger wrote into the tables reaches the terminal as printable text only."""

import sqlite3

import pytest

from postroom.event import Event
from tests.cli.command import call

HOSTILE = "x\x1b]0;title\x07\r\nforged \x9b31m\u202e"


@pytest.mark.parametrize(
    "verb", [("status",), ("health", "--store-only"), ("audit",), ("dead",), ("list",)]
)
def test_no_verb_lets_control_characters_through(tmp_path, sqlite_place, verb):  # X-M5
    sqlite_place.migrate()
    sqlite_place.add(Event("e", id="e"), Event("f", id="f"))
    with sqlite3.connect(sqlite_place.url.removeprefix("sqlite:///")) as db:
        db.execute("UPDATE postroom_outbox SET stream = ?", (HOSTILE,))
        db.execute(
            "UPDATE postroom_outbox SET state = 'dead', stage = 'over', last_error = ?, settled_at = 1"
            " WHERE id = 'f'",
            (HOSTILE,),
        )
        db.execute(
            "INSERT INTO postroom_audit (at, who, what, how_many, about) VALUES (1, ?, ?, 1, ?)",
            (HOSTILE, HOSTILE, HOSTILE),
        )
    db.close()
    done = call(*verb, "--store", sqlite_place.url, cwd=tmp_path)
    assert done.returncode == 0
    assert [c for c in done.stdout + done.stderr if not c.isprintable() and c != "\n"] == []
    assert not any(line.startswith("forged") for line in done.stdout.splitlines())
    assert done.stdout
