"""The programs of pages that need a server run, and print what the page says.

On a page, the blocks marked `python run postgres` are one program, which finds an empty database in
DATABASE_URL; so are those marked `python run mariadb`.
"""

import inspect
import os
import re

import psycopg
import pytest

from postroom.stores.mysql import MysqlStore
from postroom.stores.mysql.settings import MysqlSettings
from postroom.stores.postgres import PostgresStore
from postroom.stores.postgres.settings import PostgresSettings
from tests.contract.mysql_database import MysqlDatabase
from tests.scenario.postgres_place import own_database
from tests.unit.test_docs import PAGES, ROOT, blocks, name_of, python, rows_of


def pages(server):
    return [page for page in PAGES if blocks(page, f"python run {server}")]


def run(page, server, url, folder, monkeypatch):
    program = folder / "program.py"
    program.write_text("\n\n".join(blocks(page, f"python run {server}")))
    monkeypatch.setitem(os.environ, "DATABASE_URL", url)
    done = python([program.name], folder)
    assert done.stderr == ""
    assert done.returncode == 0
    assert done.stdout == "".join(blocks(page, "text output"))


@pytest.mark.parametrize("page", pages("postgres"), ids=name_of)
def test_the_program_of_a_page_runs_on_postgres(page, postgres_url, tmp_path, monkeypatch):
    with own_database(postgres_url) as url:
        run(page, "postgres", url, tmp_path, monkeypatch)


@pytest.mark.parametrize("page", pages("mariadb"), ids=name_of)
def test_the_program_of_a_page_runs_on_mariadb(page, mariadb_url, tmp_path, monkeypatch):
    database = MysqlDatabase(mariadb_url).create()
    try:
        run(page, "mariadb", database.url, tmp_path, monkeypatch)
    finally:
        database.drop()


def test_the_pages_are_there():
    assert {name_of(page) for page in [*pages("postgres"), *pages("mariadb")]} >= {
        "docs/how-to/asyncpg.md",
        "docs/how-to/mysql.md",
        "docs/how-to/postgresql.md",
    }


def test_the_options_of_postgres_have_their_defaults():
    fields = inspect.signature(PostgresSettings).parameters
    expected = {n: f"`{p.default!r}`" for n, p in fields.items() if n != "conninfo"}
    listed = rows_of(ROOT / "docs/how-to/postgresql.md", "Options")
    assert {row[0].strip("`"): row[1] for row in listed} == expected


def test_the_options_of_mysql_have_their_defaults():
    fields = inspect.signature(MysqlSettings).parameters
    expected = {n: f"`{p.default!r}`" for n, p in fields.items()}
    listed = rows_of(ROOT / "docs/how-to/mysql.md", "Options")
    assert {row[0].strip("`"): row[1] for row in listed} == expected


def documented():
    """Return {table: columns} of the page on tables."""
    text = (ROOT / "docs/reference/tables.md").read_text()
    return {
        table: [row[0].strip("`") for row in rows_of(ROOT / "docs/reference/tables.md", table)]
        for table in re.findall(r"^## (postroom_\w+)$", text, re.MULTILINE)
    }


COLUMNS = (
    "SELECT table_name, column_name FROM information_schema.columns "
    "WHERE table_name LIKE 'postroom%' AND table_schema = {} ORDER BY table_name, ordinal_position"
)


def columns(rows):
    found = {}
    for table, column in rows:
        found.setdefault(table, []).append(column)
    return found


async def test_the_columns_on_postgres_are_those_of_the_page(postgres_url):
    with own_database(postgres_url) as url:
        await PostgresStore(url).migrate()
        with psycopg.connect(url) as conn:
            found = columns(conn.execute(COLUMNS.format("current_schema()")).fetchall())
    found["postroom_lease"].remove("replayed")  # named below the table
    assert found == documented()


async def test_the_columns_on_mariadb_are_those_of_the_page(mariadb_url):
    database = MysqlDatabase(mariadb_url).create()
    try:
        await MysqlStore(database.url).migrate()
        found = columns(database.run(COLUMNS.format("database()")))
    finally:
        database.drop()
    found.pop("postroom_outbox_readable")
    found["postroom_lease"].remove("settles")
    expected = documented()
    more = rows_of(ROOT / "docs/reference/tables.md", "On MySQL")
    expected["postroom_outbox"] += [row[0].strip("`") for row in more]
    for there in (found, expected):  # columns of later versions come after the computed ones
        there["postroom_outbox"].sort()
    assert found == expected
