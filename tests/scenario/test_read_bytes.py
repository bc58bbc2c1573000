"""A read receives what it returns: events beyond its byte limit stay where they are (R4)."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from postroom.errors import StoreError
from postroom.event import Event
from postroom.outbox import Outbox
from postroom.record import Record
from postroom.stores.mysql import MysqlStore
from postroom.stores.postgres import PostgresStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing.store.tools import Hand
from tests.contract.mysql_database import own_database
from tests.scenario.postgres_place import own_schema
from tests.servers.proxy import Proxy

EVENT_BYTES = 100_000
SHARE = {"rows": 200, "per_lane": 200, "size": 850_000}
WANTED = 8
pytestmark = [pytest.mark.promise("R4", "D1")]


@pytest.fixture(params=["postgres", "mysql"])
def server(request):
    """What makes a store, and the URL of a database of its own."""
    if request.param == "postgres":
        with own_schema(request.getfixturevalue("postgres_url")) as url:
            yield PostgresStore, url
    else:
        with own_database(request.getfixturevalue("mariadb_url")) as database:
            yield MysqlStore, database.url


async def fill(store):
    await store.migrate()
    await store.open()
    async with store.transaction() as tx:
        large = [Event("t", "x" * EVENT_BYTES, key=f"k{n % 5}") for n in range(60)]
        await Outbox().add_many(tx, large)


async def test_the_server_sends_what_a_read_returns(server):  # T-D.3
    make, url = server
    with Proxy(urlsplit(url).port) as proxy:
        store = make(proxy.url_for(url))
        try:
            await fill(store)
            hand = Hand(store)
            assert len(await hand.read(**SHARE)) == WANTED
            proxy.cut_after((WANTED + 2) * EVENT_BYTES)
            assert len(await hand.read(**SHARE)) == WANTED
            with pytest.raises(StoreError):  # the proxy does count
                await hand.read(**{**SHARE, "size": 10**9})
        finally:
            await store.close()


async def test_sqlite_fetches_one_row_more_than_a_read_returns(tmp_path):  # T-D.3
    fetched = []

    def count(_, row):
        fetched.append(len(row))
        return row

    store = SqliteStore(tmp_path / "shop.db")
    try:
        await fill(store)
        await store._read.call(lambda db: setattr(db.connection, "row_factory", count))
        assert len(await Hand(store).read(**SHARE)) == WANTED
        assert fetched.count(len(Record._fields)) == WANTED + 1
    finally:
        await store.close()
