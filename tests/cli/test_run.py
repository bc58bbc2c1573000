"""`postroom run`: a relay as a process, and what `status` sees of it."""

from __future__ import annotations

import json
import signal
import sqlite3

import pytest

from postroom.event import Event
from postroom.outbox import SyncOutbox
from tests.cli.command import Running, call

STORE = ("--store", "sqlite:///app.db")
HANDLERS = """
import asyncio, sys
from postroom.engine.handlers.handlers import Handlers

handlers = Handlers()

@handlers.on("order.placed")
async def placed(event, tx):
    await tx.execute("INSERT INTO seen VALUES (?)", (event.id,))

@handlers.on("order.stuck")
async def stuck(event, tx):
    print("stuck now", file=sys.stderr, flush=True)
    await asyncio.Event().wait()
"""


@pytest.fixture
def shop(tmp_path):
    assert call("migrate", *STORE, cwd=tmp_path).returncode == 0
    (tmp_path / "shop_app.py").write_text(HANDLERS)
    conn = sqlite3.connect(tmp_path / "app.db", timeout=15)
    conn.execute("CREATE TABLE seen (id TEXT)")
    conn.commit()
    yield conn
    conn.close()


def add(conn, *events):
    outbox = SyncOutbox()
    with outbox.transaction(conn):
        outbox.add_many(conn, events)


def running(tmp_path, *more, broker="handlers:shop_app:handlers"):
    arguments = ("run", *STORE, "--broker", broker, "--name", "box-1", "--log-level", "debug")
    return Running(*arguments, *more, cwd=tmp_path)


def seen(conn):
    return [i for (i,) in conn.execute("SELECT id FROM seen ORDER BY id")]


@pytest.mark.req("S4.3", "S2.5")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_delivers_to_handlers_and_stops_on_a_signal(tmp_path, shop, number):
    add(shop, Event("order.placed", id="a", key="1"), Event("order.placed", id="b", key="1"))
    with running(tmp_path) as relay:
        relay.hear(r"starting version=\S+ stream=main name=box-1 store=sqlite:///app.db broker=")
        relay.hear("lanes .*change=taken lanes=0-63 count=64")
        relay.hear("settled stream=main done=1")
        relay.hear("settled stream=main done=1")
        add(shop, Event("order.placed", id="c", key="1"))  # another process wakes it
        relay.hear("settled stream=main done=1")
        relay.send(number)
        relay.hear("stopping now=")
        relay.hear("stopped how=gracefully done=3 failed=0 dead=0")
        assert relay.end() == 0
    assert relay.out == []
    assert seen(shop) == ["a", "b", "c"]
    told = json.loads(call("status", *STORE, "--json", cwd=tmp_path).stdout)
    assert told["streams"][0]["counts"] == {
        "pending": 0, "processing": 0, "done": 3, "failed": 0, "dead": 0,
        "expired": 0, "cancelled": 0,
    }  # fmt: skip
    assert told["streams"][0]["relays"] == []  # it left, and gave its lanes back
    assert told["streams"][0]["lanes"] == {"total": 64, "held": 0, "free": 64}


@pytest.mark.req("S4.3")
def test_a_second_signal_stops_at_once(tmp_path, shop):
    add(shop, Event("order.stuck", id="s"))
    with running(tmp_path) as relay:
        relay.hear("stuck now")
        relay.send(signal.SIGTERM)
        relay.hear("stopping now=.*a second signal stops immediately")
        relay.send(signal.SIGINT)
        relay.hear("stopped how=at_once")
        assert relay.end() == 130
    assert "Traceback" not in "".join(relay.lines)


@pytest.mark.req("S4.9", "S2.7")
def test_status_sees_the_relay_and_its_lanes(tmp_path, shop):
    with running(tmp_path, broker="null:") as relay:
        relay.hear("change=taken")
        add(shop, Event("order.placed", id="a"))
        relay.hear("settled stream=main done=1")
        told = json.loads(call("status", *STORE, "--json", cwd=tmp_path).stdout)
        text = call("status", *STORE, cwd=tmp_path).stdout
        relay.send()
        assert relay.end() == 0
    assert set(told) == {"store", "at", "streams", "paused", "limited", "operations"}
    assert told["store"] == "sqlite:///app.db"
    (main,) = told["streams"]
    (owner,) = {r["owner"] for r in main["relays"]}
    assert main == {
        "stream": "main",
        "failing": [],
        "consumer": None,
        "warnings": [],
        "counts": {
            "pending": 0,
            "processing": 0,
            "done": 1,
            "failed": 0,
            "dead": 0,
            "expired": 0,
            "cancelled": 0,
        },  # fmt: skip
        "lag_seconds": 0.0,
        "blocked_keys": 0,
        "lanes": {"total": 64, "held": 64, "free": 0},
        "relays": [{"owner": owner, "name": "box-1", "state": "healthy", "lanes": 64}],
    }
    assert "  lanes held" in text.replace("      ", "  ")
    assert "64 of 64" in text
    assert "  box-1  healthy       64  " in text


@pytest.mark.req("S2.4")
def test_settings_reach_the_relay(tmp_path, shop):
    (tmp_path / "failing_app.py").write_text(
        "from postroom.engine.handlers.handlers import Handlers\n"
        "handlers = Handlers()\n"
        "@handlers.on('order.placed')\n"
        "def fail(event, tx):\n"
        "    raise ValueError('password=s3cret')\n"
    )
    add(shop, Event("order.placed", {"card": "4711-0815"}, id="a", stream="mail"))
    options = ("--max-attempts", "1", "--stream", "mail", "--lease-seconds", "5")
    with running(tmp_path, *options, broker="handlers:failing_app:handlers") as relay:
        relay.hear(
            "attempt stream=mail id=a type=order.placed .*verdict=failed .*password=\\*\\*\\*"
        )
        relay.hear("dead-letter stream=mail ")
        relay.send()
        assert relay.end() == 0
    said = "".join(relay.lines)
    assert "s3cret" not in said
    assert "4711-0815" not in said
    told = json.loads(call("status", *STORE, "--stream", "mail", "--json", cwd=tmp_path).stdout)
    assert told["streams"][0]["counts"]["dead"] == 1


def test_done_events_are_deleted_at_once_if_wanted(tmp_path, shop):
    add(shop, Event("order.placed", id="a"))
    with running(tmp_path, "--keep-done-seconds", "0", broker="null:") as relay:
        relay.hear("settled stream=main done=1")
        relay.send()
        assert relay.end() == 0
    assert shop.execute("SELECT count(*) FROM postroom_outbox").fetchone() == (0,)
