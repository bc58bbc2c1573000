"""The PostgreSQL store keeps the contract of stores, on the oldest and the newest server we run."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from uuid import uuid4

import psycopg
import pytest

from postroom.store import Capabilities
from postroom.stores.postgres import PostgresStore
from postroom.testing.store import StoreContract


class PostgresContract(StoreContract):
    capabilities = Capabilities()

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


class TestPostgres15Store(PostgresContract):
    @pytest.fixture
    def server_url(self, postgres_url):
        return postgres_url


class TestPostgres18Store(PostgresContract):
    @pytest.fixture
    def server_url(self, postgres18_url):
        return postgres18_url
