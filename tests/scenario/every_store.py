"""A store of each kind, on a server of this run, with tables of its own."""

from __future__ import annotations

from contextlib import asynccontextmanager

from postroom.stores.mongo import MongoStore
from postroom.stores.mysql import MysqlStore
from postroom.stores.postgres import PostgresStore
from postroom.stores.sqlite import SqliteStore
from tests.contract.mongo_database import emptied
from tests.contract.mysql_database import own_database
from tests.scenario.postgres_place import own_schema


@asynccontextmanager
async def sqlite(request):
    path = request.getfixturevalue("tmp_path") / "shop.db"
    yield lambda: SqliteStore(path)


@asynccontextmanager
async def postgres(request):
    with own_schema(request.getfixturevalue("postgres_url")) as url:
        yield lambda: PostgresStore(url)


@asynccontextmanager
async def mysql(request):
    with own_database(request.getfixturevalue("mariadb_url")) as database:
        yield lambda: MysqlStore(database.url)


@asynccontextmanager
async def mongo(request):
    async with emptied(request.getfixturevalue("mongo_url")) as url:
        yield lambda: MongoStore(url)


STORES = {"sqlite": sqlite, "postgres": postgres, "mysql": mysql, "mongo": mongo}


@asynccontextmanager
async def open_store(request):
    """Yield what makes stores of the kind that the fixture's parameter names, and an open one."""
    async with STORES[request.param](request) as make:
        store = make()
        await store.migrate()
        await store.open()
        try:
            yield make, store
        finally:
            await store.close()
