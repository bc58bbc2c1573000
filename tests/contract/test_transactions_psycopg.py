"""The contract of the write side on psycopg 3, sync and async, in every mode of a connection."""

import asyncio

import psycopg
import pytest
from psycopg import errors as pg
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from postroom.errors import AutocommitError, DuplicateEventError, TransactionError
from postroom.event import Event
from postroom.outbox import Outbox, SyncOutbox, to_row
from postroom.testing.misbehaviour import MisbehaviourContract
from postroom.testing.transactions import (
    Note,
    SavepointBench,
    SavepointContract,
    TransactionContract,
)
from postroom.transactions import resolve_sync
from tests.contract.database import PostgresDatabase


@pytest.fixture(scope="module")
def own_database(postgres_url):
    database = PostgresDatabase(postgres_url)
    database.create()
    yield database
    database.drop()


@pytest.fixture
def database(own_database):
    own_database.clear()
    return own_database


class Bench(SavepointBench):
    """explicit: autocommit mode, and the caller sends BEGIN; else psycopg opens the transaction."""

    instant = PostgresDatabase.instant
    aborts = True

    def __init__(self, database, sync, explicit, **options):
        self.database, self.sync, self.explicit, self.options = database, sync, explicit, options
        self.after_end = "autocommit" if explicit else "transaction"
        self.opened = []

    def connect(self, **options):
        conn = psycopg.connect(self.database.url, **{**self.options, **options})
        self.opened.append(conn)
        return conn

    async def close(self):
        for conn in self.opened:
            conn.close()

    async def begin(self):
        conn = self.connect(autocommit=self.explicit)
        if self.explicit:
            conn.execute("BEGIN")
        return conn

    async def commit(self, tx):
        tx.execute("COMMIT") if self.explicit else tx.commit()

    async def rollback(self, tx):
        tx.execute("ROLLBACK") if self.explicit else tx.rollback()

    async def execute(self, tx, sql):
        tx.execute(sql)

    async def autocommitting(self):
        return self.connect(autocommit=True)

    async def rows(self, table="postroom_outbox"):
        return self.database.rows(table)

    async def savepoint(self, tx):
        tx.execute("SAVEPOINT s")

    async def release(self, tx, savepoint):
        tx.execute("RELEASE SAVEPOINT s")

    async def rollback_to(self, tx, savepoint):
        tx.execute("ROLLBACK TO SAVEPOINT s")


class AsyncBench(Bench):
    async def connect(self, **options):
        options = {**self.options, **options}
        conn = await psycopg.AsyncConnection.connect(self.database.url, **options)
        self.opened.append(conn)
        return conn

    async def close(self):
        for conn in self.opened:
            await conn.close()

    async def begin(self):
        conn = await self.connect(autocommit=self.explicit)
        if self.explicit:
            await conn.execute("BEGIN")
        return conn

    async def commit(self, tx):
        await (tx.execute("COMMIT") if self.explicit else tx.commit())

    async def rollback(self, tx):
        await (tx.execute("ROLLBACK") if self.explicit else tx.rollback())

    async def execute(self, tx, sql):
        await tx.execute(sql)

    async def autocommitting(self):
        return await self.connect(autocommit=True)

    async def savepoint(self, tx):
        await tx.execute("SAVEPOINT s")

    async def release(self, tx, savepoint):
        await tx.execute("RELEASE SAVEPOINT s")

    async def rollback_to(self, tx, savepoint):
        await tx.execute("ROLLBACK TO SAVEPOINT s")


KINDS = {
    "sync": (Bench, True, False, {}),
    "sync in a loop": (Bench, False, False, {}),
    "sync, own BEGIN": (Bench, True, True, {}),
    "sync, rows are dicts": (Bench, True, False, {"row_factory": dict_row}),
    "sync, raw cursors": (Bench, True, False, {"cursor_factory": psycopg.RawCursor}),
    "sync, nothing prepared": (Bench, True, False, {"prepare_threshold": None}),
    "async": (AsyncBench, False, False, {}),
    "async, own BEGIN": (AsyncBench, False, True, {}),
    "async, rows are dicts": (AsyncBench, False, False, {"row_factory": dict_row}),
}


class TestPsycopg(TransactionContract, SavepointContract):
    @pytest.fixture(params=KINDS.values(), ids=KINDS)
    async def bench(self, request, database):
        kind, sync, explicit, options = request.param
        bench = kind(database, sync, explicit, **options)
        yield bench
        await bench.close()


class TestMisbehaviour(MisbehaviourContract):
    @pytest.fixture(params=["sync", "sync, own BEGIN", "async", "async, own BEGIN"])
    async def bench(self, request, database):
        kind, sync, explicit, options = KINDS[request.param]
        bench = kind(database, sync, explicit, **options)
        yield bench
        await bench.close()


@pytest.fixture
async def bench(database):
    bench = Bench(database, True, False)
    yield bench
    await bench.close()


@pytest.fixture
async def async_bench(database):
    bench = AsyncBench(database, False, False)
    yield bench
    await bench.close()


def ids(database):
    return [row["id"] for row in database.rows()]


# -- pipelines (W3) -----------------------------------------------------------------------------


@pytest.mark.promise("G1", "W3")
async def test_in_a_pipeline_our_statement_is_waited_for(bench, async_bench, database):
    outbox, strict = SyncOutbox(), SyncOutbox(ordering="strict")
    conn = bench.connect()
    with conn.pipeline():
        conn.execute("INSERT INTO orders (name) VALUES ('A')")
        outbox.add(conn, Event("t", id="e-1"))
        with pytest.raises(DuplicateEventError):
            outbox.add(conn, Event("t", id="e-1"))
        strict.add_many(conn, [Event("t", id=f"s-{n}", key="k") for n in range(3)])
        outbox.add_many(conn, [Event("t", id="e-2"), Event("t", id="e-3")])
        assert ids(database) == []
        conn.commit()
    conn = await async_bench.connect()
    async with conn.pipeline():
        await conn.execute("INSERT INTO orders (name) VALUES ('B')")
        await Outbox().add(conn, Event("t", id="e-4"))
        with pytest.raises(DuplicateEventError):
            await Outbox().add(conn, Event("t", id="e-4"))
        await conn.rollback()
        await Outbox().add(conn, Event("t", id="e-5"))
        await conn.commit()
    assert ids(database) == ["e-1", "s-0", "s-1", "s-2", "e-2", "e-3", "e-5"]
    assert [row["name"] for row in database.rows("orders")] == ["A"]


@pytest.mark.promise("W1", "W3")
async def test_a_pipeline_with_autocommit_needs_a_transaction_that_is_known_to_be_open(
    bench, async_bench, database
):
    conn = bench.connect(autocommit=True)
    with conn.pipeline():
        with pytest.raises(AutocommitError, match="pipeline"):
            SyncOutbox().add(conn, Event("t"))
        conn.execute("INSERT INTO orders (name) VALUES ('A')")  # not sent yet: nobody can tell
        with pytest.raises(AutocommitError, match="pipeline"):
            SyncOutbox().add(conn, Event("t"))
        with conn.transaction():
            SyncOutbox().add(conn, Event("t", id="e-1"))
            assert ids(database) == []
    conn = await async_bench.connect(autocommit=True)
    async with conn.pipeline():
        with pytest.raises(AutocommitError, match="pipeline"):
            await Outbox().add(conn, Event("t"))
        async with conn.transaction():
            await Outbox().add(conn, Event("t", id="e-2"))
    assert ids(database) == ["e-1", "e-2"]


@pytest.mark.promise("W3")
def test_an_earlier_error_of_a_pipeline_is_told(bench, database):
    conn = bench.connect()
    with pytest.raises(pg.UndefinedTable), conn.pipeline():
        conn.execute("INSERT INTO nowhere VALUES (1)")
        SyncOutbox().add(conn, Event("t"))
    conn.rollback()
    assert ids(database) == []


# -- outbox.transaction(conn) -------------------------------------------------------------------


@pytest.mark.promise("W1", "G1")
async def test_autocommit_is_refused_while_another_task_uses_the_connection(async_bench, database):
    """Nobody can tell then whether a transaction is open; with conn.transaction() it is known."""
    conn = await async_bench.connect(autocommit=True)
    with psycopg.connect(database.url, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(77)")
        busy = asyncio.create_task(conn.execute("SELECT pg_advisory_lock(77)"))
        while conn.pgconn.transaction_status != TransactionStatus.ACTIVE:
            await asyncio.sleep(0)
        adding = asyncio.create_task(Outbox().add(conn, Event("t", id="alone")))
        await asyncio.sleep(0)
        other.execute("SELECT pg_advisory_unlock(77)")
        with pytest.raises(AutocommitError, match="another task or thread is using it"):
            await adding
        await busy
        async with conn.transaction():
            other.execute("SELECT pg_advisory_lock(78)")
            busy = asyncio.create_task(conn.execute("SELECT pg_advisory_lock(78)"))
            while conn.pgconn.transaction_status != TransactionStatus.ACTIVE:
                await asyncio.sleep(0)
            adding = asyncio.create_task(Outbox().add(conn, Event("t", id="within")))
            await asyncio.sleep(0)
            other.execute("SELECT pg_advisory_unlock(78)")
            await asyncio.gather(busy, adding)
    assert [row["id"] for row in await async_bench.rows()] == ["within"]


@pytest.mark.promise("G1")
@pytest.mark.parametrize("autocommit", [False, True])
async def test_a_transaction_opened_by_the_outbox(bench, async_bench, database, autocommit):
    outbox = SyncOutbox()
    conn = bench.connect(autocommit=autocommit)
    with outbox.transaction(conn) as tx:
        assert tx is conn
        conn.execute("INSERT INTO orders (name) VALUES ('A')")
        outbox.add(conn, Event("t", id="e-1"))
        assert ids(database) == []
    with pytest.raises(ZeroDivisionError):
        with outbox.transaction(conn):
            conn.execute("INSERT INTO orders (name) VALUES ('B')")
            outbox.add(conn, Event("t", id="e-2"))
            1 / 0
    conn = await async_bench.connect(autocommit=autocommit)
    async with Outbox().transaction(conn):
        await Outbox().add(conn, Event("t", id="e-3"))
    with pytest.raises(ZeroDivisionError):
        async with Outbox().transaction(conn):
            await Outbox().add(conn, Event("t", id="e-4"))
            1 / 0
    assert ids(database) == ["e-1", "e-3"]
    assert [row["name"] for row in database.rows("orders")] == ["A"]


@pytest.mark.promise("W1")
async def test_an_open_transaction_is_not_taken_over(bench, async_bench, database):
    conn = bench.connect()
    conn.execute("INSERT INTO orders (name) VALUES ('A')")
    with pytest.raises(TransactionError, match="already open on this connection"):
        with SyncOutbox().transaction(conn):
            pytest.fail("not reached")
    conn.rollback()
    conn = await async_bench.connect()
    await conn.execute("INSERT INTO orders (name) VALUES ('B')")
    with pytest.raises(TransactionError, match="already open on this connection"):
        async with Outbox().transaction(conn):
            pytest.fail("not reached")
    await conn.rollback()
    assert database.rows("orders") == []


@pytest.mark.promise("G1")
async def test_a_swallowed_error_does_not_look_like_a_commit(bench, async_bench, database):
    conn = bench.connect()
    with pytest.raises(TransactionError, match="has failed"):
        with SyncOutbox().transaction(conn):
            SyncOutbox().add(conn, Event("t"))
            with pytest.raises(pg.UndefinedTable):
                conn.execute("INSERT INTO nowhere VALUES (1)")
    conn = await async_bench.connect()
    with pytest.raises(TransactionError, match="has failed"):
        async with Outbox().transaction(conn):
            await Outbox().add(conn, Event("t"))
            with pytest.raises(pg.UndefinedTable):
                await conn.execute("INSERT INTO nowhere VALUES (1)")
    assert ids(database) == []


# -- errors and rights --------------------------------------------------------------------------


@pytest.mark.promise("W5")
def test_only_a_duplicate_looks_like_a_duplicate(bench):
    conn = bench.connect()
    row = to_row(Event("t"), "topic")
    for rows in ([row._replace(lane=64)], [row, row._replace(id="other", lane=64)]):
        with pytest.raises(pg.CheckViolation):
            resolve_sync(conn).insert(rows)
        conn.rollback()


@pytest.mark.promise("W5", "W9")
def test_many_strict_events_leave_the_transaction_usable_when_one_cannot_be_written(
    bench, database
):
    conn = bench.connect()
    row = to_row(Event("t", key="k"), "topic")
    bad = row._replace(id="other", lane=64)
    conn.execute("INSERT INTO orders (name) VALUES ('A')")
    with pytest.raises(pg.CheckViolation):
        resolve_sync(conn).insert([row, bad], whole=True)
    SyncOutbox(ordering="strict").add(conn, Event("t", id="e-1", key="k"))
    conn.commit()
    assert [(row["id"], row["kseq"]) for row in database.rows()] == [("e-1", 1)]


@pytest.fixture
def role(own_database):
    name = f"writer_{own_database.name}"
    own_database.run(f"CREATE ROLE {name} LOGIN")
    yield name
    own_database.run(f"DROP OWNED BY {name}")
    own_database.run(f"DROP ROLE {name}")


@pytest.mark.promise("W5")
def test_a_writer_needs_the_right_to_insert_and_no_other(bench, database, role):
    conn = bench.connect(user=role)
    events = [Event("t", id=f"e-{n}", key="k") for n in range(3)]
    with pytest.raises(TransactionError, match="GRANT INSERT ON postroom_outbox") as caught:
        SyncOutbox().add(conn, events[0])
    assert isinstance(caught.value.__cause__, pg.InsufficientPrivilege)
    conn.rollback()
    database.run(f"GRANT INSERT ON postroom_outbox TO {role}")
    SyncOutbox().add(conn, events[0])
    SyncOutbox().add_many(conn, events[1:])
    with pytest.raises(DuplicateEventError):
        SyncOutbox().add(conn, events[0])
    conn.commit()
    with pytest.raises(TransactionError, match="GRANT SELECT, INSERT, UPDATE ON postroom_counter"):
        SyncOutbox(ordering="strict").add(conn, Event("t", key="k"))
    conn.rollback()
    database.run(f"GRANT SELECT, INSERT, UPDATE ON postroom_counter TO {role}")
    SyncOutbox(ordering="strict").add_many(
        conn, [Event("t", id="s-1", key="k"), Event("t", id="s-2", key="k")]
    )
    conn.commit()
    assert ids(database) == ["e-0", "e-1", "e-2", "s-1", "s-2"]


@pytest.mark.promise("W5")
async def test_a_consumer_needs_three_rights(bench, database, role):
    conn = bench.connect(user=role)
    with pytest.raises(TransactionError, match="GRANT SELECT, INSERT, UPDATE ON postroom_inbox"):
        await bench.accept(conn, Note("m-1"))
    conn.rollback()
    database.run(f"GRANT SELECT, INSERT, UPDATE ON postroom_inbox TO {role}")
    assert await bench.accept(conn, Note("m-1")) is True
    assert await bench.accept(conn, Note("m-1")) is False


def test_a_schema_of_ones_own(bench, database):
    database.run('CREATE SCHEMA "order"')  # a reserved word
    database.run('CREATE TABLE "order".mine_outbox (LIKE postroom_outbox INCLUDING ALL)')
    conn = bench.connect()
    outbox = SyncOutbox(prefix="mine_", schema="order")
    outbox.add(conn, Event("t", id="e-1"))
    outbox.add_many(conn, [Event("t", id="e-2"), Event("t", id="e-3")])
    conn.commit()
    assert [row["id"] for row in database.rows('"order".mine_outbox')] == ["e-1", "e-2", "e-3"]
    assert ids(database) == []
    database.run('DROP SCHEMA "order" CASCADE')
