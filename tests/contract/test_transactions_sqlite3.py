"""The contract of the write side on sqlite3, in every mode that a connection can have."""

import sqlite3
import sys

import pytest

from postroom.broker import Verdict
from postroom.errors import AutocommitError, TransactionError
from postroom.event import Event
from postroom.outbox import Outbox, SyncOutbox
from postroom.testing.misbehaviour import MisbehaviourContract, end_of
from postroom.testing.transactions import SavepointBench, SavepointContract, TransactionContract
from tests.contract import sqlite_file

LEGACY = [{}, {"isolation_level": "DEFERRED"}, {"isolation_level": "IMMEDIATE"}]
OWN_BEGIN = [{"isolation_level": None}]
if sys.version_info >= (3, 12):
    LEGACY += [{"autocommit": sqlite3.LEGACY_TRANSACTION_CONTROL}, {"autocommit": False}]
    OWN_BEGIN += [{"autocommit": True}]
MODES = [(m, False) for m in LEGACY] + [(m, True) for m in OWN_BEGIN] + [({}, True)]


class Bench(SavepointBench):
    """explicit: the caller sends BEGIN; else the driver opens the transaction."""

    def __init__(self, path, sync, mode, explicit):
        self.path, self.sync, self.mode, self.explicit = path, sync, mode, explicit
        self.opened = []
        if mode == {"isolation_level": None}:
            self.after_end = "autocommit"

    def connect(self, **mode):
        conn = sqlite3.connect(self.path, **mode)
        self.opened.append(conn)
        return conn

    def close(self):
        for conn in self.opened:
            conn.close()

    async def begin(self):
        conn = self.connect(**self.mode)
        if self.explicit:
            conn.execute("BEGIN")
        return conn

    async def commit(self, tx):
        tx.execute("COMMIT") if self.explicit else tx.commit()

    async def rollback(self, tx):
        tx.execute("ROLLBACK") if self.explicit else tx.rollback()

    async def leave(self, tx):
        if tx.in_transaction:
            await self.commit(tx)

    async def execute(self, tx, sql):
        tx.execute(sql)

    async def autocommitting(self):
        return self.connect(**OWN_BEGIN[-1])

    async def rows(self, table="postroom_outbox"):
        return sqlite_file.rows(self.path, table)

    async def savepoint(self, tx):
        if not tx.in_transaction:  # legacy mode opens nothing for SAVEPOINT: as an INSERT would
            tx.execute("BEGIN")
        tx.execute("SAVEPOINT s")
        return "s"

    async def release(self, tx, savepoint):
        tx.execute("RELEASE s")

    async def rollback_to(self, tx, savepoint):
        tx.execute("ROLLBACK TO s")


@pytest.fixture
def path(tmp_path):
    return sqlite_file.make(tmp_path / "shop.db")


class TestSqlite3(TransactionContract, SavepointContract):
    @pytest.fixture(params=MODES, ids=str)
    def bench(self, request, path):
        bench = Bench(path, True, *request.param)
        yield bench
        bench.close()


class TestSqlite3InALoop(TransactionContract, SavepointContract):
    """The async outbox takes sync connections too."""

    @pytest.fixture
    def bench(self, path):
        bench = Bench(path, False, {}, False)
        yield bench
        bench.close()


class TestMisbehaviour(MisbehaviourContract):
    @pytest.fixture(params=[({}, False), ({"isolation_level": None}, True)], ids=str)
    def bench(self, request, path):
        bench = Bench(path, True, *request.param)
        yield bench
        bench.close()


@pytest.mark.promise("G6")
@pytest.mark.parametrize("explicit", [False, True], ids=["legacy", "own BEGIN"])
@pytest.mark.parametrize("raised", [False, True], ids=["swallowed", "raised"])
async def test_a_constraint_that_rolls_back_has_no_effect_or_one(path, explicit, raised):
    """ON CONFLICT ROLLBACK: SQLite ends the transaction, and says so by an error only."""
    bench = Bench(path, True, {"isolation_level": None} if explicit else {}, explicit)
    twice = (
        "INSERT OR ROLLBACK INTO postroom_counter (topic, key_hash, last) VALUES ('t', x'00', 1)"
    )

    async def break_constraint(bench, tx):
        await bench.order(tx, "A")
        await bench.execute(tx, twice)
        try:
            await bench.execute(tx, twice)
        except sqlite3.IntegrityError:
            if raised:
                raise
        await bench.order(tx, "B")

    end = await end_of(bench, break_constraint)
    bench.close()
    if raised:
        assert (end, await bench.orders()) == (Verdict.FAILED, [])
    elif explicit:
        assert (end, await bench.orders()) == (Verdict.REJECTED, ["B"])
    else:  # "B" could have been committed in between: the handler is not repeated
        assert (end, await bench.orders()) == (Verdict.REJECTED, [])


@pytest.fixture
def connect(path):
    bench = Bench(path, True, {}, False)
    yield bench.connect
    bench.close()


@pytest.mark.promise("W1")
@pytest.mark.parametrize("mode", OWN_BEGIN, ids=str)
def test_every_mode_that_commits_by_itself_is_refused(connect, path, mode):
    conn = connect(**mode)
    with pytest.raises(AutocommitError, match="outbox.transaction"):
        SyncOutbox().add(conn, Event("t"))
    conn.execute("BEGIN")
    SyncOutbox().add(conn, Event("t", id="e-1"))
    conn.execute("COMMIT")
    with pytest.raises(AutocommitError):
        SyncOutbox().add(conn, Event("t"))
    assert [row["id"] for row in sqlite_file.rows(path)] == ["e-1"]


@pytest.mark.promise("W1")
def test_the_callers_own_row_factory_does_not_matter(connect):
    conn = connect()
    conn.row_factory = lambda cursor, row: {"no": "index"}
    outbox = SyncOutbox(ordering="strict")
    outbox.add(conn, Event("t", key="k"))
    conn.commit()


@pytest.mark.promise("G1", "W2")
def test_a_bare_savepoint_is_a_transaction_of_its_own(connect, path):
    """SQLite cannot tell it from BEGIN; what is inside of it commits, or goes, with its event."""
    conn = connect()
    conn.execute("SAVEPOINT s")
    conn.execute("INSERT INTO orders VALUES ('gone')")
    SyncOutbox().add(conn, Event("t", id="gone"))
    conn.execute("ROLLBACK TO s")
    conn.execute("INSERT INTO orders VALUES ('kept')")
    SyncOutbox().add(conn, Event("t", id="kept"))
    assert sqlite_file.rows(path) == []
    conn.execute("RELEASE s")
    assert [row["id"] for row in sqlite_file.rows(path)] == ["kept"]
    assert [row["name"] for row in sqlite_file.rows(path, "orders")] == ["kept"]


class TestOpenedByOutbox:
    """outbox.transaction(conn): the caller's transaction, opened and ended for him."""

    @pytest.fixture(params=[*LEGACY, *OWN_BEGIN], ids=str)
    def conn(self, request, connect):
        return connect(**request.param)

    @pytest.mark.promise("G1")
    def test_sync_commit_and_rollback(self, conn, path):
        outbox = SyncOutbox()
        with outbox.transaction(conn) as tx:
            assert tx is conn
            conn.execute("INSERT INTO orders VALUES ('A')")
            outbox.add(conn, Event("t", id="e-1"))
            assert sqlite_file.rows(path) == []
        with pytest.raises(ZeroDivisionError):
            with outbox.transaction(conn):
                conn.execute("INSERT INTO orders VALUES ('B')")
                outbox.add(conn, Event("t", id="e-2"))
                1 / 0
        with outbox.transaction(conn):
            outbox.add(conn, Event("t", id="e-3"))
        assert [row["id"] for row in sqlite_file.rows(path)] == ["e-1", "e-3"]
        assert [row["name"] for row in sqlite_file.rows(path, "orders")] == ["A"]

    @pytest.mark.promise("G1")
    async def test_async_commit_and_rollback(self, conn, path):
        outbox = Outbox()
        async with outbox.transaction(conn):
            await outbox.add(conn, Event("t", id="e-1"))
        with pytest.raises(ZeroDivisionError):
            async with outbox.transaction(conn):
                await outbox.add(conn, Event("t", id="e-2"))
                1 / 0
        assert [row["id"] for row in sqlite_file.rows(path)] == ["e-1"]

    def test_it_does_not_nest(self, conn, path):
        outbox = SyncOutbox()
        with outbox.transaction(conn):
            outbox.add(conn, Event("t", id="e-1"))
            with pytest.raises(TransactionError, match="already"):
                with outbox.transaction(conn):
                    pass
            outbox.add(conn, Event("t", id="e-2"))
        assert [row["id"] for row in sqlite_file.rows(path)] == ["e-1", "e-2"]


def test_it_takes_the_write_lock_at_once_or_gives_up_clean(connect):
    conn, other = connect(), connect(timeout=0)
    with SyncOutbox().transaction(conn):
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            with SyncOutbox().transaction(other):
                pytest.fail("not reached")
    with SyncOutbox().transaction(other):
        pass


@pytest.mark.promise("W1")
def test_an_open_transaction_is_not_taken_over(connect, path):
    conn = connect()
    conn.execute("INSERT INTO orders VALUES ('A')")
    with pytest.raises(TransactionError, match="already open on this connection"):
        with SyncOutbox().transaction(conn):
            pytest.fail("not reached")
    conn.rollback()
    assert sqlite_file.rows(path, "orders") == []


def test_a_transaction_that_ended_inside_its_block_is_told(connect):
    conn = connect()
    with pytest.raises(TransactionError, match="ended before its block"):
        with SyncOutbox().transaction(conn):
            conn.execute("INSERT INTO orders VALUES ('A')")
            conn.rollback()
