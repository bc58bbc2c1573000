"""The MySQL store's transactions for handlers, on MariaDB."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from postroom.errors import (
    MissingExtraError,
    StoreError,
    StoreRetryableError,
    StoreUnknownError,
    TransactionError,
)
from postroom.lookup import Filter
from postroom.outbox import Outbox, SyncOutbox
from postroom.testing.store.tools import event
from tests.contract.mysql_database import own_database
from tests.scenario.place import until
from tests.servers.proxy import Proxy


@pytest.fixture
def database(mariadb_url):
    with own_database(mariadb_url) as database:
        yield database


@pytest.fixture
async def store(database):
    async with database.store() as store:
        yield store


async def ids(store):
    return [record.id for record in await store.find(Filter())]


@pytest.mark.promise("H3")
async def test_it_is_an_asyncmy_connection_in_a_transaction(store):
    import asyncmy

    async with store.transaction() as tx:
        assert isinstance(tx, asyncmy.Connection)
        assert tx.get_transaction_status()
        await Outbox().add(tx, event("one"))
        assert await ids(store) == []
    assert await ids(store) == ["one"]


@pytest.mark.promise("H3")
async def test_connections_are_used_again(store):
    seen = set()
    for n in range(4):
        async with store.transaction() as tx:
            seen.add(tx.thread_id())
            await Outbox().add(tx, event(f"e{n}"))
    assert len(seen) == 1


@pytest.mark.promise("H3")
async def test_a_connection_that_the_server_has_ended_is_replaced(database, store):
    async with store.transaction() as tx:
        first = tx.thread_id()
    database.run(f"KILL {first}")
    async with store.transaction() as tx:
        assert tx.thread_id() != first
        await Outbox().add(tx, event("e"))
    assert await ids(store) == ["e"]


@pytest.mark.promise("G6", "H3")
async def test_who_commits_by_itself_is_told_so(store):
    with pytest.raises(TransactionError, match="ended its own transaction"):
        async with store.transaction() as tx:
            await Outbox().add(tx, event("e"))
            await tx.commit()
    assert await ids(store) == ["e"]


@pytest.mark.promise("I2")
async def test_a_deadlock_in_a_handler_is_a_conflict(database, store):
    """Two handlers that lock two rows in opposite orders: one is told to come again."""
    database.run(
        "CREATE TABLE stock (id INT PRIMARY KEY, n INT)", "INSERT INTO stock VALUES (1, 0), (2, 0)"
    )
    both = asyncio.Barrier(2)

    async def move(first, second):
        async with store.transaction() as tx:
            async with tx.cursor() as cursor:
                await cursor.execute(f"UPDATE stock SET n = n + 1 WHERE id = {first}")
                await both.wait()
                await cursor.execute(f"UPDATE stock SET n = n + 1 WHERE id = {second}")

    found = await asyncio.gather(move(1, 2), move(2, 1), return_exceptions=True)
    (conflict,) = [error for error in found if error is not None]
    assert isinstance(conflict, StoreRetryableError)
    assert database.run("SELECT n FROM stock") == [(1,), (1,)]


@pytest.mark.promise("I2")
async def test_a_deadlock_in_a_thread_is_a_conflict(database, store):
    database.run(
        "CREATE TABLE stock (id INT PRIMARY KEY, n INT)", "INSERT INTO stock VALUES (1, 0), (2, 0)"
    )
    both = threading.Barrier(2)

    def move(first, second):
        with store.sync_transaction() as tx, tx.cursor() as cursor:
            cursor.execute(f"UPDATE stock SET n = n + 1 WHERE id = {first}")
            both.wait(60)
            cursor.execute(f"UPDATE stock SET n = n + 1 WHERE id = {second}")

    moves = [asyncio.to_thread(move, *order) for order in ((1, 2), (2, 1))]
    found = await asyncio.gather(*moves, return_exceptions=True)
    (conflict,) = [error for error in found if error is not None]
    assert isinstance(conflict, StoreRetryableError)
    assert database.run("SELECT n FROM stock") == [(1,), (1,)]


async def test_connections_that_come_back_after_the_close_are_ended(database, store):
    async with store.transaction() as tx:
        with store.sync_transaction() as sync_tx:
            numbers = f"({tx.thread_id()}, {sync_tx.thread_id()})"
            await store.close()
            SyncOutbox().add(sync_tx, event("sync"))
        await Outbox().add(tx, event("async"))
    alive = f"SELECT id FROM information_schema.processlist WHERE id IN {numbers}"
    await until(lambda: not database.run(alive))


async def test_a_cancelled_handler_leaves_nothing_and_costs_its_connection(database, store):
    async def hang():
        async with store.transaction() as tx:
            await Outbox().add(tx, event("never"))
            async with tx.cursor() as cursor:
                await cursor.execute("SELECT SLEEP(60)")

    task = asyncio.create_task(hang())
    await until(
        lambda: database.run(
            "SELECT 1 FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP(60)%'"
        )
    )
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await ids(store) == []
    async with store.transaction() as tx:
        await Outbox().add(tx, event("next"))
    assert await ids(store) == ["next"]


@pytest.mark.promise("G6")
async def test_a_commit_whose_answer_is_lost_is_unknown(database):
    with Proxy(database.server["port"]) as proxy:
        async with database.store(url=proxy.url_for(database.url)) as store:
            with pytest.raises(StoreUnknownError):
                async with store.transaction() as tx:
                    await Outbox().add(tx, event("e"))
                    proxy.cut_after(0, "replies")


async def test_a_server_that_is_away_opens_nothing(database):
    with Proxy(database.server["port"]) as proxy:
        async with database.store(url=proxy.url_for(database.url)) as store:
            proxy.refuse()
            with pytest.raises(StoreError):
                async with store.transaction():
                    raise AssertionError("not reached")
            with pytest.raises(StoreError):
                await asyncio.to_thread(store.sync_transaction().__enter__)


# -- in a thread ----------------------------------------------------------------------------------
@pytest.mark.promise("H3")
async def test_threads_get_pymysql(store):
    def work(number):
        with store.sync_transaction() as tx:
            SyncOutbox().add(tx, event(f"e{number}"))
            return tx.thread_id()

    threads = await asyncio.gather(*(asyncio.to_thread(work, n) for n in range(5)))
    assert sorted(await ids(store)) == [f"e{n}" for n in range(5)]
    again = await asyncio.to_thread(work, 5)
    assert again in threads


@pytest.mark.promise("H3", "G6")
async def test_a_thread_rolls_back_on_an_error_and_may_not_commit_itself(store):
    def fail():
        with store.sync_transaction() as tx:
            SyncOutbox().add(tx, event("lost"))
            raise ValueError

    def commit():
        with store.sync_transaction() as tx:
            SyncOutbox().add(tx, event("early"))
            tx.commit()

    with pytest.raises(ValueError):
        await asyncio.to_thread(fail)
    assert await ids(store) == []
    with pytest.raises(TransactionError, match="ended its own transaction"):
        await asyncio.to_thread(commit)


async def test_without_pymysql_the_extra_is_named(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(
        MissingExtraError, match=r"PyMySQL is not installed: pip install 'postroom\[mysql\]'"
    ):
        with store.sync_transaction():
            pass
