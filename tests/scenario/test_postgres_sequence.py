"""A sequence that is behind its table: nothing is taken for a duplicate that is not one (X-H1)."""

from __future__ import annotations

from uuid import uuid4

import asyncpg
import psycopg
import pytest

from postroom.errors import DuplicateEventError, NumberTakenError
from postroom.event import Event
from postroom.outbox import Outbox, SyncOutbox
from postroom.stores.postgres import PostgresStore
from postroom.stores.postgres.checks import examine
from tests.scenario.postgres_place import opened, own_schema

SEQUENCE = "pg_get_serial_sequence('postroom_outbox', 'seq')"


@pytest.fixture
async def url(postgres_url):
    with own_schema(postgres_url) as url:
        await PostgresStore(url).migrate()
        with psycopg.connect(url) as connection:
            SyncOutbox().add_many(connection, [Event("t", id=f"old{n}") for n in range(30)])
        yield url


def set_back(url, number=5):
    with psycopg.connect(url) as connection:
        connection.execute(f"SELECT setval({SEQUENCE}, {number})")


def count(url):
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT count(*) FROM postroom_outbox").fetchone()[0]


@pytest.mark.promise("G1", "W5")
@pytest.mark.parametrize("ordering", ["keyed", "strict"])
def test_a_number_that_is_taken_is_not_a_duplicate(url, ordering):
    outbox = SyncOutbox(ordering=ordering)
    set_back(url)
    with psycopg.connect(url) as connection:
        with pytest.raises(NumberTakenError, match="setval") as caught:
            outbox.add(connection, Event("t", id="new", key="k"))
        assert caught.value.ids == ("new",)
        with pytest.raises(NumberTakenError) as caught:
            outbox.add_many(connection, [Event("t", id=f"n{n}", key="k") for n in range(3)])
        assert caught.value.ids == ("n0", "n1", "n2")
        connection.rollback()
        with pytest.raises(DuplicateEventError, match="treat it as done") as duplicate:
            outbox.add(connection, Event("t", id="old3", key="k"))
        assert duplicate.value.certain
    assert count(url) == 30


@pytest.mark.promise("G1", "W5")
async def test_it_is_told_through_asyncpg_too(url):
    set_back(url)
    connection = await asyncpg.connect(url)
    try:
        with pytest.raises(NumberTakenError):
            async with connection.transaction():
                await Outbox().add(connection, Event("t", id="new"))
    finally:
        await connection.close()


@pytest.mark.promise("W5")
def test_a_writer_that_may_not_look_is_told_both_possibilities(url, postgres_url):
    set_back(url)
    role, schema = f"r_{uuid4().hex[:12]}", url.rpartition("%3D")[2]
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN")
        admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        admin.execute(f"GRANT INSERT ON {schema}.postroom_outbox TO {role}")
        try:
            with psycopg.connect(url.replace("postgres@", f"{role}@")) as connection:
                with pytest.raises(DuplicateEventError, match="or the outbox sequence") as caught:
                    SyncOutbox().add(connection, Event("t", id="new"))
                assert not caught.value.certain
                connection.execute("SELECT 1")  # the transaction is still usable
        finally:
            admin.execute(f"DROP OWNED BY {role}")
            admin.execute(f"DROP ROLE {role}")


async def test_open_and_the_doctor_say_how_to_repair_it(url, caplog):
    async with opened(url) as store:
        assert [f for f in await examine(store) if "behind its highest" in f.what] == []
    assert "behind its highest" not in caplog.text
    set_back(url, 7)
    async with opened(url) as store:
        (finding,) = [f for f in await examine(store) if "behind its highest" in f.what]
    assert "is at 7, behind its highest event, 30" in finding.what
    assert "is at 7, behind its highest event, 30" in caplog.text
    with psycopg.connect(url) as connection:
        connection.execute(finding.fix)
        SyncOutbox().add(connection, Event("t", id="new"))
    assert count(url) == 31
