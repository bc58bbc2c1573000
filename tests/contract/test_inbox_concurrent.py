"""One message at several workers at once, through every adapter that `accept` has."""

import sqlite3
from contextlib import asynccontextmanager, closing, contextmanager

import aiosqlite
import asyncmy
import asyncpg
import django
import MySQLdb
import psycopg
import pymysql
import pytest
from django.conf import settings
from django.db import connections, transaction
from django.db.utils import ConnectionHandler
from pymongo import AsyncMongoClient, MongoClient
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from postroom.testing.inbox import InboxBench, InboxContract
from tests.contract import sqlite_file
from tests.contract.database import MariadbDatabase, PostgresDatabase
from tests.contract.mongo_database import emptied

if not settings.configured:
    settings.configure(DATABASES={}, USE_TZ=True)
    django.setup()

INSERT = "INSERT INTO orders (name) VALUES ('{}')"


# -- SQLite ---------------------------------------------------------------------------------------
class Sqlite3Bench(InboxBench):
    blocking = sync = True

    def __init__(self, path):
        self.path = sqlite_file.make(path)

    @asynccontextmanager
    async def connection(self):
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as conn:
            yield conn

    @asynccontextmanager
    async def transaction(self, connection):
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            yield connection

    async def order(self, tx, name):
        tx.execute(INSERT.format(name))

    async def orders(self):
        return [row["name"] for row in sqlite_file.rows(self.path, "orders")]


class AiosqliteBench(Sqlite3Bench):
    blocking = sync = False

    @asynccontextmanager
    async def connection(self):
        async with aiosqlite.connect(self.path, timeout=30, isolation_level=None) as conn:
            yield conn

    @asynccontextmanager
    async def transaction(self, connection):
        await connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            await connection.rollback()
            raise
        await connection.commit()

    async def order(self, tx, name):
        await tx.execute(INSERT.format(name))


@pytest.fixture(params=[Sqlite3Bench, AiosqliteBench])
def sqlite_bench(request, tmp_path):
    return request.param(tmp_path / "shop.db")


class TestSqlite(InboxContract):
    @pytest.fixture
    def inbox_bench(self, sqlite_bench):
        return sqlite_bench


# -- drivers of servers ---------------------------------------------------------------------------
class ServerBench(InboxBench):
    def __init__(self, database):
        self.database = database

    async def orders(self):
        return [row["name"] for row in self.database.rows("orders")]

    async def close(self):
        pass


class PsycopgBench(ServerBench):
    blocking = sync = True

    @asynccontextmanager
    async def connection(self):
        with psycopg.connect(self.database.url, autocommit=True) as conn:
            yield conn

    @asynccontextmanager
    async def transaction(self, connection):
        with connection.transaction():
            yield connection

    async def order(self, tx, name):
        tx.execute(INSERT.format(name))


class AsyncPsycopgBench(ServerBench):
    @asynccontextmanager
    async def connection(self):
        url = self.database.url
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
            yield conn

    @asynccontextmanager
    async def transaction(self, connection):
        async with connection.transaction():
            yield connection

    async def order(self, tx, name):
        await tx.execute(INSERT.format(name))


class SerializablePsycopgBench(AsyncPsycopgBench):
    """A repeat is told by 40001 instead of waiting for its turn."""

    @asynccontextmanager
    async def connection(self):
        async with super().connection() as conn:
            await conn.set_isolation_level(psycopg.IsolationLevel.SERIALIZABLE)
            yield conn


class AsyncpgBench(AsyncPsycopgBench):
    @asynccontextmanager
    async def connection(self):
        conn = await asyncpg.connect(self.database.url)
        try:
            yield conn
        finally:
            await conn.close()


class PymysqlBench(ServerBench):
    blocking = sync = True
    driver = pymysql

    @asynccontextmanager
    async def connection(self):
        given = {"charset": "utf8mb4", **self.database.arguments}
        with closing(self.driver.connect(**given)) as conn:
            yield conn

    @asynccontextmanager
    async def transaction(self, connection):
        try:
            yield connection
        except BaseException:
            connection.rollback()
            raise
        connection.commit()

    async def order(self, tx, name):
        with closing(tx.cursor()) as cursor:
            cursor.execute(INSERT.format(name))


class MysqlclientBench(PymysqlBench):
    driver = MySQLdb


class AsyncmyBench(ServerBench):
    @asynccontextmanager
    async def connection(self):
        conn = await asyncmy.connect(**self.database.arguments, charset="utf8mb4")
        try:
            yield conn
        finally:
            await conn.ensure_closed()

    @asynccontextmanager
    async def transaction(self, connection):
        await connection.begin()
        try:
            yield connection
        except BaseException:
            await connection.rollback()
            raise
        await connection.commit()

    async def order(self, tx, name):
        async with tx.cursor() as cursor:
            await cursor.execute(INSERT.format(name))


# -- SQLAlchemy and Django ------------------------------------------------------------------------
class SessionBench(ServerBench):
    blocking = sync = True

    def __init__(self, database, driver):
        super().__init__(database)
        self.engine = create_engine(database.sqlalchemy(driver), pool_size=8)

    @asynccontextmanager
    async def connection(self):
        with Session(self.engine) as session:
            yield session

    @asynccontextmanager
    async def transaction(self, connection):
        with connection.begin():
            yield connection

    async def order(self, tx, name):
        tx.execute(text(INSERT.format(name)))

    async def close(self):
        self.engine.dispose()


class AsyncSessionBench(ServerBench):
    def __init__(self, database, driver):
        super().__init__(database)
        self.engine = create_async_engine(database.sqlalchemy(driver), pool_size=8)

    @asynccontextmanager
    async def connection(self):
        async with AsyncSession(self.engine) as session:
            yield session

    @asynccontextmanager
    async def transaction(self, connection):
        async with connection.begin():
            yield connection

    async def order(self, tx, name):
        await tx.execute(text(INSERT.format(name)))

    async def close(self):
        await self.engine.dispose()


class DjangoBench(ServerBench):
    blocking = sync = True

    def __init__(self, database, engine):
        super().__init__(database)
        given = database.arguments
        self.alias = database.name
        made = {
            "ENGINE": f"django.db.backends.{engine}", "NAME": given["database"],
            "HOST": given["host"], "PORT": given["port"], "USER": given["user"],
            "PASSWORD": given["password"] or "",
        }  # fmt: skip
        handler = ConnectionHandler({"default": {}, self.alias: made})
        connections.settings[self.alias] = handler.settings[self.alias]
        connections.settings.setdefault("default", handler.settings[self.alias])

    @asynccontextmanager
    async def connection(self):
        conn = connections[self.alias]  # one for each thread
        try:
            yield conn
        finally:
            conn.close()

    @asynccontextmanager
    async def transaction(self, connection):
        with transaction.atomic(using=self.alias):
            yield connection

    async def order(self, tx, name):
        with tx.cursor() as cursor:
            cursor.execute(INSERT.format(name))


@pytest.fixture(autouse=True)
def in_a_loop(monkeypatch):
    """The contract is written for a loop; Django would rather not be asked there."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")


@contextmanager
def own(kind, url):
    database = kind(url)
    database.create()
    try:
        yield database
    finally:
        database.drop()


@pytest.fixture(scope="module")
def postgres(postgres_url):
    with own(PostgresDatabase, postgres_url) as database:
        yield database


@pytest.fixture(scope="module")
def mariadb(mariadb_url):
    with own(MariadbDatabase, mariadb_url) as database:
        yield database


POSTGRES = {
    "psycopg": PsycopgBench,
    "psycopg async": AsyncPsycopgBench,
    "psycopg serializable": SerializablePsycopgBench,
    "asyncpg": AsyncpgBench,
    "Session over psycopg": lambda database: SessionBench(database, "psycopg"),
    "AsyncSession over asyncpg": lambda database: AsyncSessionBench(database, "asyncpg"),
    "Django": lambda database: DjangoBench(database, "postgresql"),
}
MARIADB = {
    "PyMySQL": PymysqlBench,
    "mysqlclient": MysqlclientBench,
    "asyncmy": AsyncmyBench,
    "Session over PyMySQL": lambda database: SessionBench(database, "pymysql"),
    "Session over mysqlclient": lambda database: SessionBench(database, "mysqldb"),
    "AsyncSession over asyncmy": lambda database: AsyncSessionBench(database, "asyncmy"),
    "Django": lambda database: DjangoBench(database, "mysql"),
}


@pytest.mark.slow
class TestPostgres(InboxContract):
    @pytest.fixture(params=POSTGRES.values(), ids=POSTGRES)
    async def inbox_bench(self, request, postgres):
        postgres.clear()
        bench = request.param(postgres)
        yield bench
        await bench.close()


@pytest.mark.slow
class TestMariadb(InboxContract):
    @pytest.fixture(params=MARIADB.values(), ids=MARIADB)
    async def inbox_bench(self, request, mariadb):
        mariadb.clear()
        bench = request.param(mariadb)
        yield bench
        await bench.close()


# -- MongoDB --------------------------------------------------------------------------------------
class MongoBench(InboxBench):
    def __init__(self, url):
        self.url = url

    @asynccontextmanager
    async def connection(self):
        async with AsyncMongoClient(self.url) as client, client.start_session() as session:
            yield session

    @asynccontextmanager
    async def transaction(self, connection):
        async with await connection.start_transaction():
            yield connection

    async def order(self, tx, name):
        orders = tx.client.get_default_database()["orders"]
        await orders.insert_one({"name": name}, session=tx)

    async def orders(self):
        async with AsyncMongoClient(self.url) as client:
            found = await client.get_default_database()["orders"].find().to_list()
            return [order["name"] for order in found]


class SyncMongoBench(MongoBench):
    blocking = sync = True

    @asynccontextmanager
    async def connection(self):
        with MongoClient(self.url) as client, client.start_session() as session:
            yield session

    @asynccontextmanager
    async def transaction(self, connection):
        with connection.start_transaction():
            yield connection

    async def order(self, tx, name):
        orders = tx.client.get_default_database()["orders"]
        orders.insert_one({"name": name}, session=tx)


@pytest.mark.slow
class TestMongo(InboxContract):
    @pytest.fixture(params=[MongoBench, SyncMongoBench])
    async def inbox_bench(self, request, mongo_url):
        async with emptied(mongo_url) as url:
            yield request.param(url)
