"""The SQLite store keeps the contract of stores."""

from __future__ import annotations

import sqlite3
from contextlib import AsyncExitStack, asynccontextmanager

import aiosqlite
import pytest

from postroom.store import Capabilities
from postroom.stores.sqlite import SqliteStore
from postroom.testing.store import StoreContract
from postroom.testing.store.strays import StrayContract
from postroom.testing.store.tools import Hand, event
from postroom.testing.store.unreadable_rows import FlawContract

NOT_TEXT = "CAST(x'6dff' AS TEXT)"
MEMBER = (
    "INSERT OR REPLACE INTO postroom_member (stream, owner, name, healthy, until, length) VALUES"
)
LEASE = "UPDATE OR IGNORE postroom_lease SET {} WHERE stream = 'main' AND lane = {{lane}}"
BLOCK = "INSERT INTO postroom_block (stream, key_hash, lane, barrier, since, aggregate_type, key) VALUES"
HASH = "x'07070707070707070707070707070707'"
NOTE = (
    "INSERT INTO postroom_inbox (consumer, id, type, state, received_at, processed_at)"
    " VALUES ('payments', {}, 't', 'done', {}, {})"
)
SOON = "(strftime('%s') + 2) * 1000000"  # of a member that is alive


class TestSqliteStore(FlawContract, StrayContract, StoreContract):
    capabilities = Capabilities(concurrent_writers=False, server_clock=False)
    odd_id = "id = CAST(x'6fff' AS TEXT)"
    flaws = {  # SQLite keeps any type of value in any column, and checks no text
        "type = CAST(x'61ff62' AS TEXT)": "type is not UTF-8 text: a\\xffb",
        "topic = x'61'": "topic is bytes, not str",
        "key = CAST(x'ff' AS TEXT)": "key is not UTF-8 text",
        "last_error = CAST(x'ff' AS TEXT)": "last_error is not UTF-8 text",
        "payload = NULL, payload_bytes = 'text', size = 4": "payload is str, not bytes",
        "headers = 'no json', size = size + 7": "headers are not a JSON object of text: 'no json'",
        "headers = '{\"retries\":1}', size = size + 13": "headers are not a JSON object of text",
        "headers = x'7b7d', size = size + 2": "headers is bytes, not str",
        "causation_path = '[[\"a\"]]'": "causation_path is not a JSON list of text pairs",
        "occurred_at = 'yesterday'": "occurred_at is str, not int: 'yesterday'",
        "created_at = 1.5": "created_at is float, not int: 1.5",
        "created_at = 9223372036854775807": "created_at is after the year 9999",
        "occurred_at = -9223372036854775807": "occurred_at is before the year 1",
        "next_attempt_at = 9223372036854775807": "next_attempt_at is after the year 9999",
        "schema_version = 'one'": "schema_version is str, not int",
    }
    odd_ids = {
        "id = CAST(x'ff62' AS TEXT)": "id is not UTF-8 text: \\xffb",
        "id = x'62'": "id is bytes, not str: b'b'",
        "id = x'ff62'": "id is bytes, not str",
    }
    waiting = ("next_attempt_at = 9223372036854775807", "next_attempt_at = 'soon'")
    odd_members = (
        f"{MEMBER} ('main', x'6d', 'm', 1, {SOON}, 60000000)",
        f"{MEMBER} ('main', {NOT_TEXT}, {NOT_TEXT}, 1, {SOON}, 60000000)",
        f"{MEMBER} ('main', 'm1', x'ff', 'perhaps', {SOON}, 60000000)",
        f"{MEMBER} ('main', 'm2', 'm', x'00', 'soon', 'long')",
        f"{MEMBER} ('main', 'm3', 'm', 1, 9223372036854775807, 60000000)",
        f"{MEMBER} ('main', 'm4', 'm', 1, 1.5, -1)",
    )
    odd_leases = (
        "INSERT OR IGNORE INTO postroom_lease (stream, lane) VALUES ('main', {lane}.5)",
        "INSERT OR IGNORE INTO postroom_lease (stream, lane) VALUES ('main', '{lane}!')",
        "INSERT OR IGNORE INTO postroom_lease (stream, lane) VALUES ('main', 1{lane})",
        LEASE.format("token = 'x', owner = 'x'"),
        LEASE.format(f"owner = {NOT_TEXT}, until = {SOON}, length = 60000000"),
        LEASE.format("owner = x'6d', until = 'soon'"),
        LEASE.format("owner = 'm', until = 9223372036854775807, length = 9223372036854775807"),
        LEASE.format("replayed_at = 'soon', length = 'long'"),
    )
    odd_blocks = (
        f"{BLOCK} ('main', {HASH}, 7, -9223372036854775808, 'soon', {NOT_TEXT}, x'ff')",
        f"{BLOCK} ('main', {HASH.replace('07', '08')}, 8, 9223372036854775807, 1.5, 7, NULL)",
        f"{BLOCK} ('main', {HASH.replace('07', '09')}, 10, 1, 0, '', '')",
    )
    odd_done = {
        "settled_at = 'long ago'": False,
        "settled_at = 1.5": True,
        "id = x'ff'": True,
        "stream = x'ff'": True,
    }
    odd_streams = (f"stream = {NOT_TEXT}", "stream = x'ff'", "stream = 7")
    odd_notes = (
        NOTE.format("x'ff'", "0", "0"),
        NOTE.format(NOT_TEXT, "0", "0"),
        NOTE.format("7", "'x'", "0.5"),
        NOTE.format("'odd'", "0", "'long ago'"),
    )
    refused = (
        "INSERT INTO postroom_lease (stream, lane) VALUES ('main', {lane}.5)",
        f"{MEMBER} ('main', x'6d', 'm', 1, 0, 0)",
        f"{MEMBER} ('main', 'm', 'm', 1, 'soon', 0)",
        f"{MEMBER} ('main', 'm', 'm', 1, 0, -1)",
        f"{MEMBER} ('main', 'm', 'm', 1, 9223372036854775807, 9223372036854775807)",
        f"{BLOCK} ('main', x'07', 7, 1, 0, '', '')",
        f"{BLOCK} ('main', {HASH}, 7.5, 1, 0, '', '')",
        f"{BLOCK} ('main', {HASH}, 7, 'x', 0, '', '')",
        f"{BLOCK} ('main', {NOT_TEXT}, 7, 1, 0, '', '')",
        "UPDATE postroom_lease SET token = 9223372036854775807",
        "UPDATE postroom_lease SET length = 9223372036854775807",
        "UPDATE postroom_lease SET length = -1, token = -1",
        "INSERT INTO postroom_counter (topic, key_hash, last) VALUES ('t', x'07', -1)",
        "INSERT INTO postroom_counter (topic, key_hash, last) VALUES ('t', x'07', 1.5)",
        "INSERT INTO postroom_counter (topic, key_hash, last) VALUES ('t', x'07', 1 << 62 | 1)",
        "UPDATE postroom_outbox SET lane = (lane + 1) % 64",
    )
    refusals = (sqlite3.IntegrityError,)

    @pytest.fixture
    async def another(self, tmp_path):
        async with AsyncExitStack() as stack:

            async def another():
                store = SqliteStore(tmp_path / "post room?#%41.db")
                await store.migrate()
                await store.open()
                stack.push_async_callback(store.close)
                return store

            yield another

    @pytest.fixture
    async def store(self, another):
        return await another()

    @pytest.fixture
    def write(self):
        @asynccontextmanager
        async def write(store):
            async with aiosqlite.connect(store.path, isolation_level=None) as connection:
                await connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                except BaseException:
                    await connection.rollback()
                    raise
                await connection.commit()

        return write

    @pytest.fixture
    def spoil(self, store):
        async def spoil(event_id, flaw):
            async with aiosqlite.connect(store.path) as connection:
                await connection.execute("PRAGMA ignore_check_constraints = ON")
                await connection.execute(
                    f"UPDATE postroom_outbox SET {flaw} WHERE id = ?", (event_id,)
                )
                await connection.commit()

        return spoil

    @pytest.fixture
    def meddle(self, store):
        async def meddle(statement):
            async with aiosqlite.connect(store.path) as connection:
                await connection.execute("PRAGMA ignore_check_constraints = ON")
                await connection.execute(statement)
                await connection.commit()

        return meddle

    @pytest.fixture
    async def try_to(self, store, add):
        await add(event("e", "k"))
        await Hand(store).take()

        async def try_to(statement):
            async with aiosqlite.connect(store.path) as connection:
                await connection.execute(statement)
                await connection.commit()

        return try_to

    @pytest.fixture
    def set_back(self, store):
        async def set_back(seconds):
            async with aiosqlite.connect(store.path) as connection:
                for table in ("postroom_lease", "postroom_member", "postroom_operation"):
                    step = round(seconds * 1_000_000)
                    await connection.execute(f"UPDATE {table} SET until = until + {step}")
                await connection.commit()

        return set_back
