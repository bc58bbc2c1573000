"""The tables of the SQLite store: made once, by whoever comes first, and checked before use."""

from __future__ import annotations

import inspect
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from postroom.errors import SchemaError, StoreError, StoreRetryableError
from postroom.event import Event
from postroom.lookup import Filter
from postroom.outbox import Outbox
from postroom.store import ReadRequest
from postroom.stores.sql_files import NEWEST
from postroom.stores.sqlite import (
    SqliteStore,
)
from postroom.stores.sqlite.statements import load_migrations, load_queries

MIGRATE = """
import asyncio, sys
from pathlib import Path
from postroom.stores.sqlite import (
    SqliteStore,
    audit,
    blocks,
    leases,
    operations,
    prune,
    read,
    settle,
    stage,
)

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.readline()
    version = await store.migrate()
    await store.open()
    print(version, await store.identity())
    await store.close()

asyncio.run(main())
"""


def schema_version(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        return db.execute(
            "SELECT value FROM postroom_meta WHERE name = 'schema_version'"
        ).fetchone()


@pytest.mark.req("S4.1")
def test_ten_processes_migrate_at_once(tmp_path):
    path = tmp_path / "app.db"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MIGRATE, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": ":".join(sys.path)},
        )
        for _ in range(10)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 10, answers
    assert len({out for out, _ in answers}) == 1
    assert answers[0][0].split()[0] == "2"


@pytest.mark.req("S4.1")
async def test_a_newer_schema_is_refused(tmp_path):
    store = SqliteStore(tmp_path / "app.db")
    await store.migrate()
    with closing(sqlite3.connect(store.path, isolation_level=None)) as db:
        db.execute("UPDATE postroom_meta SET value = '99' WHERE name = 'schema_version'")
    for call in (store.migrate, store.open):
        with pytest.raises(
            SchemaError, match=r"version 99, created by a newer postroom; .* knows 2"
        ):
            await call()
    assert schema_version(store.path) == ("99",)


async def test_missing_tables_say_what_to_run(tmp_path):
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("CREATE TABLE orders (id)")
    with pytest.raises(
        SchemaError, match=f"missing; run: postroom migrate --store sqlite:///{path}"
    ):
        await SqliteStore(path).open()


async def test_open_makes_no_file(tmp_path):
    path = tmp_path / "app.db"
    with pytest.raises(SchemaError, match="run: postroom migrate"):
        await SqliteStore(path).open()
    assert not path.exists()


async def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(StoreError, match=f"the folder {tmp_path}/none does not exist"):
        await SqliteStore(tmp_path / "none" / "app.db").migrate()


async def test_what_is_no_database_is_refused(tmp_path):
    path = tmp_path / "app.db"
    path.write_bytes(b"this is no database" * 100)
    for call in (SqliteStore(path).migrate, SqliteStore(path).open):
        with pytest.raises(StoreError, match="not a database"):
            await call()


async def test_a_database_in_utf_16_is_refused(tmp_path):
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA encoding = 'UTF-16le'")
        db.execute("CREATE TABLE orders (id)")
    with pytest.raises(
        SchemaError, match="UTF-16le, which does not preserve payloads byte for byte"
    ):
        await SqliteStore(path).migrate()


async def test_a_failed_migration_leaves_nothing(tmp_path):
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("CREATE TABLE postroom_inbox (mine)")  # in the way of a later statement
    with pytest.raises(StoreError, match="postroom_inbox already exists"):
        await SqliteStore(path).migrate()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("postroom_inbox",)]


async def test_migrating_waits_for_a_writer(tmp_path, monkeypatch):
    monkeypatch.setattr("postroom.stores.sqlite.store._MIGRATE_SECONDS", 0.05)
    path = tmp_path / "app.db"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreRetryableError):
        await SqliteStore(path).migrate()
    writer.close()
    assert await SqliteStore(path).migrate() == 2


async def test_a_prefix_gives_an_outbox_of_its_own(tmp_path):
    path = tmp_path / "app.db"
    stores = [SqliteStore(path), SqliteStore(path, prefix="shop_")]
    for store in stores:
        await store.migrate()
        await store.open()
    async with stores[1].transaction() as tx:
        await Outbox(prefix="shop_").add(tx, Event("t", id="mine"))
    assert [len(await store.find(Filter())) for store in stores] == [0, 1]
    assert len(await stores[1].read(ReadRequest("main", range(64), 10, 10, 1_000))) == 1
    assert await stores[0].identity() != await stores[1].identity()
    for store in stores:
        await store.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        names = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    assert {"postroom_outbox", "shop_outbox", "shop_outbox_ready", "shop_meta"} <= names


def test_a_script_is_cut_into_whole_statements():
    steps = load_migrations("postroom_")
    assert [step.version for step in steps] == [1, 2]
    statements = [statement for step in steps for statement in step.statements]
    assert all(sqlite3.complete_statement(statement) for statement in statements)
    assert sum("CREATE TABLE" in statement for statement in statements) == 10


def test_each_query_is_one_statement_and_is_used():
    folder = Path(inspect.getfile(SqliteStore)).parent
    code = "".join(file.read_text(encoding="utf-8") for file in folder.glob("*.py"))
    for name, sql in load_queries("postroom_").items():
        of_columns = re.sub(r"_by_\w+$", "_by_{by}", name)  # one statement for each of them
        of_columns = of_columns.removesuffix(NEWEST)  # one statement for each direction
        assert f'"{name}"' in code or f'"{of_columns}"' in code, f"{name}.sql is not used"
        assert sqlite3.complete_statement(sql + ";")
        assert ";" not in "".join(line for line in sql.splitlines() if not line.startswith("--"))
