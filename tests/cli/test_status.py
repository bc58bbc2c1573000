"""`postroom status`: what it makes of counts and leases, and how that looks."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing

import pytest

from postroom import (
    Constant,
    Consumer,
    Event,
    Handlers,
    MemoryBroker,
    Relay,
    RetryPolicy,
    SyncOutbox,
)
from postroom.admin.stream_status import RelaySeen, StreamSeen, summarise
from postroom.admin.texts import duration
from postroom.broker import Outcome, Verdict
from postroom.cli.status import render
from postroom.cli.status_causes import paint
from postroom.lookup import Stats
from postroom.model.envelope import ID, TYPE
from postroom.model.incoming import Incoming
from postroom.sources.memory import MemoryQueue, MemorySource
from postroom.store import Lease, Member, Membership
from tests.cli.command import call

SEEN = StreamSeen(
    "main",
    {"pending": 12, "processing": 0, "done": 2_000_000, "failed": 1, "dead": 3},
    75.2,
    1,
    {"total": 64, "held": 63, "free": 1},
    [
        RelaySeen("0b7e", "box:41", "healthy", 32),
        RelaySeen("1c", "box:42", "unhealthy", 31),
        RelaySeen("2d", "", "gone", 1),
    ],
)


def test_a_stream_for_people():
    assert render([SEEN]) == [
        "stream main",
        "  pending                 12      lag               1 min 15 s",
        "  processing               0      blocked keys               1",
        "  done             2,000,000      lanes held          63 of 64",
        "  failed                   1      relays alive               2",
        "  dead                     3",
        "",
        "  relay   state      lanes  owner",
        "  box:41  healthy       32  0b7e",
        "  box:42  unhealthy     31  1c",
        "  -       gone           1  2d",
    ]


def test_it_fits_80_columns_whatever_the_names(tmp_path):
    nasty = RelaySeen("o" * 100, "\x1b[31m" + "n" * 100, "unhealthy", 64)
    lines = render([StreamSeen("s" * 64, SEEN.counts, 1e9, 10**9, SEEN.lanes, [nasty])])
    assert max(len(line) for line in lines) <= 80
    assert all(line.isprintable() for line in lines)


def test_relays_are_healthy_unhealthy_or_gone():
    leases = [Lease(n, None, 0, False) for n in range(64)]
    leases[0] = Lease(0, "a", 1, True)
    leases[1] = Lease(1, "a", 1, True)
    leases[2] = Lease(2, "b", 5, True)
    leases[3] = Lease(3, "c", 2, False)  # ran out, and nobody took it yet
    membership = Membership((Member("a", True, "one"), Member("b", False, "two")), tuple(leases))
    seen = summarise("mail", Stats({"pending": 4}, 1.23456, 2), membership)
    assert seen == StreamSeen(
        "mail",
        {
            "pending": 4,
            "processing": 0,
            "done": 0,
            "failed": 0,
            "dead": 0,
            "expired": 0,
            "cancelled": 0,
        },  # fmt: skip
        1.235,
        2,
        {"total": 64, "held": 3, "free": 61},
        [
            RelaySeen("a", "one", "healthy", 2),
            RelaySeen("b", "two", "unhealthy", 1),
            RelaySeen("c", "", "gone", 1),
        ],
    )


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0.0 s"),
        (59.94, "59.9 s"),
        (60.0, "1 min 0 s"),
        (3_599.0, "59 min 59 s"),
        (3_600.0, "1 h 0 min"),
        (200_000.0, "2 days 7 h"),
    ],
)
def test_durations(seconds, shown):
    assert duration(seconds) == shown


def test_an_empty_outbox(tmp_path):
    call("migrate", "--store", "sqlite:///app.db", cwd=tmp_path)
    done = call("status", "--store", "sqlite:///app.db", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "stream main"
    assert done.stdout.splitlines()[-1] == "  no relay serves this stream"
    told = json.loads(call("status", "--store", "sqlite:///app.db", "--json", cwd=tmp_path).stdout)
    assert [s["stream"] for s in told["streams"]] == ["main"]
    assert told["streams"][0]["lanes"] == {"total": 64, "held": 0, "free": 64}


def test_an_unknown_stream_is_an_error_with_a_suggestion(tmp_path):  # U17
    url = "sqlite:///app.db"
    call("migrate", "--store", url, cwd=tmp_path)
    empty = call("status", "--store", url, "--stream", "mian", cwd=tmp_path)
    assert empty.returncode == 0  # before the first event and relay every name may be right
    with closing(sqlite3.connect(tmp_path / "app.db")) as conn, conn:
        for stream in ("main", "mail"):
            SyncOutbox().add(conn, Event(type="a", payload={}, stream=stream))
    done = call("status", "--store", url, "--stream", "mian", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "postroom: --stream: unknown stream 'mian'; did you mean 'main'? Known: mail, main."
    )
    assert call("status", "--store", url, "--stream", "mail", cwd=tmp_path).returncode == 0


def test_it_tells_why_events_fail_and_names_consumers(sqlite_place, tmp_path):  # U20
    sqlite_place.migrate()
    events = [Event("a", n, id=f"e{n}", key=str(n)) for n in range(4)]
    sqlite_place.add(*events, Event("b", 1, stream="inbox.payments"))

    async def fail(store):
        broker = MemoryBroker()
        broker.script(
            lambda r: Outcome(
                Verdict.FAILED, "no host" if r.id == "e3" else f"timeout after {r.seq} s"
            )
        )
        await Relay(store, broker, retry=RetryPolicy(backoff=Constant(3600))).drain()

    sqlite_place(fail)
    done = call("status", "--store", sqlite_place.url, cwd=tmp_path, COLUMNS="80")
    assert "\nconsumer payments\n  handled     0 in the inbox, 0/s\n" in "\n" + done.stdout
    assert done.stdout.endswith(
        "  failed events, most frequent errors first (of the first 50):\n"
        "      3  timeout after <n> s\n"
        "      1  no host\n"
    )
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b" not in done.stdout  # not a terminal
    seen = json.loads(call("status", "--store", sqlite_place.url, "--json", cwd=tmp_path).stdout)
    found = {one["stream"]: one["failing"] for one in seen["streams"]}
    assert found["inbox.payments"] == []
    assert found["main"][0] == {"error": "timeout after <n> s", "events": 3}


def test_colours(monkeypatch):  # U20
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert paint("stream main") == "\x1b[1mstream main\x1b[0m"
    assert "\x1b[31m" in paint("  dead                     3")
    assert "\x1b[33m" in paint("  failed                   1      relays alive               2")
    assert paint("  dead                     0") == "  dead                     0"
    assert "\x1b[31m" in paint("  -       gone           1  2d")
    monkeypatch.setenv("NO_COLOR", "1")
    assert paint("stream main") == "stream main"


def test_consumers_are_shown_with_what_they_handled_and_what_waits(sqlite_place, tmp_path):  # U20
    sqlite_place.migrate()

    async def consume(store):
        queue, handlers = MemoryQueue(), Handlers()
        for name in ("charge", "mail"):
            handlers.on("order.paid", name=name)(_nothing)
        headers = {TYPE: "order.paid", "content-type": "application/json"}
        queue.send(*(Incoming("t", b"{}", headers | {ID: f"m{n}"}) for n in range(3)))
        source = MemorySource(queue, name="payments")
        async with Consumer(source, store, handlers, name="pay/ments") as consumer:
            while consumer.counts.done < 3:
                await asyncio.sleep(0.01)

    sqlite_place(consume)
    done = call("status", "--store", sqlite_place.url, cwd=tmp_path, COLUMNS="80")
    lines = done.stdout.splitlines()
    assert lines[0] == "consumer pay/ments"
    assert lines[1].startswith("  handled     6 in the inbox, 0.1/s, last at 2")
    assert lines[2:4] == ["", "  stored messages and dead letters:"]
    assert max(map(len, lines)) <= 80
    (tmp_path / "postroom.toml").write_text(
        f'store = "{sqlite_place.url}"\n[[consumer]]\nname = "pay/ments"\n'
        'source = "amqp://127.0.0.1:1/?queue=payments"\nhandlers = "app:handlers"\n'
    )
    done = call("status", "--json", cwd=tmp_path)
    (found,) = json.loads(done.stdout)["streams"]
    seen = found["consumer"]
    assert (seen["name"], seen["handled"]) == ("pay/ments", {"charge": 3, "mail": 3})
    assert (seen["per_second"], seen["waiting"]) == (0.1, None)
    assert seen["source"] == "amqp://127.0.0.1:1/?queue=payments"
    assert "127.0.0.1:1" in seen["source_error"]
    assert max(map(len, call("status", cwd=tmp_path, COLUMNS="80").stdout.splitlines())) <= 80
    (tmp_path / "postroom.toml").write_text("store = ")  # not needed with --store
    assert call("status", "--store", sqlite_place.url, cwd=tmp_path).returncode == 0


async def _nothing(event, tx): ...
