"""What the doctor finds in a MariaDB that is not as it should be."""

from __future__ import annotations

import pytest

from postroom.model.diagnostics import Finding
from postroom.stores.mysql import checks
from tests.contract.mysql_database import own_database


@pytest.fixture
def database(mariadb_url):
    with own_database(mariadb_url) as database:
        yield database


HEALTHY = {
    "auto_increment_increment": "1",
    "auto_increment_offset": "1",
    "read_only": "OFF",
    "innodb_read_only": "OFF",
    "max_allowed_packet": "16777216",
    "innodb_flush_log_at_trx_commit": "1",
    "log_bin": "ON",
    "binlog_format": "MIXED",
    "character_set_client": "utf8mb4",
    "character_set_connection": "utf8mb4",
    "character_set_results": "utf8mb4",
}


def whats(findings):
    return [(finding.level, finding.what) for finding in findings]


async def test_a_good_server_gives_no_reason_to_talk(database):
    async with database.store() as store:
        assert await checks.examine(store) == []


def test_variables_that_are_as_they_should_be():
    for check in (
        checks.check_numbers,
        checks.check_writable,
        checks.check_packet,
        checks.check_durability,
    ):
        assert list(check(HEALTHY)) == []


@pytest.mark.promise("G4", "G5")
def test_several_primaries():
    (found,) = checks.check_numbers(HEALTHY | {"auto_increment_increment": "3"})
    assert found.level == "error"
    assert "auto_increment_increment is 3" in found.what
    assert "same primary" in found.fix


@pytest.mark.parametrize("name", ["read_only", "super_read_only", "innodb_read_only"])
def test_a_replica(name):
    (found,) = checks.check_writable(HEALTHY | {name: "ON"})
    assert (found.level, found.fix) == ("error", "connect to the primary")
    assert name in found.what


def test_a_small_packet():
    (found,) = checks.check_packet(HEALTHY | {"max_allowed_packet": "1048576"})
    assert (found.level, found.what) == ("warning", "max_allowed_packet is 1,048,576 bytes")


@pytest.mark.parametrize(
    ("variables", "what"),
    [
        ({"innodb_flush_log_at_trx_commit": "2"}, "innodb_flush_log_at_trx_commit is 2"),
        ({"binlog_format": "STATEMENT"}, "binlog_format is STATEMENT"),
    ],
)
def test_what_is_not_durable_or_not_replicated(variables, what):
    (found,) = checks.check_durability(HEALTHY | variables)
    assert found.what == what


async def test_a_missing_index(database):
    async with database.store() as store:
        database.run("ALTER TABLE postroom_outbox DROP INDEX postroom_outbox_due")
        (found,) = await checks.examine(store)
        assert found.level == "error"
        assert found.what == (
            "postroom_outbox has no index postroom_outbox_due (due_lane,stream,next_attempt_at,seq)"
        )
        database.run(found.fix)
        assert await checks.examine(store) == []


async def test_the_indexes_of_the_migration_are_all_known(database):
    async with database.store():
        there = database.run(
            "SELECT table_name, index_name, GROUP_CONCAT(column_name ORDER BY seq_in_index) FROM "
            "information_schema.statistics WHERE table_schema = DATABASE() GROUP BY 1, 2"
        )
    known = {
        (f"postroom_{table}", name if name == "PRIMARY" else f"postroom_{name}", columns)
        for table, indexes in checks.INDEXES.items()
        for name, columns in indexes.items()
    }
    assert known == {row for row in there if row[0] != "postroom_meta"}


async def test_clocks_that_are_apart(database, monkeypatch):
    real = checks.host_microseconds
    monkeypatch.setattr(checks, "host_microseconds", lambda: real() + 90_000_000)
    async with database.store() as store:
        (found,) = await checks.examine(store)
    assert whats([found]) == [
        ("warning", "the clocks of this host and the database differ by 90.0 s")
    ]


async def test_an_old_transaction(database, monkeypatch):
    monkeypatch.setattr(checks, "_OLD_TRANSACTION_SECONDS", 0)
    async with database.store() as store:
        with database.connection() as (_, cursor):
            cursor.execute("SELECT CONNECTION_ID()")
            ((number,),) = cursor.fetchall()
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            cursor.execute("SELECT * FROM postroom_outbox")
            async with store.session() as session:
                rows = await session.rows("check_transactions")
                found = await checks.check_transactions(session)
            # The server is shared: another test's transaction may be older.
            assert rows
            assert 0 <= rows[0][1] < 3_600
            assert [f.level for f in found] == ["warning"]
            assert found[0].fix.startswith("end it, or: KILL")
            assert number


async def test_a_user_who_may_not_look_is_told_so(database):
    user = database.name[-12:]
    async with database.store():
        pass
    try:
        database.run(
            f"CREATE USER {user} IDENTIFIED BY 'pw'",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database.name}.* TO {user}",
        )
        url = database.url.replace("//root@", f"//{user}:pw@")
        async with database.store(url=url) as store:
            (found,) = await checks.examine(store)
    finally:
        database.run(f"DROP USER IF EXISTS {user}")
    assert whats([found]) == [("info", "cannot look for open transactions")]


async def test_a_server_that_locks_what_is_read(own_server):
    server = own_server("mariadb")
    with own_database(server.url) as database:
        database.run("SET GLOBAL TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        async with database.store() as store:
            (found,) = await checks.examine(store)
    assert isinstance(found, Finding)
    assert whats([found]) == [("warning", "the server's default isolation is SERIALIZABLE")]


def test_a_server_that_changes_text():
    assert list(checks.check_charset(HEALTHY, "utf8mb4")) == []
    (found,) = checks.check_charset(HEALTHY, "utf8mb3")
    assert (found.level, found.what) == (
        "warning", "the server uses utf8mb3 although the driver asks for utf8mb4 when it connects",
    )  # fmt: skip
    (found,) = checks.check_charset(HEALTHY | {"character_set_results": "latin1"}, "latin1")
    assert (found.level, found.what) == (
        "error",
        "the server ignores SET NAMES utf8mb4: character_set_results is latin1",
    )
