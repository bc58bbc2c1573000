"""The SQLite store keeps the contract of stores."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager

import aiosqlite
import pytest

from postroom.store import Capabilities
from postroom.stores.sqlite import SqliteStore
from postroom.testing.store import StoreContract
from postroom.testing.store_flaws import FlawContract


class TestSqliteStore(FlawContract, StoreContract):
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
        "created_at = 9223372036854775807": "created_at lies after the year 9999",
        "occurred_at = -9223372036854775807": "occurred_at lies before the year 1",
        "next_attempt_at = 9223372036854775807": "next_attempt_at lies after the year 9999",
        "schema_version = 'one'": "schema_version is str, not int",
    }
    odd_ids = {
        "id = CAST(x'ff62' AS TEXT)": "id is not UTF-8 text: \\xffb",
        "id = x'62'": "id is bytes, not str: b'b'",
        "id = x'ff62'": "id is bytes, not str",
    }
    waiting = ("next_attempt_at = 9223372036854775807", "next_attempt_at = 'soon'")

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
    def set_back(self, store):
        async def set_back(seconds):
            async with aiosqlite.connect(store.path) as connection:
                for table in ("postroom_lease", "postroom_member"):
                    step = round(seconds * 1_000_000)
                    await connection.execute(f"UPDATE {table} SET until = until + {step}")
                await connection.commit()

        return set_back
