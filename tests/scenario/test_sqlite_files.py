"""What happens to an SQLite file from outside: replaced, or deleted."""

from __future__ import annotations

import sqlite3

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.errors import StoreError
from postroom.event import Event
from postroom.lookup import Filter
from postroom.observer import StoreTrouble
from postroom.outbox import SyncOutbox
from postroom.stores.sqlite import SqliteStore
from tests.scenario.place import QUICK, Notes, ids, until


def add(path, *names):
    conn = sqlite3.connect(path)
    with SyncOutbox().transaction(conn):
        SyncOutbox().add_many(conn, [Event("t", id=name, key=name) for name in names])
    conn.close()


@pytest.fixture
async def path(tmp_path):
    await SqliteStore(tmp_path / "app.db").migrate()
    return tmp_path / "app.db"


async def other_file(path):
    """A file beside it, as a backup that is restored."""
    other = path.with_name("backup.db")
    await SqliteStore(other).migrate()
    add(other, *(f"restored-{n}" for n in range(5)))
    conn = sqlite3.connect(other)
    conn.execute("PRAGMA journal_mode = DELETE")  # all of it is in the one file
    conn.close()
    return other


async def test_a_file_that_is_replaced_is_noticed_and_opened_again(path):  # T-B2
    broker, notes, other = MemoryBroker(), Notes(), await other_file(path)
    add(path, "before")
    async with Relay(
        SqliteStore(path), broker, **QUICK, observers=[notes], lease_seconds=2
    ) as relay:
        await until(lambda: relay.counts.done == 1)
        for extra in ("app.db-wal", "app.db-shm"):
            path.with_name(extra).unlink(missing_ok=True)
        other.rename(path)
        await until(lambda: len(broker.messages) == 6)
        await until(lambda: relay.counts.done == 6)
    assert sorted(ids(broker)) == ["before", *(f"restored-{n}" for n in range(5))]
    told = [trouble.error for trouble in notes.of(StoreTrouble)]
    assert any(f"{path} was replaced by another file while it was open" in error for error in told)


async def test_a_file_that_is_deleted_is_told_until_it_is_back(path):  # T-B2
    broker, notes, other = MemoryBroker(), Notes(), await other_file(path)
    async with Relay(
        SqliteStore(path), broker, **QUICK, observers=[notes], lease_seconds=2
    ) as relay:
        await until(lambda: relay.vitals.lanes == 64)
        for name in ("app.db", "app.db-wal", "app.db-shm"):
            path.with_name(name).unlink(missing_ok=True)
        await until(lambda: any("was deleted" in t.error for t in notes.of(StoreTrouble)))
        assert not path.exists()  # nobody makes an empty one in its place
        other.rename(path)
        await until(lambda: len(broker.messages) == 5)


async def test_connections_of_handlers_are_opened_again_too(path):
    store, other = SqliteStore(path), await other_file(path)
    await store.open()
    async with store.transaction() as tx:
        await tx.execute("SELECT 1")
    with store.sync_transaction() as tx:
        tx.execute("SELECT 1")
    for extra in ("app.db-wal", "app.db-shm"):
        path.with_name(extra).unlink(missing_ok=True)
    other.rename(path)
    count = "SELECT count(*) FROM postroom_outbox"
    async with store.transaction() as tx, tx.execute(count) as cursor:
        assert await cursor.fetchone() == (5,)
    with store.sync_transaction() as tx:
        assert tx.execute(count).fetchone() == (5,)
    with pytest.raises(StoreError, match="was replaced by another file"):
        await store.find(Filter())
    assert len(await store.find(Filter())) == 5
    await store.close()
