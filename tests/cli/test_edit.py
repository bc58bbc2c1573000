"""`postroom edit`, through the real command."""

from __future__ import annotations

import json
import os
import pty
import sys

import pytest

from postroom.event import Event
from tests.cli.command import argv, call, environment


@pytest.fixture
def place(sqlite_place):
    sqlite_place.migrate()
    sqlite_place.add(
        Event("mail", {"to": "ada@"}, id="m", key="k", headers={"tenant": "north", "x": "1"}),
        Event("blob", b"\xff", id="b"),
        Event("mail", id="live"),
    )
    sqlite_place(lambda store: store.bury(["m", "b"], "no such host"))
    return sqlite_place


@pytest.fixture
def postroom(place, tmp_path):
    def run(*arguments, code=0):
        done = call(*arguments, cwd=tmp_path, POSTROOM_STORE=place.url, POSTROOM_USER="anna")
        assert done.returncode == code, (done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    return run


def test_a_dead_letter_is_edited_once(postroom, tmp_path):
    (tmp_path / "fixed.json").write_text('{"to": "ada@b.c", "price": 1.10}\n')
    changes = ("--payload-file", "fixed.json", "--header", "tenant=a=b", "--drop-header", "x")
    dry = json.loads(postroom("edit", "m", *changes, "--dry-run", "--json").stdout)
    assert dry == {"id": "m", "sent_as": None, "dry_run": True}
    new_id = json.loads(postroom("edit", "m", *changes, "--json").stdout)["sent_as"]
    shown = json.loads(postroom("show", new_id, "--json").stdout)
    assert shown["payload"] == {"json": {"to": "ada@b.c", "price": 1.1}}
    assert shown["headers"] == {"postroom-replaces": "m", "tenant": "a=b"}
    assert (shown["key"], shown["state"], shown["replaced_by"]) == ("k", "pending", None)
    assert json.loads(postroom("show", "m", "--json").stdout)["replaced_by"] == new_id
    for verb in (("edit", "m", "--tombstone"), ("replay", "m")):
        refused = postroom(*verb, code=1).stderr
        assert refused.startswith(f"postroom: event 'm' was edited and sent as '{new_id}'")
    entry = json.loads(postroom("audit", "--json").stdout)
    assert (entry["who"], entry["what"], entry["about"]) == ("anna", "edit", f"m: sent as {new_id}")


def test_a_replay_of_all_leaves_replaced_ones_out(postroom):
    said = postroom("edit", "m", "--header", "a=b").stdout
    assert said.endswith("m stays a dead letter, marked as replaced\n")
    done = postroom("replay", "--all")
    assert "1 dead letter left out: edited, and sent under another id" in done.stderr
    assert done.stdout == "replayed 1 event\n"


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["m"], "Nothing to change", 2),
        (["m", "--payload-file", "missing"], "cannot read missing: No such file", 2),
        (["m", "--payload-file", "bad"], "is not valid JSON", 2),
        (["m", "--payload-file", "large"], "exceed the limit of 900,000", 2),
        (["m", "--header", "x"], "must be NAME=VALUE", 2),
        (["m", "--header", "postroom-id=x"], "are reserved", 2),
        (["m", "--drop-header", "nothing"], "has no header 'nothing' to drop", 2),
        (["b", "--content-type", "application/json"], "is not valid JSON", 2),
        (["b", "--tombstone"], "needs a key", 2),
        (["live", "--header", "a=b"], "it is pending, and only dead letters can be edited", 1),
        (["nobody", "--header", "a=b"], "no event with id 'nobody'", 1),
    ],
)
def test_what_is_refused_is_one_line(postroom, tmp_path, arguments, said, code):
    (tmp_path / "bad").write_bytes(b"{")
    (tmp_path / "large").write_bytes(b'"' + b"x" * 1_000_000 + b'"')
    refused = postroom("edit", *arguments, code=code)
    assert said in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert "sent_as" not in refused.stdout
    assert postroom("audit").stdout == ""


def in_terminal(folder, place, program, *arguments):
    """Run a command on a terminal, with an editor that is a Python program."""
    editor = folder / "editor.py"
    editor.write_text(program)
    env = environment(POSTROOM_STORE=place.url, EDITOR=f"{sys.executable} {editor}")
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover - the child
        os.chdir(folder)
        os.execve(sys.executable, argv(*arguments), env)
    said = b""
    try:
        while part := os.read(terminal, 65_536):
            said += part
    except OSError:  # the terminal is closed
        pass
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), said.decode()


EDITS = """
import json, sys
path = sys.argv[1]
found = json.load(open(path))
assert found == {"content_type": "application/json", "headers": {"tenant": "north", "x": "1"},
                 "payload": {"to": "ada@"}}
found["payload"]["to"] = "ada@b.c"
json.dump(found, open(path, "w"))
"""


def test_an_editor_opens_headers_and_payload(postroom, place, tmp_path):
    code, said = in_terminal(tmp_path, place, EDITS, "edit", "m")
    assert code == 0, said
    new_id = json.loads(postroom("show", "m", "--json").stdout)["replaced_by"]
    shown = json.loads(postroom("show", new_id, "--json").stdout)
    assert shown["payload"] == {"json": {"to": "ada@b.c"}}
    assert shown["headers"] == {"postroom-replaces": "m", "tenant": "north", "x": "1"}


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("", "nothing was changed"),
        ("import sys; open(sys.argv[1], 'w').write('{')", "not JSON"),
        ("import sys; open(sys.argv[1], 'w').write('[]')", "must be a JSON object"),
        ("import sys; open(sys.argv[1], 'w').write('{}')", "the fields must be content_type"),
    ],
)
def test_an_editor_that_changes_nothing_usable_sends_nothing(place, tmp_path, program, said):
    code, text = in_terminal(tmp_path, place, program, "edit", "m")
    assert code == 2
    assert said in text
    assert place(lambda store: store.details("m")).replaced_by is None
