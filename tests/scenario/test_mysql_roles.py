"""A writer of MariaDB with the rights that are written down, and what it cannot forge (X-H2)."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import uuid4

import asyncmy
import pymysql
import pytest

from postroom.lookup import Filter
from postroom.outbox import Outbox
from postroom.stores.mysql import checks
from postroom.testing.store.tools import event, names
from tests.contract.mysql_database import own_database

pytestmark = pytest.mark.server
PAGE = Path(__file__).parents[2] / "docs/operations/deploy.md"
(COLUMNS,) = re.findall(r"GRANT INSERT \(([^)]*)\)\s+ON shop.postroom_outbox", PAGE.read_text())
ROW = {
    "id": "'forged'", "lane": "27", "key_hash": "UNHEX(REPEAT('5B', 16))", "type": "'t'",
    "topic": "'t'", "payload": "'null'", "content_type": "'application/json'", "size": "4",
    "occurred_at": "UTC_TIMESTAMP(6)", "created_at": "UTC_TIMESTAMP(6)",
}  # fmt: skip


@pytest.fixture
def database(mariadb_url):
    with own_database(mariadb_url) as database:
        yield database


@pytest.fixture
async def store(database):
    async with database.store() as store:
        yield store


@pytest.fixture
def writer(database, store):
    """The arguments to connect with, as a user with the documented rights."""
    name = f"w_{uuid4().hex[:12]}"
    database.run(
        f"CREATE USER {name} IDENTIFIED BY 'secret'",
        f"GRANT INSERT ({COLUMNS}) ON {database.name}.postroom_outbox TO {name}",
    )
    yield {**database.arguments, "user": name, "password": "secret"}
    database.run(f"DROP USER {name}")


@pytest.fixture
def strict_writer(database, writer):
    rights = "SELECT, INSERT, UPDATE"
    database.run(f"GRANT {rights} ON {database.name}.postroom_counter TO {writer['user']}")
    return writer


@pytest.fixture
def consumer(database, writer):
    rights = "SELECT, INSERT, UPDATE, DELETE"
    database.run(f"GRANT {rights} ON {database.name}.postroom_inbox TO {writer['user']}")
    return writer


def run(arguments, statement):
    with pymysql.connect(**arguments, autocommit=True) as connection:
        with connection.cursor() as cursor:
            cursor.execute(statement)


async def add(arguments, *events):
    connection = await asyncmy.connect(**arguments, charset="utf8mb4")
    try:
        await connection.begin()
        await Outbox(ordering="strict").add_many(connection, events)
        await connection.commit()
    finally:
        await connection.ensure_closed()


async def test_strict_writers_and_consumers_reach_nothing_else(strict_writer, consumer, store):
    for statement in (
        "DELETE FROM postroom_counter",
        "UPDATE postroom_outbox SET state = 'done'",
        "SELECT * FROM postroom_outbox",
        "UPDATE postroom_lease SET token = 1",
        "INSERT INTO postroom_member VALUES ('main', 'm', '', 1, UTC_TIMESTAMP(), 1)",
        "SELECT * FROM postroom_audit",
        "TRUNCATE postroom_inbox",
        "DROP TABLE postroom_counter",
    ):
        with pytest.raises(pymysql.err.OperationalError, match="denied"):
            run(strict_writer, statement)


@pytest.mark.promise("W9", "F1")
async def test_a_counter_that_a_strict_writer_has_set_costs_its_key_alone(strict_writer, store):
    await add(strict_writer, event("one", "k"))
    for forged in ("-1", "9223372036854775807"):
        with pytest.raises(pymysql.err.OperationalError, match="postroom_counter_last"):
            run(strict_writer, f"UPDATE postroom_counter SET last = {forged}")
    run(strict_writer, "UPDATE postroom_counter SET last = 4611686018427387904")
    with pytest.raises(asyncmy.errors.OperationalError, match="postroom_counter_last"):
        await add(strict_writer, event("two", "k"))
    await add(strict_writer, event("three", "other"))
    assert names(await store.find(Filter())) == ["one", "three"]


def insert(arguments, row):
    with pymysql.connect(**arguments, autocommit=True) as connection:
        with connection.cursor() as cursor:
            names, values = ", ".join(row), ", ".join(row.values())
            cursor.execute(f"INSERT INTO postroom_outbox ({names}) VALUES ({values})")


@pytest.mark.promise("W5")
async def test_a_writer_adds_with_these_rights(writer, store):
    connection = await asyncmy.connect(**writer, charset="utf8mb4")
    try:
        await connection.begin()
        await Outbox().add(connection, event("one", "k"))
        await Outbox().add_many(connection, [event("two", "k"), event("three", "k")])
        await connection.commit()
    finally:
        await connection.ensure_closed()
    assert names(await store.find(Filter())) == ["one", "two", "three"]


@pytest.mark.parametrize(
    "forged",
    [
        {"seq": "9223372036854775807"},
        {"attempts": "2147483647"},
        {"state": "'done'", "stage": "'over'", "settled_at": "UTC_TIMESTAMP(6)"},
        {"last_error": "'it was the relay'"},
        {"lease_owner": "'anna'"},
    ],
    ids=lambda forged: next(iter(forged)),
)
async def test_a_writer_can_forge_nothing_that_is_the_relays(writer, store, forged):
    with pytest.raises(pymysql.err.OperationalError, match="denied"):
        insert(writer, ROW | forged)
    insert(writer, ROW)
    assert names(await store.find(Filter())) == ["forged"]


@pytest.mark.parametrize(
    "forged", [{"attempts": "1000000"}, {"size": "0"}, {"lane": "2"}, {"attempts": "-1"}], ids=str
)
async def test_nobody_can_store_what_cannot_be(database, store, forged):
    with pytest.raises(pymysql.err.Error, match="CONSTRAINT|Out of range"):
        insert(database.arguments, ROW | forged)


@pytest.mark.parametrize("number", [-5, 2**62])
async def test_the_doctor_names_a_number_that_nobody_has_given(database, store, number):
    assert await checks.examine(store) == []
    insert(database.arguments, ROW | {"seq": str(number)})
    (finding,) = await checks.examine(store)
    assert (finding.level, finding.what) == ("error", f"an event has the number {number}")
