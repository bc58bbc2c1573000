"""The contract of the write side on aiosqlite, in every mode that a connection can have."""

import asyncio
import sqlite3
import sys
from contextlib import closing

import aiosqlite
import pytest

from postroom.errors import AutocommitError, TransactionError
from postroom.event import Event
from postroom.outbox import Outbox
from postroom.testing.misbehaviour import MisbehaviourContract
from postroom.testing.transactions import SavepointBench, SavepointContract, TransactionContract
from tests.contract import sqlite_file

DRIVER_BEGINS = [{}, {"isolation_level": "IMMEDIATE"}]
OWN_BEGIN = [{"isolation_level": None}]
if sys.version_info >= (3, 12):
    DRIVER_BEGINS += [{"autocommit": False}]
    OWN_BEGIN += [{"autocommit": True}]
MODES = [(m, False) for m in DRIVER_BEGINS] + [(m, True) for m in OWN_BEGIN]


class Bench(SavepointBench):
    def __init__(self, path, mode, explicit):
        self.path, self.mode, self.explicit = path, mode, explicit
        self.opened = []
        if mode == {"isolation_level": None}:
            self.after_end = "autocommit"

    async def connect(self, **mode):
        conn = await aiosqlite.connect(self.path, **mode)
        self.opened.append(conn)
        return conn

    async def close(self):
        for conn in self.opened:
            await conn.close()

    async def begin(self):
        conn = await self.connect(**self.mode)
        if self.explicit:
            await conn.execute("BEGIN")
        return conn

    async def commit(self, tx):
        await (tx.execute("COMMIT") if self.explicit else tx.commit())

    async def rollback(self, tx):
        await (tx.execute("ROLLBACK") if self.explicit else tx.rollback())

    async def leave(self, tx):
        if tx.in_transaction:
            await self.commit(tx)

    async def execute(self, tx, sql):
        await tx.execute(sql)

    async def autocommitting(self):
        return await self.connect(**OWN_BEGIN[-1])

    async def rows(self, table="postroom_outbox"):
        return sqlite_file.rows(self.path, table)

    async def savepoint(self, tx):
        if not tx.in_transaction:
            await tx.execute("BEGIN")
        await tx.execute("SAVEPOINT s")

    async def release(self, tx, savepoint):
        await tx.execute("RELEASE s")

    async def rollback_to(self, tx, savepoint):
        await tx.execute("ROLLBACK TO s")


@pytest.fixture
def path(tmp_path):
    return sqlite_file.make(tmp_path / "shop.db")


class TestAiosqlite(TransactionContract, SavepointContract):
    @pytest.fixture(params=MODES, ids=str)
    async def bench(self, request, path):
        bench = Bench(path, *request.param)
        yield bench
        await bench.close()


class TestMisbehaviour(MisbehaviourContract):
    @pytest.fixture(params=[({}, False), ({"isolation_level": None}, True)], ids=str)
    async def bench(self, request, path):
        bench = Bench(path, *request.param)
        yield bench
        await bench.close()


@pytest.fixture
async def bench(path):
    bench = Bench(path, {}, False)
    yield bench
    await bench.close()


@pytest.mark.promise("W1")
@pytest.mark.parametrize("mode", OWN_BEGIN, ids=str)
async def test_every_mode_that_commits_by_itself_is_refused(bench, mode):
    conn = await bench.connect(**mode)
    with pytest.raises(AutocommitError, match="outbox.transaction"):
        await Outbox().add(conn, Event("t"))
    assert await bench.rows() == []


@pytest.mark.promise("W1")
async def test_the_callers_own_row_factory_does_not_matter(bench):
    conn = await bench.connect()
    conn.row_factory = lambda cursor, row: {"no": "index"}
    await Outbox(ordering="strict").add(conn, Event("t", key="k"))
    await conn.commit()


@pytest.mark.promise("G1")
@pytest.mark.parametrize("mode", [*DRIVER_BEGINS, *OWN_BEGIN], ids=str)
async def test_a_transaction_opened_by_the_outbox(bench, mode):
    conn = await bench.connect(**mode)
    outbox = Outbox()
    async with outbox.transaction(conn) as tx:
        assert tx is conn
        await bench.order(conn, "A")
        await outbox.add(conn, Event("t", id="e-1"))
        assert await bench.rows() == []
    with pytest.raises(ZeroDivisionError):
        async with outbox.transaction(conn):
            await bench.order(conn, "B")
            await outbox.add(conn, Event("t", id="e-2"))
            1 / 0
    assert [row["id"] for row in await bench.rows()] == ["e-1"]
    assert await bench.orders() == ["A"]


async def test_an_open_transaction_is_not_taken_over(bench):
    conn = await bench.connect()
    await bench.order(conn, "A")
    with pytest.raises(TransactionError, match="already open on this connection"):
        async with Outbox().transaction(conn):
            pytest.fail("not reached")
    await conn.rollback()
    assert await bench.orders() == []


async def test_a_begin_that_was_cancelled_leaves_no_lock_behind(bench):
    """Its BEGIN waits for a lock in aiosqlite's thread, and gets it when nobody waits any more."""
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    waiting = await bench.connect(timeout=30)
    await waiting.set_trace_callback(lambda sql: loop.call_soon_threadsafe(begun.set))

    async def work():
        async with Outbox().transaction(waiting):
            pytest.fail("not reached")

    with closing(sqlite3.connect(bench.path, timeout=0)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        task = asyncio.create_task(work())
        async with asyncio.timeout(20):
            await begun.wait()
            task.cancel()
            holder.execute("ROLLBACK")
            with pytest.raises(asyncio.CancelledError):
                await task
            await waiting.set_trace_callback(None)  # its thread has done all that was asked before
        assert not waiting.in_transaction
        holder.execute("BEGIN IMMEDIATE")
        holder.execute("ROLLBACK")
