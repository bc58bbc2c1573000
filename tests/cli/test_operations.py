"""Replays as stored operations, through the real command: killed, continued, paused, cancelled."""

from __future__ import annotations

import json
import signal
import time

import pytest

from postroom.errors import StoreLockedError
from postroom.event import Event
from postroom.operation import Step
from postroom.outbox import Outbox
from tests.cli.command import Running, call
from tests.cli.test_replay import KEYS, many_dead, states

PATIENCE_SECONDS = 120


def listed(place, tmp_path, *more):
    done = call("operations", *more, "--store", place.url, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def killed_replay(conn_counts, command, tmp_path, enough):
    """Start a replay, and kill its process with SIGKILL in the middle; returns the count then."""
    with Running(*command, cwd=tmp_path) as replay:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while conn_counts().get("pending", 0) < enough:
            assert replay.process.poll() is None, replay.lines
            assert time.monotonic() < deadline
            time.sleep(0.002)
        replay.send(signal.SIGKILL)
        assert replay.end() == -signal.SIGKILL
    return conn_counts()


def expire(place, held):
    """Let the lease of a killed process expire. MongoDB keeps its open transaction for a minute."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            place(lambda store: store.advance_operation(held, Step(lease_seconds=-1)))
        except StoreLockedError:
            assert time.monotonic() < deadline
        else:
            return


def in_order(sent, keys):
    by_key = {}
    for name in sent:
        by_key.setdefault(int(name[1:]) % keys, []).append(int(name[1:]))
    return all(found == sorted(found) for found in by_key.values())


@pytest.mark.promise("L7", "G4")
@pytest.mark.parametrize(
    "number", [5_000, pytest.param(100_000, marks=pytest.mark.nightly)], ids=["5k", "100k"]
)
def test_a_replay_survives_the_death_of_its_process(tmp_path, sqlite_place, number):
    conn = many_dead(sqlite_place, tmp_path, number)
    command = ("replay", "--store", sqlite_place.url, "--all", "--yes")
    found = killed_replay(lambda: states(conn), command, tmp_path, 1_000)
    assert 0 < found["dead"] < number
    (seen,) = listed(sqlite_place, tmp_path)
    assert (seen["state"], seen["total"], seen["free"]) == ("running", number, False)
    assert seen["handled"] == found["pending"]  # the position moved with the events
    conn.execute("UPDATE postroom_operation SET until = 1")  # its lease expires
    conn.commit()
    sent = sqlite_place.deliver()  # meanwhile a relay sends what was replayed
    done = call("operations", "run", "--store", sqlite_place.url, cwd=tmp_path, timeout=200)
    assert done.returncode == 0, done.stderr
    (seen,) = listed(sqlite_place, tmp_path)
    assert (seen["state"], seen["handled"], seen["failed"]) == ("done", number, 0)
    sent += sqlite_place.deliver()
    assert len(sent) == len(set(sent)) == number
    assert in_order(sent, KEYS)
    (noted,) = conn.execute(
        "SELECT sum(how_many) FROM postroom_audit WHERE what = 'replay'"
    ).fetchone()
    assert noted == number
    conn.close()


def test_a_canary_tells_what_it_waits_for(tmp_path, sqlite_place):
    many_dead(sqlite_place, tmp_path, 9).close()
    with Running(
        "replay", "--store", sqlite_place.url, "--all", "--canary", cwd=tmp_path
    ) as replay:
        replay.hear(
            "^waiting until 1 event of the canary's last group went out; no relay serves stream "
            "main: start one$"
        )
        replay.send(signal.SIGINT)
        assert replay.end() == 130


@pytest.mark.nightly
@pytest.mark.promise("L7", "G4")
@pytest.mark.parametrize(
    ("place_of", "number"),
    [("postgres_place", 100_000), ("mariadb_place", 20_000), ("mongo_place", 20_000)],
)
def test_very_many_on_a_server_survive_the_death_of_the_process(
    tmp_path, request, place_of, number
):
    place, keys = request.getfixturevalue(place_of), 1_000
    place.migrate()

    async def dead(store):
        for begin in range(0, number, 2_000):
            names = [f"e{n}" for n in range(begin, begin + 2_000)]
            events = [Event("e", n, id=n, key=f"k{int(n[1:]) % keys}") for n in names]
            async with store.transaction() as tx:
                await Outbox().add_many(tx, events)
            for at in range(0, len(names), 500):
                await store.bury(names[at : at + 500], "boom")

    place(dead)

    def counts():
        return place(lambda found: found.stats("main")).counts

    command = ("replay", "--store", place.url, "--all", "--yes")
    found = killed_replay(counts, command, tmp_path, number // 5)
    assert 0 < found["dead"] < number
    (left,) = place(lambda store: store.operations())
    assert left.handled == found["pending"]
    expire(place, left)
    done = call("operations", "run", "--store", place.url, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    (seen,) = listed(place, tmp_path)
    assert (seen["state"], seen["handled"]) == ("done", number)
    sent = place.deliver()
    assert len(sent) == len(set(sent)) == number
    assert in_order(sent, keys)


@pytest.mark.promise("L7", "G4")
@pytest.mark.parametrize(
    "place_of",
    [
        "sqlite_place",
        pytest.param("postgres_place", marks=pytest.mark.nightly),
        pytest.param("mariadb_place", marks=pytest.mark.nightly),
        pytest.param("mongo_place", marks=pytest.mark.nightly),
    ],
)
def test_a_relay_process_takes_over_the_operation_of_a_killed_one(tmp_path, request, place_of):
    place = request.getfixturevalue(place_of)
    place.migrate()
    names = [f"e{n}" for n in range(60)]
    place.add(*(Event("e", id=name, key=f"k{n % 6}") for n, name in enumerate(names)))
    assert place.deliver(broken=set(names)) == []
    begun = call(
        "replay", "--store", place.url, "--all", "--rate", "20/s", "--detach", cwd=tmp_path
    )
    assert begun.returncode == 0, begun.stderr
    relay = ("run", "--store", place.url, "--broker", "null:")

    def seen(*wanted):
        """Wait for a state, or a number of replayed events."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            (one,) = place(lambda store: store.operations())
            if {one.state, one.handled} & set(wanted):
                return one
            time.sleep(0.05)
        raise AssertionError(one)

    with Running(*relay, cwd=tmp_path) as first:
        held = seen(20, 40)
        first.send(signal.SIGKILL)
        assert first.end() == -signal.SIGKILL
    left = seen("running")
    assert (left.owner, left.free) == (held.owner, False)
    assert left.handled < 60
    expire(place, left)
    with Running(*relay, cwd=tmp_path) as second:
        done = seen("done")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while place(lambda store: store.stats("main")).counts["done"] < 60:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        second.send(signal.SIGTERM)
        assert second.end() == 0
    assert (done.handled, done.failed, done.error) == (60, 0, None)
    log = place(lambda store: store.audit_log(100))
    assert sum(entry.how_many for entry in log if entry.what == "replay") == 60
    assert [e.how_many for e in log if e.what == "operation-done"] == [60]


def test_started_twice_it_runs_once(tmp_path, sqlite_place):
    conn = many_dead(sqlite_place, tmp_path, 20)
    command = ("replay", "--store", sqlite_place.url, "--all", "--rate", "0.01/s", "--detach")
    first = call(*command, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    (seen,) = listed(sqlite_place, tmp_path)
    assert first.stdout == f"started operation {seen['id']}; a relay runs it: postroom operations\n"
    second = call(*command, cwd=tmp_path)
    assert second.returncode == 0
    assert f"operation {seen['id']}" in second.stderr
    assert "selects the same events and is running" in second.stderr
    assert len(listed(sqlite_place, tmp_path)) == 1
    assert states(conn) == {"dead": 20}
    conn.close()


def test_a_paused_operation_that_is_resumed_by_the_same_command_is_reported_as_running(
    tmp_path, sqlite_place
):
    conn = many_dead(sqlite_place, tmp_path, 5)
    command = ("replay", "--store", sqlite_place.url, "--all", "--detach")
    assert call(*command, cwd=tmp_path).returncode == 0
    (seen,) = listed(sqlite_place, tmp_path)
    call("operations", "pause", seen["id"], "--store", sqlite_place.url, cwd=tmp_path)
    again = call(*command, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stderr.endswith(f"resumed operation {seen['id']}, which selects the same events\n")
    assert again.stdout == f"started operation {seen['id']}; a relay runs it: postroom operations\n"
    conn.close()


def test_operators_see_and_control_operations(tmp_path, sqlite_place):
    conn = many_dead(sqlite_place, tmp_path, 20)
    place = ("--store", sqlite_place.url)
    empty = call("operations", *place, cwd=tmp_path)
    assert (empty.returncode, empty.stdout, empty.stderr) == (0, "", "no operations\n")
    begun = call("replay", *place, "--all", "--limit", "7", "--detach", "--json", cwd=tmp_path)
    name = json.loads(begun.stdout)["operation"]
    assert json.loads(begun.stdout)["chosen"] == 7

    def control(*words, code=0):
        done = call("operations", *words, *place, "--by", "olga", cwd=tmp_path)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    assert control("pause", name) == f"paused operation {name} after 0 events\n"
    assert control("pause", name) == f"operation {name} is already paused\n"
    assert "is paused; resume it first" in control("run", name, code=2)
    status = call("status", *place, cwd=tmp_path).stdout
    assert f"operation {name}: replay paused, 0 of 7" in status
    assert json.loads(call("status", *place, "--json", cwd=tmp_path).stdout)["operations"][0] == {
        "id": name, "kind": "replay", "state": "paused", "total": 7, "handled": 0, "failed": 0,
        "error": None, "who": listed(sqlite_place, tmp_path)[0]["who"],
    }  # fmt: skip
    assert control("resume", name) == f"resumed operation {name} after 0 events\n"
    assert "7/7" in control("run", name)
    assert states(conn) == {"dead": 13, "pending": 7}
    assert "is done; it cannot be cancelled" in control("cancel", name, code=2)
    shown = control("show", name)
    assert f"operation {name}" in " ".join(shown.split())
    assert max(map(len, control().splitlines())) <= 80
    assert "no operation with id 'unknown'" in control("show", "unknown", code=1)
    assert "`pause` needs the ID" in control("pause", code=2)
    assert "no operation waits for a process" in control("run")
    begun = call("replay", *place, "--all", "--detach", "--json", cwd=tmp_path)
    other = json.loads(begun.stdout)["operation"]
    assert control("cancel", other) == f"cancelled operation {other} after 0 events\n"
    log = call("audit", *place, "--json", cwd=tmp_path).stdout.splitlines()
    assert [json.loads(line)["what"] for line in log] == [
        "operation-cancel", "operation-start", "operation-done", "replay", "operation-resume",
        "operation-pause", "operation-start",
    ]  # fmt: skip
    conn.close()


def test_a_damaged_operation_is_stopped_and_reported(tmp_path, sqlite_place):
    conn = many_dead(sqlite_place, tmp_path, 3)
    place = ("--store", sqlite_place.url)
    call("replay", *place, "--all", "--detach", cwd=tmp_path)
    conn.execute("UPDATE postroom_operation SET request = '{\"filter\": \x1b[31m'")
    conn.commit()
    done = call("operations", "run", *place, cwd=tmp_path)
    assert done.returncode == 1
    assert "stopped" in done.stdout
    assert "\x1b" not in call("operations", *place, cwd=tmp_path).stdout
    (seen,) = listed(sqlite_place, tmp_path)
    assert seen["error"] == "its request is damaged: it is not JSON"
    health = call("health", *place, "--store-only", "--json", cwd=tmp_path)
    told = f"operation {seen['id']} stopped; see: postroom operations"
    assert told in json.loads(health.stdout)["warnings"]
    again = call("replay", *place, "--all", cwd=tmp_path)
    assert again.returncode == 1
    assert f"postroom operations resume {seen['id']}, or cancel {seen['id']}" in again.stderr
    conn.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["replay", "e1", "--canary"], "are for filters, not ids"),
        (["replay", "--all", "--rate", "fast"], "'fast' is not a rate such as 50/s"),
        (["replay", "--all", "--rate", "0/s"], "'0/s' is not a rate such as 50/s"),
        (["replay", "--all", "--limit", "0"], "0 is not in the range"),
        (["operations", "list", "x"], "`list` takes no ID"),
        (["operations", "melt"], "'melt' is not one of"),
    ],
)
def test_wrong_options_are_one_line(tmp_path, sqlite_place, arguments, said):
    done = call(*arguments, cwd=tmp_path, POSTROOM_STORE=sqlite_place.url)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
