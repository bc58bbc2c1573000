"""A store, a broker and a source of another package can do all that those of postroom can."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from postroom import Bus, Consumer, Event, Handlers, Relay, SyncOutbox, migrate, open_store
from postroom.cli.app import cli
from postroom.registry import load_source, load_store
from postroom.store import Tables
from tests.cli.command import SOURCE, Running
from tests.scenario.place import until

APP = """
from postroom import Handlers

handlers = Handlers(name="payments")

@handlers.on("order.placed")
def charge(event, tx):
    tx.execute("INSERT INTO charged VALUES (?)", (event.id,))
"""
CONFIG = """
store = "shelf:///room"

[[relay]]
broker = "shelf:///room"

[[consumer]]
source = "shelf:///room?topic=orders"
handlers = "handlers:shelf_app:handlers"
"""


@pytest.fixture
def room(plugin, tmp_path, monkeypatch):
    """A folder with the tables of the store and of the application."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "room").mkdir()
    (tmp_path / "shelf_app.py").write_text(APP)
    (tmp_path / "postroom.toml").write_text(CONFIG)
    conn = sqlite3.connect(tmp_path / "room" / "app.db", timeout=15)
    conn.execute("CREATE TABLE charged (id TEXT)")
    conn.commit()
    yield conn
    conn.close()


def add(conn, *ids, **options):
    outbox = SyncOutbox(routes={"order.*": "orders"}, **options)
    with outbox.transaction(conn):
        for event_id in ids:
            outbox.add(conn, Event("order.placed", {"n": 1}, id=event_id, key="order-1"))


def charged(conn):
    return [row for (row,) in conn.execute("SELECT id FROM charged ORDER BY id")]


def postroom(*arguments):
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output + repr(done.exception)
    return done.output


async def test_a_relay_takes_both_from_the_plugin(room):
    await migrate("shelf:///room")
    add(room, "e-1", "e-2")
    relay = Relay("shelf:///room", "shelf:///room", lease_seconds=2.0)
    broker = relay.broker
    assert (await relay.drain()).done == 2
    assert relay.broker is broker
    lines = [json.loads(line) for line in Path("room/orders").read_text().splitlines()]
    assert [headers["postroom-id"] for _, headers, _ in lines] == ["e-1", "e-2"]


async def test_a_consumer_takes_both_from_the_plugin(room):
    """Also the messages that it keeps, and pruning of what they left in the inbox."""
    await migrate("shelf:///room")
    add(room, "e-1", "e-2")
    await Relay("shelf:///room", "shelf:///room", lease_seconds=2.0).drain()
    handlers = Handlers(name="payments")

    @handlers.on("order.placed")
    def charge(event, tx):
        tx.execute("INSERT INTO charged VALUES (?)", (event.id,))

    async with open_store("shelf:///room") as store:
        source = load_source("shelf:///room?topic=orders&group=payments")
        async with Consumer(source, store, handlers, lease_seconds=2.0):
            await until(lambda: len(source.acked) == 2)
        assert charged(room) == ["e-1", "e-2"]
        async with Relay(store, handlers, stream="mail", lease_seconds=2.0, prune_seconds=0.01):
            pass
        assert await handlers.bind(store).forget_accepted(3_600) == 0
        assert await handlers.bind(store).forget_accepted(-60) == 2


async def test_handlers_of_a_relay_write_beside_the_tables_of_the_plugin(room):
    """One writer at a time, and names of tables of its own: by what the port says."""
    store = load_store("shelf:///room?prefix=pay_")
    await store.migrate()
    assert store.tables == Tables("pay_")
    handlers = Handlers(name="payments", concurrency=5)

    @handlers.on("order.placed")
    async def charge(event, tx, context):
        await tx.execute("INSERT INTO charged VALUES (?)", (event.id,))
        await context.add(Event("order.charged", id=f"after-{event.id}", stream="next"))

    add(room, "e-1", "e-2", prefix="pay_")
    assert (await Relay(store, handlers, lease_seconds=2.0).drain()).done == 2
    assert handlers.places == 1
    assert charged(room) == ["e-1", "e-2"]
    rows = room.execute("SELECT id FROM pay_outbox WHERE stream = 'next' ORDER BY id").fetchall()
    assert rows == [("after-e-1",), ("after-e-2",)]
    assert room.execute("SELECT count(*) FROM pay_inbox").fetchone() == (2,)


async def test_modules_of_a_bus_live_in_the_plugin(room):
    bus = Bus("shelf:///room", lease_seconds=2.0)
    orders, billing = bus.module("orders"), bus.module("billing")
    seen = []

    @billing.on("order.placed")
    async def bill(event, tx):
        seen.append(event.id)

    await bus.migrate()
    async with bus:
        async with orders.store.transaction() as tx:
            await orders.outbox.add(tx, Event("order.placed", id="e-1"))
        await until(lambda: seen == ["e-1"])


def test_the_commands_ask_the_plugin(room):
    assert postroom("migrate", "status").startswith("shelf:///room has no ")
    assert "CREATE TABLE" in postroom("migrate", "sql")
    assert "shelf:///room is at version" in postroom("migrate")
    add(room, "e-1")
    told = json.loads(postroom("status", "--json"))
    assert (told["store"], told["streams"][0]["counts"]["pending"]) == ("shelf:///room", 1)
    assert "e-1" in postroom("list")


def test_a_plugin_adopts_tables_if_it_says_so(room):
    postroom("migrate")
    said = postroom("migrate", "adopt", "--table", "old", "--status", "sent=done")
    assert "moved 2 rows of old into the outbox; 1 are left in old" in said


def test_the_doctor_asks_the_plugin(room):
    postroom("migrate")
    add(room, "e-1")
    lines = postroom("--config", "postroom.toml", "doctor", "--json").splitlines()
    told = [(one["level"], one["what"]) for one in map(json.loads, lines)]
    assert ("warning", "the shelf is dusty") in told
    assert ("info", "the shelf has no 'orders' yet") in told
    assert ("info", "orders is read from the first line") in told
    assert any(what.startswith("shelf:///room?topic=orders keeps messages") for _, what in told)
    assert any("100,000 bytes" in what for _, what in told)


def test_the_doctor_says_that_a_plugin_is_unreachable(room, tmp_path):
    postroom("migrate")
    text = CONFIG.replace('broker = "shelf:///room"', 'broker = "shelf:///elsewhere"')
    (tmp_path / "postroom.toml").write_text(text)
    assert "shelf:///elsewhere" in postroom("--config", "postroom.toml", "doctor")


@pytest.mark.slow
def test_run_serves_relay_and_consumer_of_the_plugin(room, plugin, tmp_path):
    postroom("migrate")
    add(room, "e-1")
    with Running(
        "run", "--log-level", "debug", cwd=tmp_path, PYTHONPATH=f"{SOURCE}:{plugin}"
    ) as process:
        process.hear("starting .*store=.?shelf:///room.* broker=.?shelf:///room")
        process.hear("starting .*consumer=payments .*source=.?shelf:///room")
        process.hear("settled stream=main done=1")
        while charged(room) != ["e-1"]:
            assert process.process.poll() is None
        process.send()
        assert process.end() == 0
