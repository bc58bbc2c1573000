"""`bury` and `replay` of a head together with the events behind it, through the real command."""

from __future__ import annotations

import sqlite3

import pytest

from postroom.event import Event
from tests.cli.command import call


def blocked(place, tmp_path, followers):
    """Write a head that waits for its next attempt, and followers; a stranger has the same key."""
    place.migrate()
    names = ["head", *(f"f{n}" for n in range(followers))]
    place.add(*(Event("e", n, id=name, key="k") for n, name in enumerate(names)))
    place.add(Event("e", 0, id="other key", key="o"))
    place.add(Event("e", 0, id="other stream", key="k", stream="other"))
    conn = sqlite3.connect(tmp_path / "app.db")
    conn.execute(
        "UPDATE postroom_outbox SET state = 'failed', stage = 'waiting', "
        "next_attempt_at = 9000000000000000 WHERE id = 'head'"
    )
    conn.commit()
    return conn, names


def states(conn):
    return dict(conn.execute("SELECT id, state FROM postroom_outbox"))


@pytest.mark.promise("G4", "L7")
def test_a_head_and_its_followers_are_buried_and_sent_again_in_order(tmp_path, sqlite_place):
    conn, names = blocked(sqlite_place, tmp_path, 700)  # more than one step
    place = ("--store", sqlite_place.url, "--with-followers", "--yes")
    done = call("bury", "head", *place, "--reason", "broken", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "buried 701 events\n"), done.stderr
    expected = dict.fromkeys(names, "dead")
    assert states(conn) == expected | {"other key": "pending", "other stream": "pending"}
    (entries,) = conn.execute("SELECT count(*) FROM postroom_audit").fetchone()
    assert entries == 1  # one transaction
    assert sqlite_place.deliver() == ["other key"]
    done = call("replay", "f3", *place, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "replayed 697 events\n"), done.stderr
    assert sqlite_place.deliver() == names[4:]
    done = call("replay", "head", *place, "--dry-run", cwd=tmp_path)
    assert done.stdout == "would replay 4 events; nothing was changed\n"
    assert call("replay", "head", *place, cwd=tmp_path).returncode == 0
    assert sqlite_place.deliver() == names[:4]
    conn.close()


def test_a_follower_that_was_edited_is_left_out_and_an_edited_head_is_refused(
    tmp_path, sqlite_place
):
    conn, names = blocked(sqlite_place, tmp_path, 3)
    place = ("--store", sqlite_place.url, "--with-followers")
    assert call("bury", "head", *place, "--reason", "no", cwd=tmp_path).returncode == 0
    changes = ("--header", "x=y", "--store", sqlite_place.url)
    assert call("edit", "f1", *changes, cwd=tmp_path).returncode == 0
    done = call("replay", "head", *place, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "replayed 3 events\n"), done.stderr
    assert "1 dead letter left out: edited, and sent under another id" in done.stderr
    sent = sqlite_place.deliver()
    assert [name for name in sent if name in names] == ["head", "f0", "f2"]
    refused = call("replay", "f1", *place, cwd=tmp_path)
    assert refused.returncode == 1
    assert "f1" in refused.stderr
    conn.close()


def test_too_many_followers_are_refused_with_the_way_out(tmp_path, sqlite_place):
    conn, _ = blocked(sqlite_place, tmp_path, 1_000)
    place = ("--store", sqlite_place.url, "--with-followers", "--yes")
    done = call("bury", "head", *place, "--reason", "broken", cwd=tmp_path)
    assert done.returncode == 2
    assert "more than 1,000 events of key 'k'" in done.stderr
    assert "postroom pause main; postroom bury --stream main --key k --after 0" in done.stderr
    assert "dead" not in states(conn).values()
    conn.execute("UPDATE postroom_outbox SET state = 'dead', stage = 'over', settled_at = 1")
    conn.commit()
    done = call("replay", "head", *place, cwd=tmp_path)
    assert done.returncode == 2
    assert "in steps: postroom replay --stream main --key k --after 0" in done.stderr
    conn.close()


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["bury", "a", "b"], "needs one ID", 2),
        (["replay", "--all"], "needs one ID", 2),
        (["bury", "unknown"], "no event with id 'unknown'", 1),
        (["bury", "lonely"], "has no key: no event waits behind it", 1),
    ],
)
def test_one_head_with_a_key_is_needed(tmp_path, sqlite_place, arguments, said, code):
    sqlite_place.migrate()
    sqlite_place.add(Event("e", 0, id="lonely"))
    reason = ["--reason", "x"] if arguments[0] == "bury" else []
    done = call(
        *arguments, *reason, "--with-followers", cwd=tmp_path, POSTROOM_STORE=sqlite_place.url
    )
    assert done.returncode == code
    assert said in done.stderr
