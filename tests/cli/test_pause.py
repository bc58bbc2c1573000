"""pause, resume and retry-now through the real command, beside a relay in another process."""

from __future__ import annotations

import json
import time

import pytest

from postroom.event import Event
from postroom.lookup import Filter
from tests.cli.command import PATIENCE_SECONDS, Running, call

HANDLERS = """
from pathlib import Path
from postroom import Handlers

handlers = Handlers(name="seen")

@handlers.on("tested")
async def see(event, tx):
    with Path("seen.txt").open("a") as out:
        out.write(event.id + "\\n")
    if event.id.startswith("bad") and not Path("repaired").exists():
        raise ValueError("not repaired yet")
"""


class Desk:
    def __init__(self, place, folder):
        self.place, self.folder = place, folder

    def __call__(self, *arguments, code=0):
        done = call(*arguments, cwd=self.folder, POSTROOM_STORE=self.place.url)
        assert done.returncode == code, done.stderr
        return done

    def json(self, *arguments):
        return json.loads(self(*arguments, "--json").stdout)

    def seen(self):
        path = self.folder / "seen.txt"
        return path.read_text().split() if path.exists() else []

    def until(self, look):
        ends = time.monotonic() + PATIENCE_SECONDS
        while not look():
            assert time.monotonic() < ends, self.seen()
            time.sleep(0.05)


@pytest.fixture
def desk(sqlite_place, tmp_path):
    sqlite_place.migrate()
    (tmp_path / "app.py").write_text(HANDLERS)
    return Desk(sqlite_place, tmp_path)


def event(name, key=None, topic="t"):
    return Event("tested", {}, id=name, key=key, topic=topic)


def test_a_relay_in_another_process_obeys_pauses(desk):
    with Running(
        "run", "--broker", "handlers:app:handlers", cwd=desk.folder, POSTROOM_STORE=desk.place.url
    ) as relay:
        desk.place.add(event("1"))
        desk.until(lambda: desk.seen() == ["1"])
        done = desk("pause", "main", "--for", "1h", "--reason", "a test", "--by", "anna")
        assert (
            done.stdout == "paused stream main for 3600 s; resume it with: postroom resume main\n"
        )
        assert done.stderr == ""
        relay.hear("paused stream=main")
        desk("pause", "--topic", "held")
        desk.place.add(event("2"), event("3", "k", "held"), event("4", "k"))
        (main, held) = desk.json("status")["paused"]
        assert (main["kind"], main["name"], main["who"]) == ("stream", "main", "anna")
        assert (held["kind"], held["name"], held["until"]) == ("topic", "held", None)
        shown = desk("status").stdout
        assert "paused: stream main, until 20" in shown
        assert "paused: topic held, until it is resumed, by " in shown
        assert desk.json("health", "--store-only")["notes"] == [
            "stream main is paused",
            "topic held is paused",
        ]
        assert desk("resume", "main").stdout == "resumed stream main\n"
        desk.until(lambda: desk.seen() == ["1", "2"])
        assert desk.json("resume", "--topic", "held")["changed"] is True
        desk.until(lambda: desk.seen() == ["1", "2", "3", "4"])
        assert "is not paused" in desk("resume", "main").stderr
    audit = [json.loads(line) for line in desk("audit", "--json").stdout.splitlines()]
    assert [(one["what"], one["about"]) for one in audit] == [
        ("resume", "topic held"),
        ("resume", "stream main"),
        ("pause", "topic held"),
        ("pause", "stream main for 3600 s: a test"),
    ]


def test_a_relay_in_another_process_obeys_limits(desk):
    """Of a stream and of a topic: the limits are far below what the relay sends, and are removed."""
    with Running(
        "run", "--broker", "handlers:app:handlers", cwd=desk.folder, POSTROOM_STORE=desk.place.url
    ) as relay:
        desk.place.add(event("1"))
        desk.until(lambda: desk.seen() == ["1"])
        done = desk("limit", "--topic", "slow", "--per-second", "0.001", "--by", "anna")
        assert done.stdout == "limited topic slow: 0.001 per second\n"
        relay.hear("limited stream=main kind=topic name=slow")
        names = [f"s{n}" for n in range(5)]
        desk.place.add(*(event(name, topic="slow") for name in names), event("2"))
        desk.until(lambda: "2" in desk.seen())
        assert len(set(names) & set(desk.seen())) <= 1
        said = desk.json("limit", "main", "--per-second", "200", "--in-flight", "50")
        assert said == {
            "verb": "limit", "kind": "stream", "name": "main", "max_per_second": 200.0,
            "max_in_flight": 50, "changed": True,
        }  # fmt: skip
        shown = desk("status").stdout
        assert "limited: stream main, 200 per second, 50 in flight" in shown
        assert "limited: topic slow, 0.001 per second" in shown
        assert desk.json("status")["limited"] == [
            {"kind": "stream", "name": "main", "max_per_second": 200.0, "max_in_flight": 50},
            {"kind": "topic", "name": "slow", "max_per_second": 0.001, "max_in_flight": None},
        ]
        assert (
            "stream main is limited: 200 per second, 50 in flight"
            in (desk.json("health", "--store-only")["notes"])
        )
        removed = desk("limit", "--topic", "slow", "--none").stdout
        assert removed == "removed the limits of topic slow\n"
        assert "has no limit" in desk("limit", "--topic", "slow", "--none").stderr
        desk.until(lambda: set(names) <= set(desk.seen()))
    assert len(desk.seen()) == 7
    (entry, *_) = [json.loads(line) for line in desk("audit", "--json").stdout.splitlines()]
    assert (entry["what"], entry["about"]) == ("limit", "topic slow: no limit")
    for wrong in (
        [], ["main"], ["main", "--none", "--in-flight", "1"], ["main", "--per-second", "0"],
        ["main", "--in-flight", "-1"], ["main", "--topic", "t", "--none"],
        ["main", "--per-second", "nan"], ["a\nb", "--none"],
    ):  # fmt: skip
        desk("limit", *wrong, code=2)


@pytest.mark.parametrize("server", ["postgres", "mariadb", "mongo"])
def test_a_relay_on_a_server_obeys_a_pause(server, request, tmp_path):
    place = request.getfixturevalue(f"{server}_place")
    place.migrate()
    (tmp_path / "app.py").write_text(HANDLERS)
    desk = Desk(place, tmp_path)
    desk("pause", "--topic", "held", "--by", "anna")
    place.add(event("1", "k", "held"), event("2", "k"), event("3"))
    with Running(
        "run", "--broker", "handlers:app:handlers", cwd=desk.folder, POSTROOM_STORE=place.url
    ) as relay:
        relay.hear("paused stream=main")
        desk.until(lambda: desk.seen() == ["3"])

        def held():
            async def work(store):
                first, second, _ = await store.find(Filter())
                return first.state == "failed" and first.attempts == second.attempts == 0

            return place(work)

        desk.until(held)
        desk("resume", "--topic", "held")
        desk.until(lambda: desk.seen() == ["3", "1", "2"])


def test_two_relays_in_two_processes_share_a_limit(desk):
    """By the store's clock; each may begin with one event and send those of a quarter second."""
    rate, events = 20, 60
    desk("limit", "main", "--per-second", str(rate))
    desk.place.add(*(event(f"e{n}") for n in range(events)))
    command = ("run", "--broker", "handlers:app:handlers", "--poll-seconds", "0.1")
    with (
        Running(*command, cwd=desk.folder, POSTROOM_STORE=desk.place.url),
        Running(*command, cwd=desk.folder, POSTROOM_STORE=desk.place.url),
    ):
        desk.until(lambda: len(desk.seen()) == events)
        desk.until(lambda: desk.json("status")["streams"][0]["counts"]["done"] == events)

    async def settled(store):
        return sorted([(await store.details(f"e{n}")).settled_us for n in range(events)])

    ends = desk.place(settled)
    most = max(sum(0 <= end - start < 1_000_000 for end in ends) for start in ends)
    assert most <= 2 * rate
    assert sorted(desk.seen()) == sorted(f"e{n}" for n in range(events))


def test_a_name_that_nobody_knows_is_paused_with_a_warning(desk):
    assert "no stream oders has run" in desk("pause", "oders").stderr
    assert "no consumer mial has run" in desk("pause", "--consumer", "mial").stderr
    assert desk("pause", "--topic", "any").stderr == ""
    assert "no stream oders has run" in desk("limit", "oders", "--in-flight", "1").stderr
    for wrong in ([], ["a", "--topic", "b"], ["a\nb"], ["a", "--for", "soon"]):
        desk("pause", *wrong, code=2)


def test_retry_now_beside_a_relay(desk):
    with Running(
        "run", "--broker", "handlers:app:handlers", cwd=desk.folder, POSTROOM_STORE=desk.place.url
    ):
        desk.place.add(event("bad-1", "k"), event("2", "k"), event("bad-3"))

        def failed():
            async def work(store):
                found = await store.find(Filter())
                return sum(r.state == "failed" and r.attempts >= 2 for r in found) == 2

            return desk.place(work)

        desk.until(failed)
        (desk.folder / "repaired").touch()
        done = desk("retry-now", "--error", "not repaired", "--by", "anna")
        assert done.stdout.startswith("made due ")
        desk.until(
            lambda: "2" in desk.seen() and desk.json("status")["streams"][0]["counts"]["done"] == 3
        )
    desk("retry-now", code=2)
    desk("retry-now", "unknown", code=1)
