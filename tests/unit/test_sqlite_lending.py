"""Transactions that the SQLite store lends to handlers."""

from __future__ import annotations

import asyncio
import builtins
import sqlite3
import threading

import pytest

from postroom.errors import (
    MissingExtraError,
    StoreConflictError,
    StoreLostError,
    TransactionError,
)
from postroom.event import Event
from postroom.outbox import Outbox, SyncOutbox
from postroom.store import Filter
from postroom.stores.sqlite import SqliteStore


@pytest.fixture
async def store(tmp_path):
    store = SqliteStore(tmp_path / "app.db", busy_seconds=0.05)
    await store.migrate()
    await store.open()
    async with store.transaction() as tx:
        await tx.execute("CREATE TABLE effect (id INTEGER PRIMARY KEY)")
    yield store
    await store.close()


async def effects(store):
    def look(db):
        return [row[0] for row in db.connection.execute("SELECT id FROM effect ORDER BY id")]

    return await store._look.call(look)


@pytest.mark.req("S5.7")
@pytest.mark.promise("G6", "H3")
async def test_effects_and_events_are_one_commit(store):
    with pytest.raises(ZeroDivisionError):
        async with store.transaction() as tx:
            await tx.execute("INSERT INTO effect VALUES (1)")
            await Outbox().add(tx, Event("t", id="lost"))
            raise ZeroDivisionError
    async with store.transaction() as tx:
        await tx.execute("INSERT INTO effect VALUES (2)")
        await Outbox().add(tx, Event("t", id="kept"))
    assert await effects(store) == [2]
    assert [r.id for r in await store.find(Filter())] == ["kept"]


@pytest.mark.req("S5.7")
@pytest.mark.promise("G6", "H3")
async def test_the_same_in_a_thread(store):
    def handle(number, fail):
        with store.sync_transaction() as tx:
            tx.execute("INSERT INTO effect VALUES (?)", (number,))
            SyncOutbox().add(tx, Event("t", id=f"e{number}"))
            if fail:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(handle, 1, True)
    await asyncio.to_thread(handle, 2, False)
    await asyncio.to_thread(handle, 3, False)
    assert await effects(store) == [2, 3]
    assert [r.id for r in await store.find(Filter())] == ["e2", "e3"]


async def test_a_connection_is_used_again_and_comes_back_plain(store):
    async with store.transaction() as first:
        first.row_factory = sqlite3.Row
    async with store.transaction() as second:
        assert second is first
        assert second.row_factory is None
    with store.sync_transaction() as sync_first:
        sync_first.row_factory = sqlite3.Row
    with store.sync_transaction() as sync_second:
        assert sync_second is sync_first
        assert sync_second.row_factory is None


@pytest.mark.promise("H1", "H4")
async def test_a_transaction_that_cannot_be_opened_is_a_conflict(store):
    ran = []
    writer = sqlite3.connect(store.path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreConflictError):
        async with store.transaction():
            ran.append("async")
    with pytest.raises(StoreConflictError):
        with store.sync_transaction():
            ran.append("sync")
    writer.close()
    async with store.transaction(), asyncio.timeout(20):
        pass
    with store.sync_transaction():
        pass
    assert ran == []


async def test_sync_handlers_take_turns(store):
    entered, leave = threading.Event(), threading.Event()

    def first():
        with store.sync_transaction() as tx:
            entered.set()
            leave.wait(20)
            tx.execute("INSERT INTO effect VALUES (1)")

    task = asyncio.ensure_future(asyncio.to_thread(first))
    await asyncio.to_thread(entered.wait, 20)
    with pytest.raises(StoreConflictError, match="another handler"):
        with store.sync_transaction():
            pass
    leave.set()
    await task
    with store.sync_transaction() as tx:
        tx.execute("INSERT INTO effect VALUES (2)")
    assert await effects(store) == [1, 2]


@pytest.mark.promise("G6")
@pytest.mark.parametrize("verb", ["commit", "rollback"])
async def test_a_handler_that_ends_its_transaction_is_told(store, verb):
    with pytest.raises(TransactionError, match="leave commit and rollback to postroom"):
        async with store.transaction() as tx:
            await getattr(tx, verb)()
    with pytest.raises(TransactionError, match="leave commit and rollback to postroom"):
        with store.sync_transaction() as tx:
            getattr(tx, verb)()
    async with store.transaction() as tx:
        await tx.execute("INSERT INTO effect VALUES (1)")
    assert await effects(store) == [1]


async def test_a_cancelled_handler_is_rolled_back(store):
    inside = asyncio.Event()

    async def handle():
        async with store.transaction() as tx:
            await tx.execute("INSERT INTO effect VALUES (1)")
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(handle())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with store.transaction() as tx:
        await tx.execute("INSERT INTO effect VALUES (2)")
    assert await effects(store) == [2]


async def test_a_handler_cancelled_at_any_step_leaves_no_lock_behind(store):
    """Cancelled after so many turns of the loop: before, during and after BEGIN and COMMIT."""

    async def handle(number):
        async with store.transaction() as tx:
            await tx.execute("INSERT INTO effect VALUES (?)", (number,))

    for turns in range(40):
        task = asyncio.ensure_future(handle(turns))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        async with asyncio.timeout(20), store.transaction() as tx:
            await tx.execute("INSERT INTO effect VALUES (?)", (1_000 + turns,))
    assert [n for n in await effects(store) if n >= 1_000] == list(range(1_000, 1_040))


async def test_a_commit_that_fails_leaves_it_unknown(store, monkeypatch):
    async def commit(self):
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error

    with pytest.raises(StoreLostError):
        async with store.transaction() as tx:
            await tx.execute("INSERT INTO effect VALUES (1)")
            monkeypatch.setattr(type(tx), "commit", commit)
    monkeypatch.undo()
    async with store.transaction() as tx:
        await tx.execute("INSERT INTO effect VALUES (2)")
    assert await effects(store) == [2]


async def test_without_aiosqlite_the_extra_is_named(store, monkeypatch):
    await store.close()
    real = builtins.__import__

    def no_aiosqlite(name, *args, **kwargs):
        if name == "aiosqlite":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_aiosqlite)
    with pytest.raises(MissingExtraError, match=r"postroom\[sqlite\]"):
        async with store.transaction():
            pass
    with store.sync_transaction() as tx:
        tx.execute("INSERT INTO effect VALUES (1)")
