"""T-C2: a store that several relays open at the same time is opened once, and closed whole."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.stores.mysql import MysqlStore, store
from postroom.stores.postgres import PostgresStore
from postroom.stores.postgres import store as postgres_store
from tests.contract.mysql_database import own_database
from tests.scenario.place import QUICK, until
from tests.scenario.postgres_place import own_schema


async def start_together(shared):
    """Three relays of three streams on one store, started and stopped at the same time."""
    relays = [Relay(shared, MemoryBroker(), **QUICK, stream=name) for name in ("a", "b", "c")]
    await asyncio.gather(*(relay.start() for relay in relays))
    await asyncio.gather(*(relay.stop() for relay in relays))


@pytest.fixture
def pools(monkeypatch):
    """How many pools of connections were made, by the module that makes them."""
    made = []
    for module, name in ((store, "Pool"), (postgres_store, "Database")):
        kind = getattr(module, name)

        def counted(*args, kind=kind):
            made.append(kind)
            return kind(*args)

        monkeypatch.setattr(module, name, counted)
    return made


async def test_a_mysql_store_is_opened_once(mariadb_url, pools):
    with own_database(mariadb_url) as database:
        shared = MysqlStore(database.url)
        await shared.migrate()
        await start_together(shared)
        assert len(pools) == 1
        there = f"SELECT COUNT(*) FROM information_schema.processlist WHERE db = '{database.name}'"
        await until(lambda: database.run(there) == [(1,)])  # the one that asks
        await asyncio.gather(*(shared.open() for _ in range(3)))  # in another life
        assert len(pools) == 2
        await shared.close()


async def test_a_postgres_store_is_opened_once(postgres_url, pools):
    with own_schema(postgres_url) as url:
        shared = PostgresStore(f"{url}&application_name=opened_at_once")
        await shared.migrate()
        await start_together(shared)
        assert len(pools) == 1
        there = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'opened_at_once%'"
        )
        with psycopg.connect(postgres_url, autocommit=True) as conn:
            await until(lambda: conn.execute(there).fetchone() == (0,))
            await asyncio.gather(*(shared.open() for _ in range(3)))
            assert len(pools) == 2
            await shared.close()
