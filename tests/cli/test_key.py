"""`postroom key`: what went, what blocks the key, what waits behind it."""

from __future__ import annotations

import asyncio
import json

import pytest

from postroom.cli import key as command
from postroom.event import Event
from postroom.registry import load_store
from postroom.testing.store.tools import FAR, Hand
from tests.cli.command import call


def events(*names, key="k", **more):
    return [Event("order.changed", {}, id=name, key=key, **more) for name in names]


@pytest.fixture
def place(sqlite_place):
    sqlite_place.migrate()
    return sqlite_place


def fail(place, name, *, done=()):
    async def work(store):
        hand = await Hand(store).take()
        read = {record.id: record for record in await hand.read()}
        await hand.settle(done=[read[one] for one in done])
        await hand.fail(read[name], delay=FAR)

    place(work)


def asked(place, folder, *arguments, code=0):
    done = call("key", *arguments, "--store", place.url, cwd=folder)
    assert done.returncode == code, done.stderr
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if "x" * 100 not in line)
    return done


def test_a_blocked_key_is_told_from_its_beginning_to_its_end(place, tmp_path):
    place.add(*events("1", "2", "3", "4", "5", "6"), *events("x", key="other"))
    fail(place, "3", done=["1", "2"])
    said = asked(place, tmp_path, "k", "--limit", "1").stdout.splitlines()
    assert [line.split() for line in said[:3]] == [
        ["key", "k", "in", "stream", "main"],
        ["went:", "2", "done;", "the", "last", "1:"],
        [said[2].split()[0], "done", "order.changed", "2"],
    ]
    assert said[3] == "  blocked by its head:"
    assert said[4].endswith("failed     order.changed      3")
    assert said[5].startswith("    1 attempt, next attempt 2")
    assert said[6:8] == ["    boom", "  behind it: 3 events; the first 1:"]
    assert said[8].endswith("pending    order.changed      4")
    (found,) = json.loads(asked(place, tmp_path, "k", "--json").stdout)["sequences"]
    assert found["went"]["counts"] == {"done": 2}
    assert [one["id"] for one in found["went"]["last"]] == ["1", "2"]
    assert (found["head"]["id"], found["head"]["attempts"]) == ("3", 1)
    assert found["blocked_after"] == found["head"]["seq"]
    assert found["behind"]["count"] == 3
    assert [one["id"] for one in found["behind"]["first"]] == ["4", "5", "6"]
    assert found["complete"] is True


def test_ids_are_whole_in_any_terminal(place, tmp_path):
    long, longer = "0199c1a0-7f3e-7aaa-8d43-0c2f5be1d9aa", "x" * 100
    place.add(*events(long, longer, "short"))
    lines = asked(place, tmp_path, "k", "--limit", "9").stdout.splitlines()
    assert lines[2].endswith(" pending    order.changed")
    assert lines[3] == f"      {long}"
    assert lines[7].endswith(" order.changed      short")
    done = call("key", "k", "--store", place.url, cwd=tmp_path, COLUMNS="100")
    assert done.stdout.splitlines()[2].endswith(f" pending    order.changed      {long}")
    assert f"      {longer}" in done.stdout.splitlines()


def test_the_head_of_a_long_sequence_is_found_within_the_bound(place, tmp_path):
    place.add(*events(*(f"e{n:03}" for n in range(100))))
    fail(place, "e003", done=["e000", "e001", "e002"])
    (found,) = json.loads(asked(place, tmp_path, "k", "--scan-limit", "10", "--json").stdout)[
        "sequences"
    ]
    assert found["head"]["id"] == "e003"
    assert (found["complete"], found["behind"]["count"]) == (False, 10)
    assert found["went"] == {"counts": {}, "last": []}
    said = asked(place, tmp_path, "k", "--scan-limit", "10").stdout
    assert "older events were not looked at: --scan-limit" in said


def test_streams_and_aggregate_types_are_sequences_of_their_own(place, tmp_path):
    place.add(*events("1"), *events("2", stream="other"), *events("3", aggregate_type="order"))
    found = json.loads(asked(place, tmp_path, "k", "--json").stdout)["sequences"]
    assert [(one["stream"], one["aggregate_type"], one["head"]["id"]) for one in found] == [
        ("main", None, "1"),
        ("main", "order", "3"),
        ("other", None, "2"),
    ]
    place.deliver()
    said = asked(place, tmp_path, "k", "--stream", "main").stdout
    assert said.count("went: 1 done:") == 2
    assert said.count("nothing waits") == 2
    missing = asked(place, tmp_path, "k", "--stream", "nothing", code=1).stderr
    assert missing.startswith("postroom: no event of key 'k' in stream 'nothing' in sqlite:")


@pytest.mark.slow
@pytest.mark.parametrize("of", ["postgres_place", "mariadb_place", "mongo_place"])
def test_a_blocked_key_on_every_server(request, of):
    place = request.getfixturevalue(of)
    place.migrate()
    place.add(*events("1", "2", "3", "4"))
    fail(place, "2", done=["1"])

    async def ask():
        async with load_store(place.url) as store:
            return [await command.sequences(store, "k", None, bound) for bound in (100, 2)]

    (whole,), (part,) = asyncio.run(ask())
    assert [one.id for one in whole.went] == ["1"]
    assert [one.id for one in whole.waiting] == ["2", "3", "4"]
    assert [one.id for one in part.waiting] == ["2", "3", "4"]
    assert whole.barrier == part.barrier == whole.waiting[0].seq
