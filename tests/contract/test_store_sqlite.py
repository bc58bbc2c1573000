"""The SQLite store keeps the contract of stores."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager

import aiosqlite
import pytest

from postroom.store import Capabilities
from postroom.stores.sqlite import SqliteStore
from postroom.testing.store import StoreContract


class TestSqliteStore(StoreContract):
    capabilities = Capabilities(concurrent_writers=False, server_clock=False)

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
