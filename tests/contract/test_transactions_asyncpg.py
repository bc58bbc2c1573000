"""The contract of the write side on asyncpg: its connections, and those of its pool."""

import asyncpg
import pytest

from postroom.errors import (
    AutocommitError,
    DuplicateEventError,
    SchemaError,
    TransactionError,
    UnsupportedConnectionError,
)
from postroom.event import Event
from postroom.outbox import Outbox, SyncOutbox, to_row
from postroom.testing.misbehaviour import MisbehaviourContract
from postroom.testing.transactions import SavepointBench, SavepointContract, TransactionContract
from postroom.transactions import resolve
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
    instant = PostgresDatabase.instant
    after_end, aborts = "autocommit", True

    def __init__(self, database, **options):
        self.database, self.options = database, options
        self.opened = []

    async def connect(self, **options):
        conn = await asyncpg.connect(**self.database.arguments, **{**self.options, **options})
        self.opened.append(conn)
        return conn

    async def close(self):
        for conn in self.opened:
            await conn.close()

    async def begin(self):
        conn = await self.connect()
        await conn.execute("BEGIN")
        return conn

    async def commit(self, tx):
        await tx.execute("COMMIT")

    async def rollback(self, tx):
        await tx.execute("ROLLBACK")

    async def execute(self, tx, sql):
        await tx.execute(sql)

    async def autocommitting(self):
        return await self.connect()

    async def rows(self, table="postroom_outbox"):
        return self.database.rows(table)

    async def savepoint(self, tx):
        await tx.execute("SAVEPOINT s")

    async def release(self, tx, savepoint):
        await tx.execute("RELEASE SAVEPOINT s")

    async def rollback_to(self, tx, savepoint):
        await tx.execute("ROLLBACK TO SAVEPOINT s")


class BlockBench(Bench):
    """asyncpg's own transaction objects, which nest as savepoints."""

    async def begin(self):
        conn = await self.connect()
        self.outer = conn.transaction()
        await self.outer.start()
        return conn

    async def commit(self, tx):
        await self.outer.commit()

    async def rollback(self, tx):
        await self.outer.rollback()

    async def commit_inside(self, tx):
        await tx.execute("COMMIT")

    async def roll_back_inside(self, tx):
        await tx.execute("ROLLBACK")

    async def savepoint(self, tx):
        inner = tx.transaction()
        await inner.start()
        return inner

    async def release(self, tx, savepoint):
        await savepoint.commit()

    async def rollback_to(self, tx, savepoint):
        await savepoint.rollback()


class PoolBench(BlockBench):
    """A connection of a pool is a proxy of another class."""

    async def connect(self, **options):
        pool = await asyncpg.create_pool(
            **self.database.arguments, **self.options, min_size=1, max_size=1
        )
        conn = await pool.acquire()
        self.opened.append((pool, conn))
        return conn

    async def close(self):
        for pool, conn in self.opened:
            await pool.release(conn)
            await pool.close()


KINDS = {
    "own BEGIN": (Bench, {}),
    "transaction blocks": (BlockBench, {}),
    "nothing prepared": (BlockBench, {"statement_cache_size": 0}),
    "pool": (PoolBench, {}),
}


class TestAsyncpg(TransactionContract, SavepointContract):
    @pytest.fixture(params=KINDS.values(), ids=KINDS)
    async def bench(self, request, database):
        kind, options = request.param
        bench = kind(database, **options)
        yield bench
        await bench.close()


class TestMisbehaviour(MisbehaviourContract):
    @pytest.fixture(params=[BlockBench, PoolBench])
    async def bench(self, request, database):
        bench = request.param(database)
        yield bench
        await bench.close()


@pytest.fixture
async def conn(database):
    conn = await asyncpg.connect(**database.arguments)
    yield conn
    await conn.close()


def ids(database):
    return [row["id"] for row in database.rows()]


@pytest.mark.promise("G1")
async def test_a_transaction_opened_by_the_outbox(conn, database):
    outbox = Outbox()
    async with outbox.transaction(conn) as tx:
        assert tx is conn
        await conn.execute("INSERT INTO orders (name) VALUES ('A')")
        await outbox.add(conn, Event("t", id="e-1"))
        async with conn.transaction():  # blocks of the caller's own are savepoints in it
            await outbox.add(conn, Event("t", id="e-2"))
        assert ids(database) == []
    with pytest.raises(ZeroDivisionError):
        async with outbox.transaction(conn):
            await outbox.add(conn, Event("t", id="e-3"))
            1 / 0
    assert ids(database) == ["e-1", "e-2"]
    with pytest.raises(AutocommitError):
        await outbox.add(conn, Event("t"))


@pytest.mark.promise("W1")
async def test_an_open_transaction_is_not_taken_over(conn, database):
    async with conn.transaction():
        with pytest.raises(TransactionError, match="already open on this connection"):
            async with Outbox().transaction(conn):
                pytest.fail("not reached")
        await Outbox().add(conn, Event("t", id="e-1"))
    assert ids(database) == ["e-1"]


@pytest.mark.promise("G1")
async def test_a_swallowed_error_does_not_look_like_a_commit(conn, database):
    with pytest.raises(TransactionError, match="has failed"):
        async with Outbox().transaction(conn):
            await Outbox().add(conn, Event("t"))
            with pytest.raises(asyncpg.UndefinedTableError):
                await conn.execute("INSERT INTO nowhere VALUES (1)")
    assert ids(database) == []


@pytest.mark.promise("W5")
async def test_only_a_duplicate_looks_like_a_duplicate(conn):
    row = to_row(Event("t"), "topic")
    for rows in ([row._replace(lane=64)], [row, row._replace(id="other", lane=64)]):
        with pytest.raises(asyncpg.CheckViolationError):
            async with conn.transaction():
                await resolve(conn).insert(rows)


@pytest.mark.promise("W5")
async def test_a_writer_needs_the_right_to_insert_and_no_other(database):
    role = f"asyncpg_{database.name}"
    database.run(f"CREATE ROLE {role} LOGIN")
    conn = await asyncpg.connect(**{**database.arguments, "user": role})
    try:
        with pytest.raises(TransactionError, match="GRANT INSERT ON postroom_outbox"):
            async with conn.transaction():
                await Outbox().add(conn, Event("t"))
        database.run(f"GRANT INSERT ON postroom_outbox TO {role}")
        async with conn.transaction():
            await Outbox().add(conn, Event("t", id="e-1"))
            await Outbox().add_many(conn, [Event("t", id="e-2"), Event("t", id="e-3")])
            with pytest.raises(DuplicateEventError):
                await Outbox().add(conn, Event("t", id="e-2"))
    finally:
        await conn.close()
        database.run(f"DROP OWNED BY {role}")
        database.run(f"DROP ROLE {role}")
    assert ids(database) == ["e-1", "e-2", "e-3"]


async def test_missing_tables_are_told_with_what_to_do(conn):
    with pytest.raises(SchemaError, match="postroom migrate"):
        async with conn.transaction():
            await Outbox(prefix="elsewhere_").add(conn, Event("t"))


async def test_near_misses_get_a_hint(conn, database):
    pool = asyncpg.create_pool(**database.arguments, min_size=1, max_size=1)
    block = conn.transaction()
    for wrong, hint in ((pool, "a connection from it"), (block, "not its transaction")):
        with pytest.raises(UnsupportedConnectionError, match=hint):
            await Outbox().add(wrong, Event("t"))
    with pytest.raises(UnsupportedConnectionError, match="use Outbox or Inbox and await"):
        SyncOutbox().add(conn, Event("t"))
