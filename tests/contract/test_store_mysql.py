"""The MySQL store keeps the contract of stores, on MariaDB."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pymysql
import pytest

from postroom.store import Capabilities
from postroom.testing.store import StoreContract
from postroom.testing.store.strays import StrayContract
from postroom.testing.store.tools import Hand, event
from postroom.testing.store.unreadable_rows import FlawContract
from tests.contract.mysql_database import own_database

MEMBER = "REPLACE INTO postroom_member (stream, owner, name, healthy, until, length) VALUES"
LEASE = "UPDATE postroom_lease SET {} WHERE stream = 'main' AND lane = {{lane}}"
BLOCK = "INSERT INTO postroom_block (stream, key_hash, lane, barrier, since, `key`) VALUES"
HASH = "UNHEX(REPEAT('{}', 16))"
NOTE = (
    "INSERT INTO postroom_inbox (consumer, id, type, state, received_at, processed_at)"
    " VALUES ('payments', {}, 't', 'done', {}, {})"
)
SOON = "UTC_TIMESTAMP(6) + INTERVAL 1 SECOND"  # of a member that is alive


class TestMysqlStore(FlawContract, StrayContract, StoreContract):
    capabilities = Capabilities(notify=False, adopts=True)
    odd_id = "id = x'6fff'"
    flaws = {
        "type = x'61ff62'": "type is not UTF-8 text: a\\xffb",
        "topic = x'ff'": "topic is not UTF-8 text",
        "correlation_id = x'ff'": "correlation_id is not UTF-8 text",
        "headers = 'no json', size = size + 7": "headers are not a JSON object of text: 'no json'",
        "headers = '{\"retries\":1}', size = size + 13": "headers are not a JSON object of text",
        "causation_path = '[[\"a\"]]'": "causation_path is not a JSON list of text pairs",
        "occurred_at = '0000-00-00'": "occurred_at is NULL",
        "created_at = '0000-00-00'": "created_at is NULL",
    }
    waiting = ("next_attempt_at = '0000-00-00'", "next_attempt_at = '9999-12-31'")
    odd_ids = {"id = x'ff62'": "id is not UTF-8 text: \\xffb"}
    odd_members = (
        f"{MEMBER} ('main', x'6dff', x'ff', 77, {SOON}, 60000000)",
        f"{MEMBER} ('main', x'6dfe', x'1b5b', -1, '0000-00-00', 60000000)",
        f"{MEMBER} ('main', '', '', 0, '9999-12-31 23:59:59.999999', 0)",
        f"{MEMBER} ('main', 'm1', '', 1, '1000-01-01', 4000000000000000)",
    )
    odd_leases = (
        LEASE.format("token = 4611686018427387903, owner = NULL"),
        LEASE.format(f"owner = x'ff', until = {SOON}, length = 60000000"),
        LEASE.format("owner = '', until = '0000-00-00'"),
        LEASE.format("owner = 'm', until = '9999-12-31 23:59:59.999999', length = 0"),
        LEASE.format("replayed_at = '0000-00-00', settles = 4611686018427387903"),
        LEASE.format("replayed_at = '9999-12-31 23:59:59.999999'"),
        "DELETE FROM postroom_lease WHERE stream = 'main' AND lane = {lane}",
    )
    odd_blocks = (
        f"{BLOCK} ('main', {HASH.format('07')}, 7, -9223372036854775808, '0000-00-00', x'ff')",
        f"{BLOCK} ('main', {HASH.format('08')}, 8, 9223372036854775807, '9999-12-31', NULL)",
    )
    odd_done = {
        "settled_at = '0000-00-00'": False,
        "settled_at = '1000-01-01'": True,
        "settled_at = '5000-01-01'": False,
        "id = x'ff'": True,
        "stream = x'ff'": True,
        "stream = ''": False,  # nobody serves a stream without a name
    }
    odd_streams = ("stream = x'ff'", "stream = x'6dff'", "stream = x'1b5b33316d'", "stream = ''")
    odd_notes = (
        NOTE.format("x'ff'", "'0000-00-00'", "'1000-01-01'"),
        NOTE.format("x'ff62'", "UTC_TIMESTAMP(6)", "'1000-01-01'"),
        NOTE.format("''", "UTC_TIMESTAMP(6)", "'1000-01-01'"),
        NOTE.format("'odd'", "UTC_TIMESTAMP(6)", "'0000-00-00'"),
    )
    refused = (
        f"{MEMBER} ('main', 'm', '', 1, {SOON}, 9223372036854775807)",
        f"{MEMBER} ('main', 'm', '', 1, {SOON}, -1)",
        LEASE.format("length = 9223372036854775807"),
        LEASE.format("length = -1"),
        LEASE.format("token = 9223372036854775807"),
        LEASE.format("token = -1"),
        LEASE.format("settles = 9223372036854775807"),
        f"{BLOCK} ('main', x'07', 7, 1, UTC_TIMESTAMP(6), '')",
        f"{BLOCK} ('main', {HASH.format('07')}, 8, 1, UTC_TIMESTAMP(6), '')",
    )
    refusals = (pymysql.err.OperationalError,)

    @pytest.fixture
    def database(self, mariadb_url):
        with own_database(mariadb_url) as database:
            yield database

    @pytest.fixture
    async def another(self, database):
        async with AsyncExitStack() as stack:

            async def another():
                return await stack.enter_async_context(database.store())

            yield another

    @pytest.fixture
    async def store(self, another):
        return await another()

    @pytest.fixture
    def write(self, database):
        return lambda store: database.writing()

    @pytest.fixture
    def spoil(self, database):
        async def spoil(event_id, flaw):
            database.run(
                "SET sql_mode = ''",  # zero dates, as servers with an old configuration allow
                f"UPDATE postroom_outbox SET {flaw} WHERE id = '{event_id}'",
            )

        return spoil

    @pytest.fixture
    def meddle(self, database):
        async def meddle(statement):
            database.run("SET sql_mode = ''", statement)

        return meddle

    @pytest.fixture
    async def try_to(self, database, store, add):
        await add(event("e", "k"))
        await Hand(store).take()

        async def try_to(statement):
            database.run(statement)

        return try_to

    @pytest.fixture
    def set_back(self, database):
        async def set_back(seconds):
            for table in ("postroom_lease", "postroom_member", "postroom_operation"):
                step = round(seconds * 1_000_000)
                database.run(f"UPDATE {table} SET until = until + INTERVAL {step} MICROSECOND")

        return set_back
