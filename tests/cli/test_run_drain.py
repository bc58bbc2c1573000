"""`postroom run --drain`: what is due is sent, and the exit code tells what is left."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from postroom import Event, SyncOutbox
from tests.cli.command import Running, call

STORE = ("--store", "sqlite:///app.db")
HANDLERS = """
import asyncio, sys
from postroom import Handlers

handlers = Handlers()

@handlers.on("order.placed")
async def placed(event, tx): ...

@handlers.on("order.odd")
async def odd(event, tx):
    raise ValueError("odd")

@handlers.on("order.stuck")
async def stuck(event, tx):
    print("stuck now", file=sys.stderr, flush=True)
    await asyncio.Event().wait()
"""


@pytest.fixture
def shop(tmp_path):
    assert call("migrate", *STORE, cwd=tmp_path).returncode == 0
    (tmp_path / "shop_app.py").write_text(HANDLERS)
    return tmp_path


def add(folder, *events):
    with closing(sqlite3.connect(folder / "app.db", timeout=15)) as conn, conn:
        SyncOutbox().add_many(conn, events)


def states(folder):
    with closing(sqlite3.connect(folder / "app.db", timeout=15)) as conn:
        return dict(conn.execute("SELECT id, state FROM postroom_outbox ORDER BY id"))


def drain(folder, *more, broker="handlers:shop_app:handlers", **variables):
    return call("run", *STORE, "--broker", broker, "--drain", *more, cwd=folder, **variables)


def test_drained(shop):  # U22
    later = datetime.now(UTC) + timedelta(hours=1)
    add(shop, *(Event("order.placed", n, id=f"e{n}", key=str(n)) for n in range(20)))
    add(shop, Event("order.placed", 0, id="later", available_at=later))
    done = drain(shop, "--for", "60s")
    assert done.returncode == 0, done.stderr
    assert "stopped stream=main how=drained done=20" in done.stderr
    found = states(shop)
    assert found.pop("later") == "pending"
    assert set(found.values()) == {"done"}
    assert drain(shop).returncode == 0  # nothing to do


def test_failed_ones_appeared(shop):  # U22
    add(shop, Event("order.odd", 1, id="odd"), Event("order.placed", 2, id="good"))
    done = drain(shop, "--max-attempts", "1")
    assert done.returncode == 5, done.stderr
    assert states(shop) == {"odd": "dead", "good": "done"}
    assert drain(shop).returncode == 0  # a dead letter of an earlier run is not counted again


def test_the_time_is_over_with_rest(shop):  # U22
    add(shop, Event("order.stuck", 1, id="stuck"))
    done = drain(shop, "--for", "0.5s", POSTROOM_STOP_SECONDS="0.1")
    assert done.returncode == 4, done.stderr
    assert "how=time" in done.stderr
    assert states(shop)["stuck"] != "done"


def test_the_broker_is_unreachable(shop):  # U22
    add(shop, Event("order.placed", 1, id="e"))
    done = drain(shop, broker="amqp://127.0.0.1:1/")
    assert done.returncode == 4, done.stderr
    assert "how=unreachable" in done.stderr
    assert states(shop) == {"e": "pending"}


def test_a_paused_stream(shop):  # U22
    add(shop, Event("order.placed", 1, id="e"))
    call("pause", "main", *STORE, "--reason", "x", cwd=shop)
    done = drain(shop)
    assert done.returncode == 4, done.stderr
    assert "resume" in done.stderr


def test_signals(shop):  # U22
    add(shop, Event("order.stuck", 1, id="stuck"))
    arguments = ("run", *STORE, "--broker", "handlers:shop_app:handlers", "--drain")
    with Running(*arguments, cwd=shop, POSTROOM_STOP_SECONDS="0.1") as running:
        running.hear("stuck now")
        running.send(signal.SIGTERM)
        assert running.end() == 4
    assert "how=stopped" in running.lines[-1]
    with Running(*arguments, "--lease-seconds", "1", cwd=shop) as running:
        running.hear("stuck now")
        running.send(signal.SIGTERM)
        running.send(signal.SIGINT)
        assert running.end() == 130


def test_consumers_do_not_take_part(shop):  # U22
    section = '[[consumer]]\nsource = "amqp://127.0.0.1:1/?queue=q"\nhandlers = "handlers:shop_app:handlers"\n'
    (shop / "postroom.toml").write_text(section)
    add(shop, Event("order.placed", 1, id="e"))
    done = drain(shop)
    assert done.returncode == 0, done.stderr
    assert "do not take part in --drain" in done.stderr
    alone = call("run", *STORE, "--drain", cwd=shop)
    assert alone.returncode == 2
    assert "name a broker" in alone.stderr


@pytest.mark.parametrize(
    "more", [("--for", "20s"), ("--drain", "--for", "0s"), ("--drain", "--for", "x")]
)
def test_wrong_usage(tmp_path, more):  # U22
    done = call("run", *STORE, "--broker", "null:", *more, cwd=tmp_path)
    assert done.returncode == 2
    assert "--for" in done.stderr


def test_a_store_that_is_missing_is_not_waited_for(tmp_path):  # U22
    assert drain(tmp_path, broker="null:").returncode == 3
