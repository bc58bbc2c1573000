"""What is particular to the SQLite store: threads, locks, errors, plans and statements."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from contextlib import closing

import pytest

from postroom.errors import ConfigError, StoreError, StoreRetryableError, StoreUnknownError
from postroom.event import Event
from postroom.lookup import Filter
from postroom.outbox import Outbox
from postroom.record import State
from postroom.store import Member
from postroom.stores.sqlite import SqliteStore
from postroom.testing.store.tools import ALL, Hand, event, names


@pytest.fixture
async def store(tmp_path):
    store = SqliteStore(tmp_path / "app.db", busy_seconds=0.05)
    await store.migrate()
    await store.open()
    yield store
    await store.close()


async def add(store, *events):
    async with store.transaction() as tx:
        await Outbox().add_many(tx, events)


class Locked:
    """Another writer, in the middle of its transaction."""

    def __init__(self, store):
        self.store = store

    def __enter__(self):
        self.writer = sqlite3.connect(self.store.path, isolation_level=None)
        self.writer.execute("BEGIN IMMEDIATE")

    def __exit__(self, *_):
        self.writer.close()


# -- settings -------------------------------------------------------------------------------------
def test_a_url_names_a_relative_or_an_absolute_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert SqliteStore("sqlite:///app.db").path == tmp_path / "app.db"
    assert SqliteStore("sqlite:////var/lib/app.db").path.as_posix() == "/var/lib/app.db"
    store = SqliteStore("sqlite:///a%20b.db?prefix=shop_&busy_seconds=1.5&synchronous=full")
    assert (store.path.name, store.prefix) == ("a b.db", "shop_")
    assert store.url == f"sqlite:///{tmp_path}/a b.db?prefix=shop_"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("sqlite://app.db", "three slashes"),
        ("sqlite:///", "missing"),
        ("sqlite:///:memory:", "its own database"),
        ("postgresql://host/db", "not an SQLite URL"),
        ("sqlite:///app.db?busy_second=1", "busy_seconds"),
        ("sqlite:///app.db?busy_seconds=soon", "seconds"),
        ("sqlite:///app.db?synchronous=off", "normal, full, extra"),
        ("sqlite:///app.db?prefix=a;b", "prefix"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused(url, problem):
    with pytest.raises(ConfigError, match=problem):
        SqliteStore(url)


@pytest.mark.parametrize(
    "settings",
    [{"prefix": "A-"}, {"prefix": ""}, {"busy_seconds": -1}, {"synchronous": "off"}],
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ConfigError):
        SqliteStore("sqlite:///app.db", **settings)


@pytest.mark.parametrize("path", [":memory:", "", "app.db"])
def test_text_that_is_no_url_is_refused(path):
    with pytest.raises(ConfigError, match="not a URL"):
        SqliteStore(path)


@pytest.mark.parametrize(("word", "number"), [("normal", 1), ("full", 2), ("extra", 3)])
async def test_the_durability_is_what_was_asked_for(tmp_path, word, number):
    store = SqliteStore(tmp_path / "app.db", synchronous=word)
    await store.migrate()
    await store.open()
    pragma = "PRAGMA synchronous"
    assert await store._write.call(lambda db: db.connection.execute(pragma).fetchone()) == (number,)
    async with store.transaction() as tx:
        (value,) = await (await tx.execute(pragma)).fetchone()
        assert value >= 2  # a consumer acknowledges after a handler's commit
    await store.close()


# -- life -----------------------------------------------------------------------------------------
async def test_a_store_that_is_not_open_says_so(tmp_path):
    store = SqliteStore(tmp_path / "app.db")
    with pytest.raises(StoreError, match="not open"):
        await store.stats()


async def test_a_closed_store_can_be_opened_again_and_leaves_no_thread(tmp_path):
    before = set(threading.enumerate())
    store = SqliteStore(tmp_path / "app.db")
    await store.migrate()
    for _ in range(2):
        await store.open()
        await store.open()
        await add(store, Event("t"))
        assert await store.streams() == ["main"]
        await store.close()
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(10)
        assert not thread.is_alive()


async def test_a_reader_cannot_write(store):
    for thread in (store._read, store._look):
        with pytest.raises(StoreError, match="readonly"):
            await thread.call(lambda db: db.connection.execute("DELETE FROM postroom_outbox"))


# -- errors ---------------------------------------------------------------------------------------
@pytest.mark.promise("L5")
async def test_a_locked_database_is_a_conflict_and_changes_nothing(store):
    await add(store, event("e", "k"))
    hand = await Hand(store).take()
    records = await hand.read()
    with Locked(store):
        with pytest.raises(StoreRetryableError, match="busy"):
            await hand.settle(done=records)
        with pytest.raises(StoreRetryableError):
            await store.heartbeat("main", Member("anna", healthy=True), 5.0, hand.held)
        assert names(await hand.read()) == ["e"]  # reading goes on
    assert await hand.settle(done=records) == set(range(64))


async def test_a_snapshot_that_is_too_old_to_be_written_on_is_a_conflict(store):
    """SQLite has several codes that say busy: this one is SQLITE_BUSY_SNAPSHOT."""

    def write_on_an_old_snapshot(db):
        db.connection.execute("BEGIN")
        db.connection.execute("SELECT * FROM postroom_meta").fetchall()
        with closing(sqlite3.connect(store.path)) as other, other:
            other.execute("INSERT INTO postroom_meta VALUES ('other', 'writer')")
        try:
            db.connection.execute("DELETE FROM postroom_meta WHERE name = 'other'")
        finally:
            db.connection.execute("ROLLBACK")

    with pytest.raises(StoreRetryableError, match="busy"):
        await store._write.call(write_on_an_old_snapshot)


async def test_nothing_to_do_takes_no_lock(store):
    await add(store, event("e", "k"))
    hand = await Hand(store).take()
    with Locked(store):
        assert await store.stage("main", range(64), 100) == (0, None, True)
        assert await store.repair_blocks("main", "anna", hand.held, 100) == 0
        assert await store.prune(0, 100) == 0


class Scripted(sqlite3.Connection):
    """A connection whose next COMMIT fails, before or after it has happened."""

    fail: tuple[int, bool] | None = None

    def execute(self, sql, *args):
        if sql == "COMMIT" and self.fail is not None:
            code, committed = self.fail
            self.fail = None
            if committed:
                super().execute(sql)
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = code
            raise error
        return super().execute(sql, *args)


@pytest.fixture
async def scripted(store, monkeypatch):
    """Make the writer's next COMMIT fail."""
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, factory=Scripted, **k))
    await store.close()
    await store.open()

    async def script(code, *, committed=False):
        await store._write.call(lambda db: setattr(db.connection, "fail", (code, committed)))

    return script


@pytest.mark.promise("L5")
@pytest.mark.parametrize("committed", [False, True])
async def test_an_error_of_the_commit_leaves_it_unknown(store, scripted, committed):
    await add(store, event("e", "k"))
    hand = await Hand(store).take()
    records = await hand.read()
    await scripted(sqlite3.SQLITE_IOERR, committed=committed)
    with pytest.raises(StoreUnknownError, match="disk I/O error"):
        await hand.settle(done=records)
    assert len(await hand.read()) == (0 if committed else 1)
    hand.held = await store.retake("main", "anna", hand.held, 5.0)
    assert await hand.settle(done=records) == set(range(64))
    assert (await store.get("e")).state == State.DONE


@pytest.mark.promise("L5")
async def test_a_busy_commit_has_not_happened(store, scripted):
    await add(store, event("e", "k"))
    hand = await Hand(store).take()
    await scripted(sqlite3.SQLITE_BUSY)
    with pytest.raises(StoreRetryableError):
        await hand.settle(done=await hand.read())
    assert names(await hand.read()) == ["e"]
    assert await hand.settle(done=await hand.read()) == set(range(64))


async def test_a_full_disk_is_an_error_and_the_store_goes_on(store):
    await add(store, event("e", "k"))
    hand = await Hand(store).take()
    (record,) = await hand.read()

    def fill(db):
        (pages,) = db.connection.execute("PRAGMA page_count").fetchone()
        db.connection.execute(f"PRAGMA max_page_count = {pages}")

    await store._write.call(fill)
    with pytest.raises(StoreError, match="full") as caught:
        await store.bury(["e"], "x" * 1_000_000)
        for n in range(1_000):
            await store.take(f"stream-{n}", "anna", range(64), 5.0)
    assert not isinstance(caught.value, StoreRetryableError | StoreUnknownError)
    await store.take("main", "bert", [record.lane], 5.0)
    assert await store.identity()  # the next call has a new connection, without the limit


async def test_an_error_inside_a_change_rolls_it_back(store):
    await add(store, event("e", "k"))

    def fail(db):
        with db.change():
            db.connection.execute("DELETE FROM postroom_outbox")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store._write.call(fail)
    assert names(await store.find(Filter())) == ["e"]
    await store.take("main", "anna", [1], 5.0)


async def test_a_cancelled_call_still_ends_whole(store):
    await add(store, event("e", "k"))
    hand = await Hand(store).take()
    records = await hand.read()
    inside, go = threading.Event(), threading.Event()

    def settle(db):
        with db.change():
            db.run(
                "settle_delete",
                names=f'{{"{records[0].seq}":"e"}}',
                stream="main",
                lanes=json.dumps(list(ALL)),
            )
            inside.set()
            go.wait(20)

    task = asyncio.ensure_future(store._write.call(settle))
    await asyncio.to_thread(inside.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go.set()
    await store.take("main", "bert", [1], 5.0)  # behind it, in the same thread
    assert await store.get("e") is None


# -- members and waking ---------------------------------------------------------------------------
async def test_members_long_gone_are_forgotten(store):
    await store.heartbeat("main", Member("old", healthy=True), -20.0, {})
    await store.heartbeat("main", Member("recent", healthy=True), -5.0, {})
    await store.heartbeat("main", Member("anna", healthy=True), 1.0, {})

    def owners(db):
        return [row[0] for row in db.connection.execute("SELECT owner FROM postroom_member")]

    assert sorted(await store._look.call(owners)) == ["anna", "recent"]
    with closing(sqlite3.connect(store.path)) as other, other:
        other.execute(  # before the clock was set back by more than ten of its leases
            "UPDATE postroom_member SET until = until + 60 * length WHERE owner = 'recent'"
        )
    await store.heartbeat("main", Member("anna", healthy=True), 1.0, {})
    assert await store._look.call(owners) == ["anna"]


async def test_a_commit_between_two_waits_is_heard(store):
    while await store.wait_for_change(0):
        pass
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("CREATE TABLE business (id)")
    assert await store.wait_for_change(0) is True
    assert await store.wait_for_change(0) is False


async def test_two_who_wait_are_both_woken(store):
    while await store.wait_for_change(0):
        pass
    waiting = [asyncio.ensure_future(store.wait_for_change(20)) for _ in range(2)]
    await asyncio.sleep(0)
    await add(store, Event("t"))
    assert await asyncio.gather(*waiting) == [True, True]
