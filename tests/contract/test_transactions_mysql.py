"""The contract of the write side on PyMySQL, mysqlclient and asyncmy, against MariaDB."""

import asyncmy
import asyncmy.cursors
import MySQLdb
import MySQLdb.cursors
import pymysql
import pymysql.cursors
import pytest

from postroom.errors import (
    AutocommitError,
    DuplicateEventError,
    PayloadError,
    SchemaError,
    TransactionError,
)
from postroom.event import Event
from postroom.outbox import Outbox, SyncOutbox, to_row
from postroom.testing.transactions import Note, SavepointBench, SavepointContract, TransactionContract
from postroom.transactions import resolve, resolve_sync
from tests.contract.database import MariadbDatabase


@pytest.fixture(scope="module")
def own_database(mariadb_url):
    database = MariadbDatabase(mariadb_url)
    database.create()
    yield database
    database.drop()


@pytest.fixture
def database(own_database):
    own_database.clear()
    return own_database


class Bench(SavepointBench):
    """explicit: autocommit mode, and the caller sends BEGIN; else a transaction is always open."""

    sync = True
    instant = MariadbDatabase.instant
    driver = pymysql

    def __init__(self, database, explicit=False, **options):
        self.database, self.explicit, self.options = database, explicit, options
        self.opened = []

    def connect(self, **options):
        given = {"charset": "utf8mb4", **self.database.arguments, **self.options, **options}
        conn = self.driver.connect(**given)
        self.opened.append(conn)
        return conn

    async def close(self):
        for conn in self.opened:
            conn.close()

    async def begin(self):
        conn = self.connect(autocommit=self.explicit)
        if self.explicit:
            conn.begin()
        return conn

    async def commit(self, tx):
        tx.commit()

    async def rollback(self, tx):
        tx.rollback()

    async def execute(self, tx, sql):
        with tx.cursor() as cursor:
            cursor.execute(sql)

    async def autocommitting(self):
        return self.connect(autocommit=True)

    async def rows(self, table="postroom_outbox"):
        return self.database.rows(table)

    async def savepoint(self, tx):
        await self.execute(tx, "SAVEPOINT s")

    async def release(self, tx, savepoint):
        await self.execute(tx, "RELEASE SAVEPOINT s")

    async def rollback_to(self, tx, savepoint):
        await self.execute(tx, "ROLLBACK TO SAVEPOINT s")


class LoopBench(Bench):
    sync = False


class MysqlclientBench(Bench):
    driver = MySQLdb


class AsyncmyBench(Bench):
    sync = False

    async def connect(self, **options):
        conn = await asyncmy.connect(**{**self.database.arguments, **self.options, **options})
        self.opened.append(conn)
        return conn

    async def close(self):
        for conn in self.opened:
            await conn.ensure_closed()

    async def begin(self):
        conn = await self.connect(autocommit=self.explicit)
        if self.explicit:
            await conn.begin()
        return conn

    async def commit(self, tx):
        await tx.commit()

    async def rollback(self, tx):
        await tx.rollback()

    async def execute(self, tx, sql):
        async with tx.cursor() as cursor:
            await cursor.execute(sql)

    async def autocommitting(self):
        return await self.connect(autocommit=True)


FOUND_ROWS = pymysql.constants.CLIENT.FOUND_ROWS
KINDS = {
    "pymysql": (Bench, False, {}),
    "pymysql in a loop": (LoopBench, False, {}),
    "pymysql, own BEGIN": (Bench, True, {}),
    "pymysql, rows are dicts": (Bench, False, {"cursorclass": pymysql.cursors.DictCursor}),
    "pymysql, unbuffered": (Bench, False, {"cursorclass": pymysql.cursors.SSCursor}),
    "pymysql, found rows": (Bench, False, {"client_flag": FOUND_ROWS}),
    "pymysql, lenient": (Bench, False, {"sql_mode": "NO_BACKSLASH_ESCAPES"}),
    "mysqlclient": (MysqlclientBench, False, {}),
    "mysqlclient, own BEGIN": (MysqlclientBench, True, {}),
    "mysqlclient, rows are dicts": (
        MysqlclientBench,
        False,
        {"cursorclass": MySQLdb.cursors.SSDictCursor},
    ),
    "mysqlclient, found rows": (MysqlclientBench, False, {"client_flag": FOUND_ROWS}),
    "asyncmy": (AsyncmyBench, False, {}),
    "asyncmy, own BEGIN": (AsyncmyBench, True, {}),
    "asyncmy, rows are dicts": (AsyncmyBench, False, {"cursor_cls": asyncmy.cursors.DictCursor}),
    "asyncmy, found rows": (AsyncmyBench, False, {"client_flag": FOUND_ROWS}),
}


class TestMysql(TransactionContract, SavepointContract):
    @pytest.fixture(params=KINDS.values(), ids=KINDS)
    async def bench(self, request, database):
        kind, explicit, options = request.param
        bench = kind(database, explicit, **options)
        yield bench
        await bench.close()


@pytest.fixture(params=[Bench, MysqlclientBench, AsyncmyBench])
async def bench(request, database):
    bench = request.param(database)
    yield bench
    await bench.close()


@pytest.fixture
async def connect(bench):
    """Connect by the bench's driver, in both worlds."""

    async def connect(**options):
        found = bench.connect(**options)
        return found if bench.sync else await found

    return connect


def opened(bench, conn):
    """Open a transaction by the outbox of the bench's kind, in both worlds."""
    return _Opened(SyncOutbox().transaction(conn)) if bench.sync else Outbox().transaction(conn)


class _Opened:
    def __init__(self, inner):
        self.inner = inner

    async def __aenter__(self):
        return self.inner.__enter__()

    async def __aexit__(self, *error):
        return self.inner.__exit__(*error)


async def insert(bench, conn, rows, **options):
    if bench.sync:
        return resolve_sync(conn).insert(rows, **options)
    return await resolve(conn).insert(rows, **options)


def ids(database):
    return [row["id"] for row in database.rows()]


# -- outbox.transaction(conn) -------------------------------------------------------------------


@pytest.mark.promise("G1")
@pytest.mark.parametrize("autocommit", [False, True])
async def test_a_transaction_opened_by_the_outbox(bench, connect, database, autocommit):
    conn = await connect(autocommit=autocommit)
    async with opened(bench, conn) as tx:
        assert tx is conn
        await bench.order(conn, "A")
        await bench.add(conn, Event("t", id="e-1"))
        assert ids(database) == []
    with pytest.raises(ZeroDivisionError):
        async with opened(bench, conn):
            await bench.order(conn, "B")
            await bench.add(conn, Event("t", id="e-2"))
            1 / 0
    async with opened(bench, conn):
        await bench.add(conn, Event("t", id="e-3"))
    assert ids(database) == ["e-1", "e-3"]
    assert await bench.orders() == ["A"]
    assert conn.get_autocommit() is autocommit


@pytest.mark.promise("W1")
async def test_an_open_transaction_is_not_taken_over(bench, connect, database):
    """BEGIN would commit it."""
    conn = await connect(autocommit=True)
    begun = conn.begin()
    if begun is not None:
        await begun
    await bench.order(conn, "A")
    with pytest.raises(TransactionError, match="open on this connection already"):
        async with opened(bench, conn):
            pytest.fail("not reached")
    await bench.rollback(conn)
    assert await bench.orders() == []


@pytest.mark.promise("W4")
async def test_an_event_that_was_committed_on_its_own_is_told(bench, connect, database):
    """The transaction is over, and the reply to the error that ended it does not say so."""
    if isinstance(bench, MysqlclientBench):
        return  # it asks before every statement
    conn = await connect(autocommit=True)
    with pytest.raises(TransactionError, match="start over"):
        async with opened(bench, conn):
            await bench.order(conn, "A")
            await deadlock(bench, conn, await connect())
            await bench.add(conn, Event("t", id="e-1"))
