"""SQLite's clock is read behind the write lock: what waited too long for it settles nothing (L2)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading

import pytest

from postroom.event import Event
from postroom.outbox import SyncOutbox
from postroom.stores.sqlite import SqliteStore, thread
from postroom.testing.store.tools import ALL, Hand


@pytest.mark.promise("L2")
async def test_a_settle_that_waited_longer_than_its_lease_settles_nothing(tmp_path, monkeypatch):
    now = [1_700_000_000_000_000]
    monkeypatch.setattr(thread, "host_microseconds", lambda: now[0])
    store = SqliteStore(tmp_path / "app.db")
    await store.migrate()
    await store.open()
    other = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
    with SyncOutbox().transaction(other):
        SyncOutbox().add(other, Event("t", id="e"))
    hand = await Hand(store).take(lease_seconds=10)
    records = await hand.read()
    waiting = threading.Event()
    store._writer._database.connection.set_trace_callback(lambda _: waiting.set())
    other.execute("BEGIN IMMEDIATE")
    settling = asyncio.create_task(hand.settle(done=records))
    assert await asyncio.to_thread(waiting.wait, 20)  # its BEGIN IMMEDIATE is under way
    now[0] += 11_000_000
    other.execute("ROLLBACK")
    assert await settling == set()
    assert (await store.get("e")).state == "pending"
    assert set((await store.take("main", "bert", ALL, 10)).keys()) == set(ALL)
    other.close()
    await store.close()
