"""The contract of the write side on SQLAlchemy over SQLite: connections and sessions, sync and async."""

import sys

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    scoped_session,
    sessionmaker,
)
from sqlalchemy.pool import NullPool

from postroom.errors import AutocommitError, TransactionError
from postroom.event import Event
from postroom.outbox import Outbox, SyncOutbox
from postroom.testing.misbehaviour import MisbehaviourContract
from postroom.testing.transactions import (
    SavepointBench,
    SavepointContract,
    TransactionBench,
    TransactionContract,
)
from postroom.transaction import Acceptance
from postroom.transactions import resolve_sync
from tests.contract import sqlite_file


def default(engine):
    """SQLAlchemy as it comes: sqlite3 in legacy mode."""


def send_begin(engine):
    """SQLAlchemy's own recipe for working savepoints on every Python."""
    event.listen(engine, "connect", lambda conn, _: setattr(conn, "isolation_level", None))
    event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("BEGIN"))


CONFIGURATIONS = {"send_begin": ({}, send_begin)}
if sys.version_info >= (3, 12):
    CONFIGURATIONS["autocommit_false"] = ({"autocommit": False}, default)


class SyncBench(TransactionBench):
    sync = True

    def __init__(self, path, of, connect_args, prepare):
        self.path, self.of = path, of
        url = f"sqlite:///{path}"
        self.engine = create_engine(url, connect_args=connect_args, poolclass=NullPool)
        prepare(self.engine)
        self.plain = create_engine(url, poolclass=NullPool)
        self.opened = []

    def open(self, engine):
        made = engine.connect() if self.of == "connection" else Session(engine)
        self.opened.append(made)
        return made

    async def close(self):
        for made in self.opened:
            made.close()

    async def begin(self):
        tx = self.open(self.engine)
        tx.begin()
        return tx

    async def commit(self, tx):
        tx.commit()

    async def rollback(self, tx):
        tx.rollback()

    async def execute(self, tx, sql):
        tx.execute(text(sql))

    async def autocommitting(self):
        return self.open(self.plain.execution_options(isolation_level="AUTOCOMMIT"))

    async def rows(self, table="postroom_outbox"):
        return sqlite_file.rows(self.path, table)


class SyncSavepointBench(SyncBench, SavepointBench):
    async def savepoint(self, tx):
        return tx.begin_nested()

    async def release(self, tx, savepoint):
        savepoint.commit()

    async def rollback_to(self, tx, savepoint):
        savepoint.rollback()


class AsyncBench(TransactionBench):
    def __init__(self, path, of, connect_args, prepare):
        self.path, self.of = path, of
        url = f"sqlite+aiosqlite:///{path}"
        self.engine = create_async_engine(url, connect_args=connect_args, poolclass=NullPool)
        prepare(self.engine.sync_engine)
        self.plain = create_async_engine(url, poolclass=NullPool)
        self.opened = []

    async def open(self, engine):
        made = await engine.connect() if self.of == "connection" else AsyncSession(engine)
        self.opened.append(made)
        return made

    async def close(self):
        for made in self.opened:
            await made.close()

    async def begin(self):
        tx = await self.open(self.engine)
        await tx.begin()
        return tx

    async def commit(self, tx):
        await tx.commit()

    async def rollback(self, tx):
        await tx.rollback()

    async def execute(self, tx, sql):
        await tx.execute(text(sql))

    async def autocommitting(self):
        return await self.open(self.plain.execution_options(isolation_level="AUTOCOMMIT"))

    async def rows(self, table="postroom_outbox"):
        return sqlite_file.rows(self.path, table)


class AsyncSavepointBench(AsyncBench, SavepointBench):
    async def savepoint(self, tx):
        return await tx.begin_nested()

    async def release(self, tx, savepoint):
        await savepoint.commit()

    async def rollback_to(self, tx, savepoint):
        await savepoint.rollback()


@pytest.fixture
def path(tmp_path):
    return sqlite_file.make(tmp_path / "shop.db")


@pytest.fixture(params=["connection", "session"])
def of(request):
    return request.param


@pytest.fixture(params=[SyncBench, AsyncBench])
async def plain(request, path, of):
    bench = request.param(path, of, {}, default)
    yield bench
    await bench.close()


class TestAsItComes(TransactionContract, MisbehaviourContract):
    @pytest.fixture
    def bench(self, plain):
        return plain


class TestWithSavepoints(TransactionContract, SavepointContract):
    @pytest.fixture(params=CONFIGURATIONS.values(), ids=CONFIGURATIONS)
    def configuration(self, request):
        return request.param

    @pytest.fixture(params=[SyncSavepointBench, AsyncSavepointBench])
    async def bench(self, request, path, of, configuration):
        bench = request.param(path, of, *configuration)
        yield bench
        await bench.close()


@pytest.mark.promise("G1", "W2")
async def test_a_savepoint_that_may_have_no_begin_is_refused(plain):
    tx = await plain.begin()
    nested = tx.begin_nested() if plain.sync else await tx.begin_nested()
    with pytest.raises(AutocommitError, match="SAVEPOINT that may have no BEGIN"):
        await plain.add(tx, Event("t", id="e-1"))
    assert await plain.rows() == []
    nested.commit() if plain.sync else await nested.commit()
    await plain.add(tx, Event("t", id="e-2"))  # outside of it all is well
    assert await plain.rows() == []
    await plain.commit(tx)
    assert [row["id"] for row in await plain.rows()] == ["e-2"]


@pytest.mark.promise("W2")
def test_release_of_such_a_savepoint_really_commits(path):
    """The fact that the refusal rests on, on the versions installed here."""
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    with engine.connect() as conn:
        conn.begin()
        with conn.begin_nested():
            conn.execute(text("INSERT INTO orders VALUES ('survivor')"))
        conn.rollback()
    assert [row["name"] for row in sqlite_file.rows(path, "orders")] == ["survivor"]


@pytest.mark.promise("W1")
async def test_autocommit_is_refused_inside_begin_too(plain):
    """SQLAlchemy says in_transaction() there, and is not."""
    target = await plain.autocommitting()
    target.begin() if plain.sync else await target.begin()
    assert target.in_transaction()
    with pytest.raises(AutocommitError, match="autocommit mode"):
        await plain.add(target, Event("t"))
    assert await plain.rows() == []


@pytest.mark.promise("G1")
async def test_a_transaction_opened_by_the_outbox(plain):
    tx = plain.open(plain.engine) if plain.sync else await plain.open(plain.engine)
    if plain.sync:
        with SyncOutbox().transaction(tx):
            SyncOutbox().add(tx, Event("t", id="e-1"))
        with pytest.raises(ZeroDivisionError):
            with SyncOutbox().transaction(tx):
                SyncOutbox().add(tx, Event("t", id="e-2"))
                1 / 0
    async with Outbox().transaction(tx):
        await Outbox().add(tx, Event("t", id="e-3"))
    with pytest.raises(ZeroDivisionError):
        async with Outbox().transaction(tx):
            await Outbox().add(tx, Event("t", id="e-4"))
            1 / 0
    expected = ["e-1", "e-3"] if plain.sync else ["e-3"]
    assert [row["id"] for row in await plain.rows()] == expected


def test_a_scoped_session_is_its_session(path):
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    sessions = scoped_session(sessionmaker(engine))
    SyncOutbox().add(sessions, Event("t", id="e-1"))
    sessions.commit()
    SyncOutbox().add(sessions, Event("t", id="e-2"))
    sessions.rollback()
    sessions.remove()
    assert [row["id"] for row in sqlite_file.rows(path)] == ["e-1"]


# -- several databases ----------------------------------------------------------------------------
class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


class Line(Base):
    __tablename__ = "lines"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.promise("W3", "G1")
@pytest.mark.parametrize("own_bind", [True, False])
async def test_a_session_of_two_databases_is_refused(tmp_path, own_bind):
    """Its event would go to the one, and the order to the other."""
    engines = [create_engine(f"sqlite:///{tmp_path / name}.db") for name in "ab"]
    binds = {Order: engines[1]} if own_bind else {Order: engines[0], Line: engines[1]}
    given = {"bind": engines[0]} if own_bind else {}
    with Session(**given, binds=binds) as session:
        with pytest.raises(TransactionError, match="2 binds.*bind_arguments"):
            SyncOutbox().add(session, Event("t"))
    asynchronous = AsyncSession(
        binds={kind: create_async_engine("sqlite+aiosqlite://") for kind in binds},
        **({"bind": create_async_engine("sqlite+aiosqlite://")} if own_bind else {}),
    )
    with pytest.raises(TransactionError, match="2 binds"):
        await Outbox().add(asynchronous, Event("t"))
    await asynchronous.close()
    for engine in engines:
        engine.dispose()


async def test_a_session_whose_binds_are_one_database_is_accepted(tmp_path):
    path = sqlite_file.make(tmp_path / "app.db")
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    with Session(bind=engine, binds={Order: engine, Line: engine}) as session:
        SyncOutbox().add(session, Event("t", id="e"))
        session.commit()
    with engine.connect() as conn:
        assert conn.execute(text("SELECT id FROM postroom_outbox")).all() == [("e",)]


@pytest.mark.promise("H2")
def test_what_the_session_has_not_written_yet_fails_before_the_commit(tmp_path):
    """Then the handler has failed; at the commit nobody would know any more what was done."""
    engine = create_engine(f"sqlite:///{sqlite_file.make(tmp_path / 'app.db')}", poolclass=NullPool)
    with Session(engine) as session:
        tx, mark = resolve_sync(session), Acceptance("c", "m", "t", None)
        assert tx.accept(mark)
        tx.hold([])
        session.add(Line(id=1))  # there is no such table
        with pytest.raises(OperationalError, match="no such table: lines"):
            tx.standing([mark])
