"""Waking relays: after the outermost commit, never after a rollback, never twice."""

import logging
import sqlite3
import threading
from contextlib import closing

import aiosqlite
import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from postroom import notifier as notifier_module
from postroom.event import Event
from postroom.outbox import Outbox, SyncOutbox
from tests.contract import sqlite_file


@pytest.fixture
def path(tmp_path):
    return sqlite_file.make(tmp_path / "shop.db")


@pytest.fixture
def engine(path):
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    event.listen(engine, "connect", lambda conn, _: setattr(conn, "isolation_level", None))
    event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("BEGIN"))
    return engine


@pytest.fixture
def kicks(path):
    """What a relay of a stream would see when it is kicked: the events committed by then."""
    seen = []

    def watch(stream):
        return notifier_module.subscribe(
            stream, lambda: seen.append((stream, [row["id"] for row in sqlite_file.rows(path)]))
        )

    ends = [watch("main"), watch("other")]
    yield seen
    for end in ends:
        end()


# -- the registry -----------------------------------------------------------------------------------


def test_a_kick_calls_those_who_serve_the_stream():
    calls = []
    ends = [notifier_module.subscribe(s, lambda s=s: calls.append(s)) for s in ("a", "b", "a")]
    notifier_module.kick(["a"])
    assert calls == ["a", "a"]
    calls.clear()
    notifier_module.kick({"a", "b", "nobody"})
    assert sorted(calls) == ["a", "a", "b"]
    calls.clear()
    notifier_module.kick()
    assert sorted(calls) == ["a", "a", "b"]
    calls.clear()
    notifier_module.kick([])
    assert calls == []
    for end in ends:
        end()
        end()
    notifier_module.kick()
    assert calls == []


def test_the_same_callback_twice_is_two_subscriptions():
    calls = []
    callback = lambda: calls.append(1)  # noqa: E731
    first, second = (
        notifier_module.subscribe("a", callback),
        notifier_module.subscribe("a", callback),
    )
    first()
    first()
    notifier_module.kick(["a"])
    assert calls == [1]
    second()
    notifier_module.kick(["a"])
    assert calls == [1]


def test_a_callback_that_raises_stops_nobody(caplog):
    calls = []

    def broken():
        raise RuntimeError("the loop is closed")

    ends = [
        notifier_module.subscribe("a", broken),
        notifier_module.subscribe("a", lambda: calls.append(1)),
    ]
    with caplog.at_level(logging.ERROR):
        notifier_module.kick(["a"])
    for end in ends:
        end()
    assert calls == [1]
    assert "the loop is closed" in caplog.text


def test_a_callback_may_end_its_own_subscription():
    calls = []
    ends = []

    def once():
        calls.append(1)
        ends[0]()

    ends.append(notifier_module.subscribe("a", once))
    notifier_module.kick(["a"])
    notifier_module.kick(["a"])
    assert calls == [1]


def test_many_threads_at_once():
    counts = []
    start = threading.Barrier(8)

    def work(n):
        start.wait(10)
        for _ in range(200):
            end = notifier_module.subscribe(f"s{n % 2}", lambda: counts.append(n))
            notifier_module.kick([f"s{n % 2}"])
            end()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(counts) >= 8 * 200
    assert notifier_module._subscribers == {}


# -- the outbox' own kick ---------------------------------------------------------------------------


class Notifier:
    def __init__(self):
        self.told = []

    def notify(self, streams):
        self.told.append(streams)


def test_kick_wakes_this_process_and_tells_the_notifier(kicks):
    notifier = Notifier()
    outbox = SyncOutbox(notifier=notifier)
    outbox.kick()
    outbox.kick(["main"])
    outbox.kick("other")
    assert [stream for stream, _ in kicks] == ["main", "other", "main", "other"]
    assert notifier.told == [None, {"main"}, {"other"}]


def test_a_notifier_that_fails_is_logged(caplog):
    class Broken:
        def notify(self, streams):
            raise OSError("connection refused")

    with caplog.at_level(logging.ERROR):
        SyncOutbox(notifier=Broken()).kick()
    assert "connection refused" in caplog.text


# -- raw drivers ------------------------------------------------------------------------------------


def test_a_raw_driver_has_no_hook_so_the_caller_kicks(path, kicks):
    outbox = SyncOutbox()
    with closing(sqlite3.connect(path)) as conn:
        outbox.add(conn, Event("t", id="e-1"))
        conn.commit()
    assert kicks == []
    outbox.kick()
    assert kicks == [("main", ["e-1"]), ("other", ["e-1"])]


def test_transaction_kicks_after_the_commit_and_not_after_a_rollback(path, kicks):
    outbox = SyncOutbox()
    with closing(sqlite3.connect(path)) as conn:
        with outbox.transaction(conn):
            outbox.add(conn, Event("t", id="e-1"))
            outbox.add(conn, Event("t", id="e-2"))
            assert kicks == []
        assert kicks == [("main", ["e-1", "e-2"])]
        with pytest.raises(ZeroDivisionError):
            with outbox.transaction(conn):
                outbox.add(conn, Event("t", id="e-3"))
                1 / 0
        assert len(kicks) == 1
        with outbox.transaction(conn):
            outbox.add(conn, Event("t", id="e-4", stream="other"))
    assert kicks[1:] == [("other", ["e-1", "e-2", "e-4"])]


async def test_transaction_kicks_on_aiosqlite(path, kicks):
    outbox = Outbox()
    async with aiosqlite.connect(path) as conn:
        async with outbox.transaction(conn):
            await outbox.add(conn, Event("t", id="e-1"))
            assert kicks == []
        assert kicks == [("main", ["e-1"])]
        with pytest.raises(ZeroDivisionError):
            async with outbox.transaction(conn):
                await outbox.add(conn, Event("t", id="e-2"))
                1 / 0
    assert len(kicks) == 1


# -- SQLAlchemy's hook ------------------------------------------------------------------------------


@pytest.mark.promise("W3")
def test_a_session_kicks_by_itself_after_its_outermost_commit(engine, kicks):
    outbox = SyncOutbox()
    with Session(engine) as session:
        with session.begin():
            outbox.add(session, Event("t", id="e-1"))
            with session.begin_nested():
                outbox.add(session, Event("t", id="e-2"))
            assert kicks == []
        assert kicks == [("main", ["e-1", "e-2"])]


@pytest.mark.promise("W3")
def test_a_rollback_kicks_nobody_and_is_forgotten(engine, kicks):
    outbox = SyncOutbox()
    with Session(engine) as session:
        outbox.add(session, Event("t", id="e-1"))
        session.rollback()
        session.connection()
        session.commit()
        outbox.add(session, Event("t", id="e-2"))
        session.close()
        session.connection()
        session.commit()
        with session.begin_nested():
            outbox.add(session, Event("t", id="e-3"))
        session.rollback()
    assert kicks == []


@pytest.mark.promise("W3")
def test_a_savepoint_that_is_rolled_back_does_not_silence_the_rest(engine, kicks):
    outbox = SyncOutbox()
    with Session(engine) as session:
        outbox.add(session, Event("t", id="e-1"))
        nested = session.begin_nested()
        outbox.add(session, Event("t", id="e-2", stream="other"))
        nested.rollback()
        session.commit()
    assert ("main", ["e-1"]) in kicks


@pytest.mark.promise("W3")
def test_each_commit_kicks_once_for_what_it_holds(engine, kicks):
    outbox = SyncOutbox()
    with Session(engine) as session:
        for n in range(3):
            outbox.add(session, Event("t", id=f"a-{n}"))
        session.commit()
        session.connection()
        session.commit()
        outbox.add(session, Event("t", id="b", stream="other"))
        session.commit()
    assert kicks == [("main", ["a-0", "a-1", "a-2"]), ("other", ["a-0", "a-1", "a-2", "b"])]


def test_a_session_opened_by_transaction_kicks_once(engine, kicks):
    outbox = SyncOutbox()
    with Session(engine) as session, outbox.transaction(session):
        outbox.add(session, Event("t", id="e-1"))
    assert kicks == [("main", ["e-1"])]


def test_a_session_inside_its_connections_transaction_has_not_committed(engine, kicks):
    outbox = SyncOutbox()
    with engine.connect() as conn, conn.begin():
        with Session(conn, join_transaction_mode="create_savepoint") as session:
            outbox.add(session, Event("t", id="e-1"))
            session.commit()
        assert kicks == []


def test_transaction_kicks_on_a_connection(engine, kicks):
    outbox = SyncOutbox()
    with engine.connect() as conn:
        with outbox.transaction(conn):
            outbox.add(conn, Event("t", id="e-1"))
        assert kicks == [("main", ["e-1"])]


@pytest.mark.promise("W3")
async def test_an_async_session_kicks_by_itself(path, kicks):
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)
    outbox = Outbox()
    async with AsyncSession(engine) as session:
        async with session.begin():
            await outbox.add(session, Event("t", id="e-1"))
            assert kicks == []
        assert kicks == [("main", ["e-1"])]
        await outbox.add(session, Event("t", id="e-2"))
        await session.rollback()
    assert len(kicks) == 1


async def test_an_async_scoped_session_kicks_by_itself(path, kicks):
    from sqlalchemy.ext.asyncio import async_sessionmaker

    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)
    sessions = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)
    await Outbox().add(sessions, Event("t", id="e-1"))
    await sessions.commit()
    assert kicks == [("main", ["e-1"])]
    await sessions.remove()
