"""Replay of very many: in order, with progress, and a Ctrl-C that leaves nothing half done."""

from __future__ import annotations

import os
import pty
import signal
import sqlite3
import subprocess
import time
from contextlib import suppress

import pytest

from postroom.cli.progress import Bar
from postroom.event import Event
from postroom.outbox import SyncOutbox
from tests.cli.command import PATIENCE_SECONDS, Running, argv, call, environment

KEYS = 1_000


def many_dead(place, tmp_path, number):
    """Write events of a thousand keys, all of them dead."""
    place.migrate()
    conn = sqlite3.connect(tmp_path / "app.db")
    outbox = SyncOutbox()
    conn.execute("BEGIN IMMEDIATE")
    for n in range(number):
        outbox.add(conn, Event("order.created", n, id=f"e{n}", key=f"k{n % KEYS}"))
    conn.execute(
        "UPDATE postroom_outbox SET state = 'dead', stage = 'over', settled_at = 1, "
        "last_error = 'no customer ' || seq"
    )
    conn.commit()
    return conn


def states(conn):
    return dict(conn.execute("SELECT state, count(*) FROM postroom_outbox GROUP BY state"))


@pytest.mark.nightly
@pytest.mark.promise("L7", "G4")
def test_a_hundred_thousand_interrupted_and_run_again(tmp_path, sqlite_place):
    number = 100_000
    conn = many_dead(sqlite_place, tmp_path, number)
    command = ("replay", "--store", sqlite_place.url, "--all", "--yes")
    with Running(*command, cwd=tmp_path) as replay:
        deadline = time.monotonic() + 120
        while states(conn).get("pending", 0) < 5_000:
            assert replay.process.poll() is None, replay.lines
            assert time.monotonic() < deadline
            time.sleep(0.005)
        replay.send(signal.SIGINT)
        replay.hear("stopping after this step")
        left = int(replay.hear(r"interrupted: ([\d,]+) events are unchanged")[1].replace(",", ""))
        assert replay.end() == 130
    assert "Traceback" not in "".join(replay.lines)
    assert 0 < left < number
    assert states(conn) == {"pending": number - left, "dead": left}

    again = call(*command, cwd=tmp_path, timeout=200)
    assert again.returncode == 0, again.stderr
    assert again.stdout == f"replayed {left:,} events\n"
    assert states(conn) == {"pending": number}
    (noted,) = conn.execute(
        "SELECT sum(how_many) FROM postroom_audit WHERE what = 'replay'"
    ).fetchone()
    assert noted == number

    sent = sqlite_place.deliver()
    assert len(sent) == len(set(sent)) == number
    by_key = {}
    for name in sent:
        by_key.setdefault(int(name[1:]) % KEYS, []).append(int(name[1:]))
    assert all(found == sorted(found) for found in by_key.values())
    conn.close()


@pytest.mark.slow
@pytest.mark.promise("L7", "G4")
@pytest.mark.parametrize("store", ["postgres", "mariadb", "mongo"])
def test_a_replay_on_a_server_is_interrupted_and_run_again(tmp_path, request, store):
    place, number = request.getfixturevalue(f"{store}_place"), 2_000
    place.migrate()
    place.add(*(Event("e", n, id=f"e{n}", key=f"k{n % 50}") for n in range(number)))
    assert place.deliver(broken={f"e{n}" for n in range(number)}) == []

    def counts():
        return place(lambda found: found.stats("main")).counts

    assert counts()["dead"] == number
    command = ("replay", "--store", place.url, "--all", "--yes")
    with Running(*command, cwd=tmp_path) as replay:
        deadline = time.monotonic() + 60
        while not counts()["pending"] and replay.process.poll() is None:
            assert time.monotonic() < deadline
        replay.send(signal.SIGINT)
        code = replay.end()
    found = counts()
    assert found["pending"] + found["dead"] == number
    assert found["pending"] > 0
    if found["dead"]:  # it was not over before the signal came
        assert code == 130
        assert any(
            f"interrupted: {found['dead']:,} events are unchanged" in line for line in replay.lines
        )
        assert call(*command, cwd=tmp_path).stdout == f"replayed {found['dead']:,} events\n"
    log = place(lambda found: found.audit_log(100))
    assert sum(entry.how_many for entry in log if entry.what == "replay") == number
    sent = [int(name[1:]) for name in place.deliver()]
    assert sorted(sent) == list(range(number))
    for key in range(50):
        assert [n for n in sent if n % 50 == key] == list(range(key, number, 50))


def test_copies_go_on_where_they_were_interrupted(tmp_path, sqlite_place):
    conn = many_dead(sqlite_place, tmp_path, 1_200)
    command = ("replay", "--store", sqlite_place.url, "--all", "--new-id", "--yes")
    assert call(*command, "--after", "1000", cwd=tmp_path).stdout == "replayed 200 events\n"
    assert states(conn) == {"dead": 1_200, "pending": 200}
    conn.close()


def test_more_than_a_hundred_are_asked_about(tmp_path, sqlite_place):
    conn = many_dead(sqlite_place, tmp_path, 101)
    command = ("replay", "--store", sqlite_place.url, "--all")
    done = call(*command, cwd=tmp_path)
    assert done.returncode == 2
    assert "101 events need confirmation (more than 100)" in done.stderr
    assert "add --yes" in done.stderr
    assert states(conn) == {"dead": 101}
    assert call(*command, "--yes", cwd=tmp_path).returncode == 0
    assert states(conn) == {"pending": 101}
    conn.close()


@pytest.mark.parametrize(("answer", "code", "state"), [("n", 130, "dead"), ("y", 0, "pending")])
def test_a_person_is_asked_and_sees_how_far_it_is(tmp_path, sqlite_place, answer, code, state):
    conn = many_dead(sqlite_place, tmp_path, 1_001)
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        argv("replay", "--store", sqlite_place.url, "--all"), cwd=tmp_path, env=environment(),
        stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    os.write(master, f"{answer}\n".encode())
    said = b""
    while True:
        try:
            said += os.read(master, 4_096)
        except OSError:  # the other side has closed
            break
    os.close(master)
    assert process.wait(PATIENCE_SECONDS) == code
    text = said.decode()
    assert "replay 1,001 events? [y/N]" in text
    assert ("replaying [#" in text) == (answer == "y")
    assert states(conn) == {state: 1_001}
    conn.close()


def test_ctrl_c_at_the_question_ends_it_at_once(tmp_path, sqlite_place):
    conn = many_dead(sqlite_place, tmp_path, 101)
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        argv("replay", "--store", sqlite_place.url, "--all"), cwd=tmp_path, env=environment(),
        stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    said = b""
    while b"[y/N]" not in said:
        said += os.read(master, 4_096)
    with process:  # a signal just before the read is blocking is seen after it: press again
        for _ in range(int(PATIENCE_SECONDS)):
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
                break
    assert process.returncode == 130
    with suppress(OSError):
        while more := os.read(master, 4_096):
            said += more
    os.close(master)
    assert b"Traceback" not in said
    assert states(conn) == {"dead": 101}
    conn.close()


def test_a_reader_of_a_list_that_went_away_is_no_traceback(tmp_path, sqlite_place):
    many_dead(sqlite_place, tmp_path, 2_000).close()
    command = argv("list", "--store", sqlite_place.url, "--limit", "2000", "--json")
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline().startswith(b'{"seq": "2000"')
        process.stdout.close()
        assert process.wait(PATIENCE_SECONDS) == 141
        assert process.stderr.read() == b""


def test_a_bar_is_quiet_without_a_terminal(capsys):
    bar = Bar("replaying", 10)
    bar.add(5)
    bar.clear()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["replay"], "give ids, filters, or --all"),
        (["replay", "a", "--type", "x"], "Give ids or filters, not both."),
        (["replay", "--state", "pending", "--all"], "'pending' is not one of 'dead', 'done'"),
        (
            ["replay", "--state", "done", "--group", "abc"],
            "--group selects dead letters and --state done excludes",
        ),
        (["bury", "--group", "abc", "--reason", "x"], "which are already buried"),
        (["list", "--since", "1h", "--until", "2h"], "--since must be before --until"),
        (["list", "--since", "soon"], "'soon' is not a time such as"),
        (["list", "--state", "lost"], "'lost' is not one of"),
        (["prune", "--older-than", "-1"], "a duration such as 90s"),
        (["prune"], "Missing option '--older-than'"),
        (["skip", "a"], "Missing option '--reason'"),
        (["config", "write"], "'write' is not 'show'"),
    ],
)
def test_what_contradicts_itself_is_one_line(tmp_path, sqlite_place, arguments, said):
    done = call(*arguments, cwd=tmp_path, POSTROOM_STORE=sqlite_place.url)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
