"""The PostgreSQL store keeps the contract of stores, on the oldest and the newest server we run."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from uuid import uuid4

import psycopg
import pytest

from postroom.store import Capabilities
from postroom.stores.postgres import PostgresStore
from postroom.testing.store import StoreContract
from postroom.testing.store_flaws import FlawContract


class PostgresContract(FlawContract, StoreContract):
    capabilities = Capabilities()
    flaws = {
        "occurred_at = 'infinity'": "occurred_at lies after the year 9999",
        "created_at = 'infinity'": "created_at lies after the year 9999",
        "created_at = '-infinity'": "created_at lies before the year 1",
        "occurred_at = '294276-12-31 23:59:59'": "occurred_at lies after the year 9999",
        "occurred_at = '4713-01-01 BC'": "occurred_at lies before the year 1",
        "next_attempt_at = 'infinity'": "next_attempt_at lies after the year 9999",
        "headers = 'no json', size = size + 7": "headers are not a JSON object of text: 'no json'",
        "headers = '{\"retries\":1}', size = size + 13": "headers are not a JSON object of text",
        "causation_path = '[[\"a\"]]'": "causation_path is not a JSON list of text pairs",
    }
    waiting = (
        "next_attempt_at = 'infinity'",
        "next_attempt_at = '-infinity'",
        "next_attempt_at = '294276-12-31'",
    )

    @pytest.fixture
    async def another(self, server_url):
        schema = f"contract_{uuid4().hex[:12]}"
        url = f"{server_url}?options=-csearch_path%3D{schema}"
        server = await psycopg.AsyncConnection.connect(server_url, autocommit=True)
        await server.execute(f"CREATE SCHEMA {schema}")
        async with AsyncExitStack() as stack:

            async def another():
                store = PostgresStore.from_url(url)
                await store.migrate()
                await store.open()
                stack.push_async_callback(store.close)
                return store

            yield another
        async with server:
            await server.execute(f"DROP SCHEMA {schema} CASCADE")

    @pytest.fixture
    async def store(self, another):
        return await another()

    @pytest.fixture
    def write(self):
        @asynccontextmanager
        async def write(store):
            connect = psycopg.AsyncConnection.connect(store.options.conninfo)
            async with await connect as connection, connection.transaction():
                yield connection

        return write

    @pytest.fixture
    def spoil(self, store):
        async def spoil(event_id, flaw):
            connect = psycopg.AsyncConnection.connect(store.options.conninfo)
            async with await connect as connection:
                await connection.execute(
                    f"UPDATE postroom_outbox SET {flaw} WHERE id = %s", [event_id]
                )

        return spoil

    @pytest.fixture
    def set_back(self, store, write):
        async def set_back(seconds):
            async with write(store) as connection:
                for table in ("postroom_lease", "postroom_member"):
                    await connection.execute(
                        f"UPDATE {table} SET until = until + %s * interval '1 second'", [seconds]
                    )

        return set_back


class TestPostgres15Store(PostgresContract):
    @pytest.fixture
    def server_url(self, postgres_url):
        return postgres_url


class TestPostgres18Store(PostgresContract):
    @pytest.fixture
    def server_url(self, postgres18_url):
        return postgres18_url
