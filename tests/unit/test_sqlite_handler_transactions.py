"""A handler's connection never keeps the write lock when its handler has gone."""

import asyncio
import sqlite3

import pytest

from postroom.errors import TransactionEndedError
from postroom.stores.sqlite.handler_transactions import HandlerTransactions


@pytest.mark.promise("H4")
async def test_a_begin_that_nobody_waits_for_any_more_leaves_no_lock(tmp_path):
    """The time limit cancels once, and once more if that hangs: BEGIN, still waiting for another
    writer, came through afterwards on a connection that lay idle. Nobody could write any more."""
    path = tmp_path / "app.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    handler_transactions = HandlerTransactions(f"file:{path}", 30.0)

    async def handle():
        async with handler_transactions.transaction():
            pytest.fail("the lock is another's")

    handling = asyncio.create_task(handle())
    for _ in range(2):
        done, _ = await asyncio.wait({handling}, timeout=0.2)
        assert not done
        handling.cancel()
    await asyncio.wait({handling})
    assert handling.cancelled()
    other.execute("COMMIT")  # now BEGIN comes through
    async with handler_transactions.transaction():
        pass
    other.execute("BEGIN IMMEDIATE")
    other.close()
    await handler_transactions.close()


async def test_a_connection_is_used_again_after_an_error_of_the_handler(tmp_path):
    handler_transactions = HandlerTransactions(f"file:{tmp_path / 'app.db'}", 30.0)
    with pytest.raises(ZeroDivisionError):
        async with handler_transactions.transaction() as first:
            1 / 0  # noqa: B018
    async with handler_transactions.transaction() as second:
        assert second is first
    await handler_transactions.close()


@pytest.fixture
async def handler_transactions(tmp_path):
    handler_transactions = HandlerTransactions(f"file:{tmp_path / 'app.db'}", 30.0)
    yield handler_transactions
    await handler_transactions.close()


async def test_what_a_handler_makes_of_rows_is_not_the_next_ones(handler_transactions):
    seen = []
    for _ in range(2):
        async with handler_transactions.transaction() as tx:
            seen.append(tx.row_factory)
            tx.row_factory = sqlite3.Row
        with handler_transactions.sync_transaction() as tx:
            seen.append(tx.row_factory)
            tx.row_factory = sqlite3.Row
    assert seen == [None] * 4


@pytest.mark.promise("H3")
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_handler_that_ends_its_transaction_is_told(handler_transactions, end):
    with pytest.raises(TransactionEndedError):
        async with handler_transactions.transaction() as tx:
            await getattr(tx, end)()
    with pytest.raises(TransactionEndedError), handler_transactions.sync_transaction() as tx:
        getattr(tx, end)()
