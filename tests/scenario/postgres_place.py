"""The scenes' place on a PostgreSQL server: a schema of its own, found by the search_path."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from uuid import uuid4

import psycopg

from postroom.stores.postgres import PostgresNotifier, PostgresStore
from tests.scenario.place import Place


@contextmanager
def own_schema(server_url, name=None):
    """Give the URL of a schema that nobody else uses; it is gone afterwards."""
    schema = name or f"t_{uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as server:
        server.execute(f"CREATE SCHEMA {schema}")
        try:
            yield f"{server_url}?options=-csearch_path%3D{schema}"
        finally:
            server.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


@contextmanager
def own_database(server_url):
    """Give the URL of an empty database; it is gone afterwards."""
    name = f"d_{uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
        try:
            yield f"{server_url.rpartition('/')[0]}/{name}"
        finally:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@asynccontextmanager
async def opened(url, *, migrate=True):
    """Give a store that is open."""
    store = PostgresStore(url)
    if migrate:
        await store.migrate()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def writing(url):
    """Open a transaction of a writer: committed at the end."""
    async with await psycopg.AsyncConnection.connect(url) as connection, connection.transaction():
        yield connection


class PostgresPlace(Place):
    def __init__(self, url):
        super().__init__()
        self.url = url
        self.store = PostgresStore(url)

    async def open(self):
        await self.store.migrate()
        await self.store.open()
        with psycopg.connect(self.url) as connection:
            connection.execute(
                "CREATE TABLE effects (n bigint GENERATED ALWAYS AS IDENTITY, name text)"
            )

    async def close(self):
        await super().close()
        await self.store.close()

    def another(self):
        return PostgresStore(self.url)

    async def write(self, *events, outbox=None):
        outbox = outbox or self.outbox
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            async with outbox.transaction(connection):
                await outbox.add_many(connection, events)

    async def write_quietly(self, *events):
        """Commit without a kick in this process; a notifier tells the others."""
        async with writing(self.url) as connection:
            await self.outbox.add_many(connection, events)
        notifier = PostgresNotifier(self.url)
        notifier.notify()
        notifier.close()

    async def roll_back(self, *events):
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            await self.outbox.add_many(connection, events)
            await connection.rollback()

    async def effect(self, tx, name):
        await tx.execute("INSERT INTO effects (name) VALUES (%s)", (name,))

    async def effects(self):
        with psycopg.connect(self.url) as connection:
            return [name for (name,) in connection.execute("SELECT name FROM effects ORDER BY n")]
