"""What the doctor finds in an SQLite file."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from postroom.stores.sqlite import SqliteStore, checks
from postroom.stores.sqlite.checks import examine


@pytest.fixture
async def store(tmp_path):
    store = SqliteStore(tmp_path / "app.db", prefix="shop_")
    await store.migrate()
    await store.open()
    yield store
    await store.close()


def run(store, sql):
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        return connection.execute(sql).fetchall()


async def test_a_sound_file_has_no_findings(store):
    assert await examine(store) == []


@pytest.mark.promise("D1")
async def test_every_index_of_the_outbox_is_missed(store):
    named = "SELECT name FROM sqlite_master WHERE type = 'index' AND name LIKE 'shop_outbox_%'"
    indexes = {name for (name,) in run(store, named)}
    assert len(indexes) == 6
    for name in indexes:
        run(store, f"DROP INDEX {name}")
    found = await examine(store)
    assert {finding.level for finding in found} == {"error"}
    assert {finding.what for finding in found} == {f"the index {n} is missing" for n in indexes}


async def test_another_journal_mode_is_an_error(store):
    await store.close()
    run(store, "PRAGMA journal_mode = DELETE")
    await store.open()
    (finding,) = await examine(store)
    assert (finding.level, finding.what) == ("error", "the journal mode is delete, not WAL")


async def test_a_log_that_grows_is_a_warning(store, monkeypatch):
    await store.take("main", "anna", [1], 5.0)
    size = store.path.with_name("app.db-wal").stat().st_size
    monkeypatch.setattr(checks, "MUCH_WAL_BYTES", size)
    (finding,) = await examine(store)
    assert finding.level == "warning"
    assert f"{size:,} bytes" in finding.what
    monkeypatch.setattr(checks, "MUCH_WAL_BYTES", size + 1)
    assert await examine(store) == []
