"""`postroom migrate`."""

from __future__ import annotations

import json
import sqlite3

import pytest

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
    assert sql("--from", "0").splitlines()[:-1] == script.splitlines()[:-1]


def test_from_goes_with_sql_only(tmp_path):
    done = call("migrate", "--store", "sqlite:///app.db", "--from", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert "--from is only valid with `migrate sql`" in done.stderr
