"""T-A1, on PostgreSQL: no setting of a role, a database or the environment changes what is sent."""

from __future__ import annotations

import asyncpg
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.errors import TransactionError
from postroom.event import Event
from postroom.outbox import Outbox, SyncOutbox
from postroom.stores.postgres import PostgresStore
from tests.scenario.place import QUICK, until
from tests.scenario.postgres_place import own_schema


@pytest.fixture
def url(postgres_url):
    with own_schema(postgres_url) as url:
        yield url


async def test_the_relay_reads_utf8_whatever_it_is_told(url, monkeypatch):
    await PostgresStore(url).migrate()
    event = Event("заказ", {"n": "🦊"}, id="🦊", key="ключ", headers={"имя": "🐻"})
    with psycopg.connect(url) as conn:
        SyncOutbox().add(conn, event)
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    broker = MemoryBroker()
    async with Relay(f"{url}&client_encoding=LATIN2", broker, **QUICK) as relay:
        await until(lambda: relay.counts.done == 1)
        async with relay.store.transaction() as tx:  # what handlers get
            await Outbox().add(tx, Event("t", id="🐼"))
        with relay.store.sync_transaction() as tx:
            SyncOutbox().add(tx, Event("t", id="🐻"))
        await until(lambda: relay.counts.done == 3)
    record = broker.messages[0].record
    assert (record.id, record.type, record.key) == ("🦊", "заказ", "ключ")
    assert record.headers == {"имя": "🐻"}
    assert {m.record.id for m in broker.messages} == {"🦊", "🐼", "🐻"}


async def test_writers_with_another_client_encoding_are_refused(url):
    await PostgresStore(url).migrate()
    told = "client_encoding is LATIN1.*client_encoding='utf8'"
    with psycopg.connect(url, client_encoding="latin1") as conn:
        with pytest.raises(TransactionError, match=told):
            SyncOutbox().add(conn, Event("t", id="ä"))
        conn.execute("SET client_encoding = 'UTF8'")  # the server tells of the change by itself
        SyncOutbox().add(conn, Event("t", id="🦊"))
    engine = create_engine(
        "postgresql+psycopg://", poolclass=NullPool,
        creator=lambda: psycopg.connect(url, client_encoding="latin1"),
    )  # fmt: skip
    with engine.begin() as sa, pytest.raises(TransactionError, match=told):
        SyncOutbox().add(sa, Event("t", id="ä"))
    given = conninfo_to_dict(url)
    conn = await asyncpg.connect(
        host=given["host"], port=given["port"], user=given["user"], database=given["dbname"]
    )
    async with conn.transaction():
        await conn.execute("SET client_encoding = 'LATIN1'")
        with pytest.raises(TransactionError, match=told):
            await Outbox().add(conn, Event("t", id="ä"))
    await conn.close()
