"""The PostgreSQL store keeps the contract of stores, on the oldest and the newest server we run."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from uuid import uuid4

import psycopg
import pytest

from postroom.store import Capabilities
from postroom.stores.postgres import PostgresStore
from postroom.testing.store import StoreContract
from postroom.testing.store.strays import StrayContract
from postroom.testing.store.tools import Hand, event
from postroom.testing.store.unreadable_rows import FlawContract

MEMBER = (
    "INSERT INTO postroom_member (stream, owner, name, healthy, until, length) VALUES {}"
    " ON CONFLICT DO NOTHING"
)
LEASE = "UPDATE postroom_lease SET {} WHERE stream = 'main' AND lane = {{lane}}"
BLOCK = "INSERT INTO postroom_block (stream, key_hash, lane, barrier, since, key) VALUES "
HASH = "decode(repeat('{}', 16), 'hex')"
NOTE = (
    "INSERT INTO postroom_inbox (consumer, id, type, state, received_at, processed_at)"
    " VALUES ('payments', {}, 't', 'done', {}, {})"
)
SOON = "now() + interval '1 second'"  # of a member that is alive
EVER = "interval '178000000 years'"


class PostgresContract(FlawContract, StoreContract):
    capabilities = Capabilities(adopts=True)
    flaws = {
        "occurred_at = 'infinity'": "occurred_at is after the year 9999",
        "created_at = 'infinity'": "created_at is after the year 9999",
        "created_at = '-infinity'": "created_at is before the year 1",
        "occurred_at = '294276-12-31 23:59:59'": "occurred_at is after the year 9999",
        "occurred_at = '4713-01-01 BC'": "occurred_at is before the year 1",
        "next_attempt_at = 'infinity'": "next_attempt_at is after the year 9999",
        "headers = 'no json', size = size + 7": "headers are not a JSON object of text: 'no json'",
        "headers = '{\"retries\":1}', size = size + 13": "headers are not a JSON object of text",
        "causation_path = '[[\"a\"]]'": "causation_path is not a JSON list of text pairs",
    }
    waiting = (
        "next_attempt_at = 'infinity'",
        "next_attempt_at = '-infinity'",
        "next_attempt_at = '294276-12-31'",
    )
    odd_members = (
        MEMBER.format(f"('main', '', repeat('m', 1000000), true, {SOON}, '1 minute')"),
        MEMBER.format("('main', 'm1', E'\\e[31m', true, 'infinity', '1 minute')"),
        MEMBER.format("('main', 'm2', '', false, '-infinity', '0')"),
        MEMBER.format("('main', 'm3', '', true, '294276-12-31', '200 years')"),
        MEMBER.format("('main', 'm4', '', true, '4713-01-01 BC', '1 minute')"),
    )
    odd_leases = (
        LEASE.format("token = 4611686018427387903, owner = NULL"),
        LEASE.format("owner = '', until = 'infinity', length = '0'"),
        LEASE.format("owner = 'm', until = '294276-12-31', length = '200 years'"),
        LEASE.format("replayed_at = 'infinity', replayed = -1"),
        LEASE.format("replayed_at = '4713-01-01 BC', replayed = 9223372036854775807"),
        "DELETE FROM postroom_lease WHERE stream = 'main' AND lane = {lane}",
    )
    odd_blocks = (
        f"{BLOCK} ('main', {HASH.format('07')}, 7, -9223372036854775808, 'infinity', '')",
        f"{BLOCK} ('main', {HASH.format('08')}, 8, 9223372036854775807, '-infinity', NULL)",
    )
    odd_done = {
        "settled_at = 'infinity'": False,
        "settled_at = '-infinity'": True,
        "settled_at = '294276-12-31'": False,
        "stream = ''": True,
    }
    odd_streams = ("stream = ''", "stream = repeat('x', 2000)", "stream = E'\\e[31m'")
    odd_notes = (
        NOTE.format("''", "'infinity'", "'-infinity'"),
        NOTE.format("repeat('x', 2000)", "now()", "'4713-01-01 BC'"),
        NOTE.format("'odd'", "now()", "'infinity'"),
    )
    refused = (
        MEMBER.format(f"('main', 'm', '', true, now(), {EVER})"),
        MEMBER.format(f"('main', 'm', '', true, now(), -{EVER})"),
        LEASE.format(f"length = {EVER}"),
        LEASE.format("length = '-1 second'"),
        LEASE.format("token = 9223372036854775807"),
        LEASE.format("token = -1"),
        f"{BLOCK} ('main', '', 0, 1, now(), '')",
        f"{BLOCK} ('main', decode('07', 'hex'), 7, 1, now(), '')",
        f"{BLOCK} ('main', {HASH.format('07')}, 8, 1, now(), '')",
    )
    refusals = (psycopg.errors.CheckViolation, psycopg.errors.ArraySubscriptError)

    @pytest.fixture
    async def another(self, server_url):
        schema = f"contract_{uuid4().hex[:12]}"
        url = f"{server_url}?options=-csearch_path%3D{schema}"
        server = await psycopg.AsyncConnection.connect(server_url, autocommit=True)
        await server.execute(f"CREATE SCHEMA {schema}")
        async with AsyncExitStack() as stack:

            async def another():
                store = PostgresStore(url)
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
            connect = psycopg.AsyncConnection.connect(store.settings.conninfo)
            async with await connect as connection, connection.transaction():
                yield connection

        return write

    @pytest.fixture
    def spoil(self, store):
        async def spoil(event_id, flaw):
            connect = psycopg.AsyncConnection.connect(store.settings.conninfo)
            async with await connect as connection:
                await connection.execute(
                    f"UPDATE postroom_outbox SET {flaw} WHERE id = %s", [event_id]
                )

        return spoil

    @pytest.fixture
    def meddle(self, store):
        async def meddle(statement):
            connect = psycopg.AsyncConnection.connect(store.settings.conninfo)
            async with await connect as connection:
                await connection.execute(statement)

        return meddle

    @pytest.fixture
    async def try_to(self, store, add, meddle):
        await add(event("e", "k"))
        await Hand(store).take()
        return meddle

    @pytest.fixture
    def set_back(self, store, write):
        async def set_back(seconds):
            async with write(store) as connection:
                for table in ("postroom_lease", "postroom_member", "postroom_operation"):
                    await connection.execute(
                        f"UPDATE {table} SET until = until + %s * interval '1 second'", [seconds]
                    )

        return set_back


class TestPostgres15Store(PostgresContract, StrayContract):
    @pytest.fixture
    def server_url(self, postgres_url):
        return postgres_url


class TestPostgres18Store(PostgresContract):
    @pytest.fixture
    def server_url(self, postgres18_url):
        return postgres18_url
