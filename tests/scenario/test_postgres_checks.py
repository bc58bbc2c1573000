"""What the doctor finds on a PostgreSQL server, and that it finds nothing on a sound one."""

from __future__ import annotations

import psycopg
import pytest

from postroom.stores.postgres import checks
from postroom.stores.postgres.checks import examine
from tests.scenario.postgres_place import opened, own_schema

SOUND = checks._Server(
    replica=False, read_only=False, isolation="read committed", synchronous_commit="on",
    fsync=True, autovacuum=True, clock_us=1_000_000,
)  # fmt: skip


@pytest.fixture(params=["postgres_url", "postgres18_url"])
def url(request):
    with own_schema(request.getfixturevalue(request.param)) as url:
        yield url


@pytest.fixture
async def store(url):
    async with opened(url) as store:
        yield store


def run(url, *statements):
    with psycopg.connect(url, autocommit=True) as connection:
        for sql in statements:
            connection.execute(sql)


async def test_a_sound_server_gives_no_cause_for_concern(store):
    assert await examine(store) == []


async def test_a_sequence_that_gives_numbers_in_advance(url, store):
    run(url, "ALTER TABLE postroom_outbox ALTER COLUMN seq SET CACHE 20")
    (finding,) = await examine(store)
    assert finding.level == "error"
    assert finding.what == "the outbox's sequence has CACHE 20"
    assert "out of order" in finding.why
    assert "SET CACHE 1" in finding.fix


async def test_a_sequence_of_several_primaries(url, store):
    run(url, "ALTER TABLE postroom_outbox ALTER COLUMN seq SET INCREMENT BY 2")
    (finding,) = await examine(store)
    assert finding.what == "the outbox's sequence has INCREMENT 2"


async def test_missing_and_broken_indexes(url, store):
    run(
        url,
        "DROP INDEX postroom_outbox_ready",
        "UPDATE pg_index SET indisvalid = false "
        "WHERE indexrelid = CAST('postroom_outbox_waiting' AS regclass)",
    )
    found = await examine(store)
    assert [finding.what for finding in found] == [
        "the index postroom_outbox_ready is missing or invalid",
        "the index postroom_outbox_waiting is missing or invalid",
    ]
    assert {finding.level for finding in found} == {"error"}


async def test_every_index_of_the_outbox_is_looked_for(url, store):
    with psycopg.connect(url) as connection:
        names = connection.execute(
            "SELECT indexname FROM pg_indexes "
            "WHERE tablename = 'postroom_outbox' AND schemaname = current_schema()"
        ).fetchall()
    assert {name for (name,) in names} == {f"postroom_outbox_{name}" for name in checks._INDEXES}


async def test_autovacuum_that_is_off(url, store):
    run(url, "ALTER TABLE postroom_outbox SET (autovacuum_enabled = off)")
    (finding,) = await examine(store)
    assert finding.what == "autovacuum is off for the outbox table"
    run(url, "ALTER TABLE postroom_outbox RESET (autovacuum_enabled)")
    (finding,) = await checks.check_vacuum(store.database, SOUND._replace(autovacuum=False))
    assert finding.what == "autovacuum is off on this server"


async def test_a_transaction_that_has_been_open_for_long(url, store, monkeypatch):
    with psycopg.connect(url, application_name="report") as connection:
        pid = connection.info.backend_pid
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1")
        found = await store.database.rows("check_transactions")
        assert found  # it, or an older one of another test
        monkeypatch.setattr(checks, "_OLD_TRANSACTION_SECONDS", 0)
        (finding,) = await checks.check_transactions(store.database)
        assert finding.level == "warning"
        assert "has had a transaction open for" in finding.what
        assert f"pg_terminate_backend({found[0][0]})" in finding.fix
    assert pid not in [row[0] for row in await store.database.rows("check_transactions")]


async def test_a_transaction_that_was_prepared_and_forgotten(own_server):
    server = own_server("postgres")
    run(server.url, "ALTER SYSTEM SET max_prepared_transactions = 5")
    server.restart()
    async with opened(server.url) as store:
        run(server.url, "BEGIN; CREATE TABLE forgotten (); PREPARE TRANSACTION 'left-behind'")
        assert await checks.check_slots(store.database) == []  # it is young
        query = store.database._sql["check_slots"]
        store.database._sql["check_slots"] = query._replace(
            sql=query.sql.replace("interval '5 minutes'", "interval '0'")
        )
        try:
            (finding,) = await checks.check_slots(store.database)
        finally:
            store.database._sql["check_slots"] = query
        assert "prepared transaction 'left-behind'" in finding.what
        assert "ROLLBACK PREPARED 'left-behind'" in finding.fix


async def test_a_default_isolation_that_is_not_ours(url):
    async with opened(url) as store:
        assert await examine(store) == []  # the relay's connections ask for their own
    (finding,) = checks.check_isolation(SOUND._replace(isolation="serializable"))
    assert finding.what == "the default isolation level is serializable"


async def test_transactions_that_are_read_only(url, store):
    options = url.replace("options=", "options=-cdefault_transaction_read_only%3Don%20")
    async with opened(options, migrate=False) as reader:
        (finding,) = await examine(reader)
    assert (finding.level, finding.what) == ("error", "transactions are read-only here")


async def test_commits_that_do_not_wait_for_the_disk(url, store):
    options = url.replace("options=", "options=-csynchronous_commit%3Doff%20")
    async with opened(options, migrate=False) as quick:
        (finding,) = await examine(quick)
    assert finding.what == "synchronous_commit is off"


@pytest.mark.parametrize(
    ("clock", "apart"), [(3_500_000, "1.5"), (-4_000_000, "5.0"), (1_500_000, None)]
)
def test_clocks_that_are_apart(clock, apart):
    found = checks.check_clock(SOUND._replace(clock_us=clock), 1_000_000, 2_000_000)
    said = [f"the clocks of this host and the database differ by {apart} s"] if apart else []
    assert [finding.what for finding in found] == said


def test_what_cannot_be_asked_for_on_a_server_in_use():
    (replica,) = checks.check_writable(SOUND._replace(replica=True))
    assert replica.what == "the server is a read replica"
    (unsafe,) = checks.check_durability(SOUND._replace(fsync=False))
    assert (unsafe.level, unsafe.what) == ("error", "fsync is off")
    for check in (checks.check_writable, checks.check_durability, checks.check_isolation):
        assert check(SOUND) == []
