"""`postroom migrate`."""

from __future__ import annotations

import json
import re
import sqlite3
from uuid import UUID

import pytest

from postroom.stores.migration_scripts import cut
from tests.cli.command import call


@pytest.mark.req("S4.1")
def test_it_makes_the_tables_and_says_the_version(tmp_path):
    for _ in range(2):  # the second time nothing is left to do
        done = call("migrate", "--store", "sqlite:///app.db", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "sqlite:///app.db is at version 2\n"
    with sqlite3.connect(tmp_path / "app.db") as conn:
        tables = {name for (name,) in conn.execute("SELECT name FROM sqlite_master")}
    conn.close()
    assert {"postroom_outbox", "postroom_inbox", "postroom_lease"} <= tables


def test_json(tmp_path):
    done = call("migrate", "--store", "sqlite:///app.db", "--json", cwd=tmp_path)
    assert json.loads(done.stdout) == {"store": "sqlite:///app.db", "version": 2}


def test_a_folder_that_is_not_there(tmp_path):
    done = call("migrate", "--store", "sqlite:///no/app.db", cwd=tmp_path)
    assert done.returncode == 3
    assert (
        done.stderr == f"postroom: the folder {tmp_path}/no does not exist; create it for app.db\n"
    )


def test_newer_tables_are_refused(tmp_path):
    call("migrate", "--store", "sqlite:///app.db", cwd=tmp_path)
    conn = sqlite3.connect(tmp_path / "app.db")
    with conn:
        conn.execute("UPDATE postroom_meta SET value = '999' WHERE name = 'schema_version'")
    conn.close()
    for verb in ("migrate", "status"):
        done = call(verb, "--store", "sqlite:///app.db", cwd=tmp_path)
        assert done.returncode == 3
        assert "999" in done.stderr
        assert "Upgrade postroom" in done.stderr


def test_status_says_what_is_there_and_what_to_do(tmp_path):
    def status(*options):
        return call("migrate", "status", "--store", "sqlite:///app.db", *options, cwd=tmp_path)

    before = status()
    assert before.returncode == 1
    assert before.stdout == (
        "sqlite:///app.db has no postroom tables; the newest is 2: "
        "postroom migrate --store sqlite:///app.db\n"
    )
    assert not (tmp_path / "app.db").exists()
    call("migrate", "up", "--store", "sqlite:///app.db", cwd=tmp_path)
    assert (status().returncode, status().stdout) == (
        0,
        "sqlite:///app.db is at version 2, the newest\n",
    )
    assert json.loads(status("--json").stdout) == {
        "store": "sqlite:///app.db",
        "current": 2,
        "newest": 2,
        "up_to_date": True,
    }


def test_sql_prints_what_would_run(tmp_path):
    def sql(*options):
        return call("migrate", "sql", "--store", "sqlite:///app.db", *options, cwd=tmp_path).stdout

    script = sql()
    assert not (tmp_path / "app.db").exists()
    conn = sqlite3.connect(tmp_path / "app.db")
    conn.execute("PRAGMA journal_mode = WAL")
    conn.executescript(script)
    conn.close()
    assert call("status", "--store", "sqlite:///app.db", cwd=tmp_path).returncode == 0
    assert sql() == "-- nothing to do: the tables are up to date\n"
    assert sql("--from", "0") == script
    assert script.startswith("PRAGMA journal_mode = WAL;\nBEGIN;\n")
    assert script.endswith("\nCOMMIT;\n")


def test_from_goes_with_sql_only(tmp_path):
    done = call("migrate", "--store", "sqlite:///app.db", "--from", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert "--from is only valid with `migrate sql`" in done.stderr
    done = call("migrate", "--store", "sqlite:///app.db", "--no-transaction", cwd=tmp_path)
    assert done.returncode == 2
    assert "--no-transaction is only valid with `migrate sql`" in done.stderr


@pytest.mark.parametrize(
    "store", ["sqlite:///app.db", "postgresql://h/shop", "mysql://h/shop", "mongodb://h/shop"]
)
def test_the_sql_can_be_kept_under_version_control(tmp_path, store):  # U12
    def sql(*options):
        done = call("migrate", "sql", "--from", "0", "--store", store, *options, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert sql() == sql()
    bare = sql("--no-transaction")
    assert not {"BEGIN;", "COMMIT;", "PRAGMA journal_mode = WAL;"} & set(bare.splitlines())
    assert not re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-", bare)


def test_the_sql_runs_inside_of_a_transaction_and_makes_an_id(tmp_path):  # U12
    bare = call(
        "migrate", "sql", "--no-transaction", "--store", "sqlite:///app.db", cwd=tmp_path
    ).stdout
    ids = set()
    for name in ("app.db", "other.db"):
        conn = sqlite3.connect(tmp_path / name, isolation_level=None)
        conn.execute("BEGIN")
        for statement in cut(bare):
            conn.execute(statement)
        assert conn.in_transaction
        conn.execute("COMMIT")
        ids |= set(conn.execute("SELECT value FROM postroom_meta WHERE name = 'outbox_id'"))
        conn.close()
    assert len(ids) == 2
    assert all(UUID(found).version == 4 and str(UUID(found)) == found for (found,) in ids)
    assert call("status", "--store", "sqlite:///app.db", cwd=tmp_path).returncode == 0
