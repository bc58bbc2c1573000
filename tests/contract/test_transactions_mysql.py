"""The contract of the write side on PyMySQL, mysqlclient and asyncmy, against MariaDB."""

import asyncio
from contextlib import suppress

import asyncmy
import asyncmy.cursors
import MySQLdb
import MySQLdb.cursors
import pymysql
import pymysql.cursors
import pytest

from postroom.broker import Verdict
from postroom.errors import (
    AutocommitError,
    DuplicateEventError,
    PayloadError,
    SchemaError,
    TransactionError,
)
from postroom.event import Event
from postroom.outbox import Outbox, SyncOutbox, to_row
from postroom.testing.misbehaviour import MisbehaviourContract, end_of
from postroom.testing.transactions import (
    Note,
    SavepointBench,
    SavepointContract,
    TransactionContract,
)
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
        self.after_end = "autocommit" if explicit else "transaction"
        self.opened = []

    def connect(self, **options):
        given = {"charset": "utf8mb4", **self.database.arguments, **self.options, **options}
        if self.driver is pymysql:
            given["ssl_disabled"] = True  # reading the system's certificates takes 0.1 s
        conn = self.driver.connect(**given)
        self.opened.append(conn)
        return conn

    async def close(self):
        for conn in self.opened:
            with suppress(Exception):  # closed already
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
            with suppress(Exception):
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


class TestMisbehaviour(MisbehaviourContract):
    @pytest.fixture(params=["pymysql", "pymysql, own BEGIN", "mysqlclient", "asyncmy"])
    async def bench(self, request, database):
        kind, explicit, options = KINDS[request.param]
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


async def begun(connect):
    """A connection in autocommit mode, with the caller's own BEGIN."""
    conn = await connect(autocommit=True)
    result = conn.begin()
    if result is not None:
        await result
    return conn


@pytest.mark.promise("W1")
async def test_an_open_transaction_is_not_taken_over(bench, connect, database):
    """BEGIN would commit it."""
    conn = await begun(connect)
    await bench.order(conn, "A")
    with pytest.raises(TransactionError, match="already open on this connection"):
        async with opened(bench, conn):
            pytest.fail("not reached")
    await bench.rollback(conn)
    assert await bench.orders() == []


async def test_a_transaction_that_ended_inside_its_block_is_told(bench, connect):
    if isinstance(bench, MysqlclientBench):
        return  # it does not know
    conn = await connect(autocommit=True)
    with pytest.raises(TransactionError, match="ended before its block"):
        async with opened(bench, conn):
            await bench.order(conn, "A")
            await bench.rollback(conn)


# -- deadlocks (W4) -----------------------------------------------------------------------------


async def deadlock(bench, conn, database):
    """Make this transaction the victim of a deadlock: the other one has written more."""
    database.run("INSERT INTO orders (n, name) VALUES (1000001, 'x'), (1000002, 'y')")
    with pymysql.connect(**database.arguments) as other, other.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO orders (name) VALUES (%s)", [(f"o-{n}",) for n in range(50)]
        )
        cursor.execute("UPDATE orders SET name = 'yy' WHERE n = 1000002")
        await bench.execute(conn, "UPDATE orders SET name = 'xx' WHERE n = 1000001")
        update = "UPDATE orders SET name = 'xxx' WHERE n = 1000001"
        waiting = asyncio.get_running_loop().run_in_executor(None, cursor.execute, update)
        with pytest.raises(Exception, match="1213"):
            await bench.execute(conn, "UPDATE orders SET name = 'yyy' WHERE n = 1000002")
        await waiting
        other.rollback()


@pytest.mark.promise("W4")
async def test_an_add_after_a_deadlock_with_autocommit_is_told(bench, connect, database):
    """The transaction is over, and the reply to the error that ended it does not say so."""
    conn = await begun(connect)
    await bench.order(conn, "A")
    await deadlock(bench, conn, database)
    if isinstance(bench, MysqlclientBench):  # it asks the server
        with pytest.raises(AutocommitError):
            await bench.add(conn, Event("t", id="e-1"))
        assert ids(database) == []
    else:
        with pytest.raises(TransactionError, match=r"committed separately.*start over"):
            await bench.add(conn, Event("t", id="e-1"))
        assert ids(database) == ["e-1"]  # what the error says
    assert "A" not in await bench.orders()


@pytest.mark.promise("W4")
async def test_an_add_after_a_deadlock_without_autocommit_is_in_a_new_transaction(
    bench, connect, database
):
    """Which nobody can tell: the reason for "start over" on the page about these drivers."""
    conn = await connect()
    await bench.order(conn, "A")
    await deadlock(bench, conn, database)
    await bench.add(conn, Event("t", id="e-1"))
    await bench.commit(conn)
    assert ids(database) == ["e-1"]
    assert "A" not in await bench.orders()


@pytest.mark.promise("G6", "W4", "F3")
@pytest.mark.parametrize("explicit", [False, True], ids=["no autocommit", "own BEGIN"])
@pytest.mark.parametrize("driver", ["pymysql", "mysqlclient", "asyncmy"])
async def test_a_handler_that_swallows_a_deadlock_has_no_effect_or_one(database, driver, explicit):
    """The server has rolled back the transaction; what follows is in another one, or in none."""
    bench = KINDS[driver][0](database, explicit)

    async def swallow_deadlock(bench, tx):
        await bench.order(tx, "A")
        await deadlock(bench, tx, database)
        await bench.order(tx, "B")

    bench.sync = False  # the other party needs the loop
    end = await end_of(bench, swallow_deadlock, tries=1)
    await bench.close()
    found = [name for name in await bench.orders() if name in "AB"]
    assert (end, found) == (Verdict.REJECTED, ["B"] if explicit else [])


@pytest.mark.promise("G6")
@pytest.mark.parametrize("driver", ["pymysql", "asyncmy"])
async def test_a_handler_that_swallows_a_lock_timeout_keeps_its_effect(database, driver):
    """By default the server undoes the statement, not the transaction."""
    bench = KINDS[driver][0](database)
    database.run("INSERT INTO orders (n, name) VALUES (1000001, 'x')")

    async def swallow_timeout(bench, tx):
        await bench.order(tx, "A")
        await bench.execute(tx, "SET innodb_lock_wait_timeout = 1")
        with pytest.raises(Exception, match="1205"):
            await bench.execute(tx, "DELETE FROM orders WHERE n = 1000001")

    with pymysql.connect(ssl_disabled=True, **database.arguments) as other, other.cursor() as held:
        held.execute("UPDATE orders SET name = 'y' WHERE n = 1000001")
        end = await end_of(bench, swallow_timeout, tries=1)
    await bench.close()
    assert (end, sorted(await bench.orders())) == (Verdict.CONFIRMED, ["A", "x"])


# -- errors, rights, limits ---------------------------------------------------------------------


@pytest.mark.promise("W5")
async def test_only_a_duplicate_looks_like_a_duplicate(bench, connect, database):
    conn = await connect()
    row = to_row(Event("t"), "topic")
    bad = row._replace(id="other", lane=(row.lane + 1) % 64)
    for rows in ([bad], [row, bad]):
        with pytest.raises(Exception, match="postroom_outbox_lane"):
            await insert(bench, conn, rows)
    await bench.rollback(conn)  # a transaction that has used the table would keep DDL waiting
    database.run(
        "CREATE TRIGGER once BEFORE INSERT ON postroom_outbox FOR EACH ROW "
        "INSERT INTO orders (n, name) VALUES (7, NEW.type)"
    )
    try:
        await bench.add(conn, Event("t"))
        with pytest.raises(Exception, match="Duplicate entry '7' for key 'PRIMARY'"):
            await bench.add(conn, Event("t"))
    finally:
        await bench.rollback(conn)
        database.run("DROP TRIGGER once")


@pytest.mark.promise("W5", "W9")
async def test_a_duplicate_in_a_later_part_undoes_the_earlier_ones_where_all_or_none_is_asked(
    bench, connect, database
):
    """More rows than one statement takes."""
    conn = await connect()
    rows = [to_row(Event("t", id=f"e-{n}"), "topic") for n in range(1_200)]
    await bench.order(conn, "A")
    assert await insert(bench, conn, [rows[1_100]]) == 1
    assert await insert(bench, conn, rows, whole=True) == 0
    assert await insert(bench, conn, rows[:1_000], whole=True) == 1_000
    assert await insert(bench, conn, rows) == 199
    await bench.commit(conn)
    assert sorted(ids(database)) == sorted(f"e-{n}" for n in range(1_200))
    assert await bench.orders() == ["A"]


@pytest.mark.promise("W5")
async def test_a_writer_needs_the_right_to_insert_and_no_other(bench, connect, database):
    user = f"w{database.name[3:]}"
    database.run(f"CREATE USER {user}@localhost")
    try:
        database.run(f"GRANT INSERT ON {database.name}.orders TO {user}@localhost")
        conn = await connect(user=user)
        with pytest.raises(TransactionError, match="GRANT INSERT ON postroom_outbox"):
            await bench.add(conn, Event("t"))
        database.run(f"GRANT INSERT (id) ON {database.name}.postroom_outbox TO {user}@localhost")
        with pytest.raises(TransactionError, match="GRANT INSERT ON postroom_outbox"):
            await bench.add(conn, Event("t"))  # some of its columns are not enough
        database.run(f"GRANT INSERT ON {database.name}.postroom_outbox TO {user}@localhost")
        await bench.add(conn, Event("t", id="e-1"))
        await bench.add(conn, Event("t", id="e-2"), Event("t", id="e-3"))
        with pytest.raises(DuplicateEventError):
            await bench.add(conn, Event("t", id="e-1"))
        rights = "GRANT SELECT, INSERT, UPDATE ON"
        with pytest.raises(TransactionError, match=f"{rights} postroom_counter"):
            await bench.add(conn, Event("t", key="k"), ordering="strict")
        database.run(f"{rights} {database.name}.postroom_counter TO {user}@localhost")
        await bench.add(conn, Event("t", id="e-4", key="k"), ordering="strict")
        with pytest.raises(TransactionError, match=f"{rights} postroom_inbox"):
            await bench.accept(conn, Note("m-1"))
        database.run(f"{rights} {database.name}.postroom_inbox TO {user}@localhost")
        assert await bench.accept(conn, Note("m-1")) is True
        assert await bench.accept(conn, Note("m-1")) is False
        await bench.commit(conn)
    finally:
        database.run(f"DROP USER {user}@localhost")
    assert ids(database) == ["e-1", "e-2", "e-3", "e-4"]


async def test_old_messages_come_oldest_first_and_page_by_page(bench, connect, database):
    conn = await connect()
    for number, name in enumerate(("c", "a", "b")):
        assert await bench.accept(conn, Note(name))
        await bench.execute(
            conn,
            "UPDATE postroom_inbox SET processed_at = UTC_TIMESTAMP(6) - INTERVAL "
            f"{100 - 10 * number} SECOND WHERE id = '{name}'",
        )
    tx = resolve(conn)
    assert await tx.done_before("payments", 50.0, 2, 0) == ["c", "a"]
    assert await tx.done_before("payments", 50.0, 2, 2) == ["b"]
    assert await tx.done_before("payments", 95.0, 9, 0) == ["c"]
    await bench.rollback(conn)


async def test_missing_tables_are_told_with_what_to_do(bench, connect):
    with pytest.raises(SchemaError, match="postroom migrate"):
        await bench.add(await connect(), Event("t"), prefix="elsewhere_")


async def test_a_character_set_that_loses_text_is_refused(bench, connect, database):
    conn = await connect(charset="latin1")
    with pytest.raises(TransactionError, match="latin1.*charset='utf8mb4'"):
        await bench.add(conn, Event("t", "😀"))
    with pytest.raises(TransactionError, match="latin1"):
        await bench.accept(conn, Note("m-1"))
    assert ids(database) == []


async def test_a_database_of_another_name(bench, connect, database):
    conn = await connect(database="mysql")
    await bench.add(conn, Event("t", id="e-1", key="k"), schema=database.name, ordering="strict")
    await bench.commit(conn)
    assert ids(database) == ["e-1"]


@pytest.fixture
def small_packets(database):
    """The server's limit, as new sessions see it; only one worker at a time may lower it."""
    with pymysql.connect(**database.arguments, autocommit=True) as conn, conn.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK('small packets', 60)")
        assert cursor.fetchall() == ((1,),)
        cursor.execute("SELECT @@global.max_allowed_packet")
        ((before,),) = cursor.fetchall()
        yield lambda limit: cursor.execute("SET GLOBAL max_allowed_packet = %s", [limit])
        cursor.execute("SET GLOBAL max_allowed_packet = %s", [before])


async def test_a_statement_that_the_server_would_refuse_is_refused_here(
    bench, connect, database, small_packets
):
    small_packets(64 * 1024)
    conn = await connect()
    small_packets(16 * 1024 * 1024)
    await bench.order(conn, "A")
    await bench.add(conn, Event("t", "x" * 50_000, id="e-1"))
    await bench.add(conn, Event("t", '"' * 12_000, id="e-2"))  # each costs four bytes
    for payload in ("x" * 70_000, '"' * 20_000, "😀" * 20_000, b"\x00" * 35_000):
        with pytest.raises(PayloadError, match=r"65,536 \(max_allowed_packet\)") as caught:
            await bench.add(conn, Event("t", id="e-3"), Event("t", payload))
        assert caught.value.limit == 65_536
    many = [Event("t", "x" * 10_000, id=f"m-{n}") for n in range(30)]
    await bench.add(conn, *many)
    await bench.commit(conn)
    assert ids(database) == ["e-1", "e-2", *(f"m-{n}" for n in range(30))]
    assert await bench.orders() == ["A"]
