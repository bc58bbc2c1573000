"""The PostgreSQL store's transactions for handlers (H2, H3)."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.rows import dict_row

from postroom.errors import StoreError, StoreRetryableError, StoreUnknownError, TransactionError
from postroom.outbox import Outbox, SyncOutbox
from postroom.testing.store.tools import Hand, event, names
from postroom.transaction import Acceptance, Standing
from postroom.transactions import resolve
from tests.scenario.postgres_place import opened, own_schema
from tests.servers.proxy import Proxy


@pytest.fixture
def url(postgres18_url):
    with own_schema(postgres18_url) as url:
        yield url


@pytest.fixture
async def store(url):
    async with opened(url) as store:
        yield store


def begin(store, kind):
    """A handler's transaction of either kind, as one of them."""

    class Both:
        async def __aenter__(self):
            if kind == "async":
                self.block = store.transaction()
                self.tx = await self.block.__aenter__()
            else:
                self.block = store.sync_transaction()
                self.tx = self.block.__enter__()
            return self

        async def __aexit__(self, *error):
            if kind == "async":
                return await self.block.__aexit__(*error)
            return self.block.__exit__(*error)

        async def add(self, name):
            if kind == "async":
                await Outbox().add(self.tx, event(name))
            else:
                SyncOutbox().add(self.tx, event(name))

        async def run(self, sql):
            result = self.tx.execute(sql)
            return await result if kind == "async" else result

        async def end(self):
            result = self.tx.commit()
            return await result if kind == "async" else result

    return Both()


kinds = pytest.mark.parametrize("kind", ["async", "sync"])


@kinds
@pytest.mark.promise("G6", "H3")
async def test_it_commits_at_its_end_and_not_before(store, kind):
    async with begin(store, kind) as handler:
        await handler.add("e")
        assert await Hand(store).read() == []
    assert names(await Hand(store).read()) == ["e"]


@kinds
@pytest.mark.promise("G6", "H3")
async def test_it_rolls_back_on_any_error(store, kind):
    for error in (ZeroDivisionError, asyncio.CancelledError):
        with pytest.raises(error):
            async with begin(store, kind) as handler:
                await handler.add("lost")
                raise error
    assert await Hand(store).read() == []


@kinds
@pytest.mark.promise("G6")
async def test_a_handler_that_ends_it_is_told(store, kind):
    with pytest.raises(TransactionError, match=r"must not call commit\(\)"):
        async with begin(store, kind) as handler:
            await handler.add("parted")
            await handler.end()


@kinds
@pytest.mark.promise("G6")
async def test_a_handler_that_hides_a_failed_statement_is_told(store, kind):
    """PostgreSQL would answer the COMMIT with a rollback, and the driver would say nothing."""
    with pytest.raises(TransactionError, match="use a savepoint"):
        async with begin(store, kind) as handler:
            await handler.add("lost")
            with pytest.raises(psycopg.errors.DivisionByZero):
                await handler.run("SELECT 1 / 0")
    assert await Hand(store).read() == []


@kinds
async def test_an_error_of_the_handlers_own_stays_the_drivers(store, kind):
    with pytest.raises(psycopg.errors.UndefinedTable):
        async with begin(store, kind) as handler:
            await handler.run("SELECT * FROM nowhere")


@kinds
@pytest.mark.promise("L5")
async def test_a_deferred_constraint_fails_the_commit(url, store, kind):
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE orders (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(StoreError, match="23505"):
        async with begin(store, kind) as handler:
            await handler.add("lost")
            await handler.run("INSERT INTO orders VALUES (1), (1)")
    assert await Hand(store).read() == []


@kinds
async def test_what_one_handler_sets_on_the_object_is_gone_for_the_next(store, kind):
    async with begin(store, kind) as handler:
        handler.tx.row_factory = dict_row
    async with begin(store, kind) as handler:
        cursor = await handler.run("SELECT 1")
        row = await cursor.fetchone() if kind == "async" else cursor.fetchone()
    assert row == (1,)


@pytest.mark.promise("H3")
async def test_threads_have_connections_of_their_own(store):
    together = threading.Barrier(4)

    def handle(name):
        with store.sync_transaction() as tx:
            together.wait(10)
            SyncOutbox().add(tx, event(name))

    async with asyncio.timeout(20):
        await asyncio.gather(*(asyncio.to_thread(handle, f"e{n}") for n in range(4)))
    assert len(await Hand(store).read()) == 4


@pytest.mark.promise("L1")
async def test_slow_handlers_do_not_keep_a_relay_from_its_connections(url):
    async with opened(url + "&pool_size=2") as store, store.transaction(), store.transaction():
        async with asyncio.timeout(10):
            assert len(await store.take("main", "anna", range(64), 60)) == 64


@kinds
@pytest.mark.req("S1.4")
async def test_connections_that_died_while_they_rested_are_passed_over(url, store, kind):
    """PostgreSQL was started again: the first handler after it works, and not the tenth."""
    async with AsyncExitStack() as stack:
        rested = [await stack.enter_async_context(begin(store, kind)) for _ in range(5)]
        pids = [handler.tx.info.backend_pid for handler in rested]
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(pid, 5000) FROM unnest(%s::int[]) pid", [pids])
    async with begin(store, kind) as handler:
        await handler.add("e")
        assert handler.tx.info.backend_pid not in pids
    assert names(await Hand(store).read()) == ["e"]


@pytest.mark.promise("H3")
async def test_a_cancelled_handler_does_not_begin_on_another_connection(url, store):
    """Its connection is cut while psycopg cancels: it raises that error, not the cancellation."""
    begun = []

    async def handle():
        async with through.transaction():
            begun.append(True)

    with Proxy(urlsplit(url).port) as proxy:
        async with opened(proxy.url_for(url), migrate=False) as through:
            async with through.transaction():
                pass
            proxy.swallow("replies")
            handling = asyncio.create_task(handle())
            await asyncio.to_thread(proxy.wait_swallowed)
            handling.cancel()
            await asyncio.sleep(0)  # the cancellation reaches psycopg before the cut does
            proxy.heal()
            with pytest.raises((StoreError, asyncio.CancelledError)):
                await handling
    assert begun == []


async def test_a_handler_that_gets_no_connection_has_done_nothing(url):
    async with opened(url + "&pool_size=2&connect_seconds=0.2") as store:
        async with store.transaction(), store.transaction():
            with pytest.raises(StoreRetryableError, match="no connection"):
                async with store.transaction():
                    pass
        with store.sync_transaction(), store.sync_transaction():
            with pytest.raises(StoreRetryableError, match="no connection"):
                with store.sync_transaction():
                    pass


@kinds
@pytest.mark.promise("L5", "G6")
async def test_a_commit_whose_answer_is_lost_is_unknown(url, store, kind):
    with Proxy(urlsplit(url).port) as proxy:
        async with opened(proxy.url_for(url), migrate=False) as through:
            with pytest.raises(StoreUnknownError):
                async with begin(through, kind) as handler:
                    await handler.add("e")
                    proxy.cut()
            async with begin(through, kind) as handler:
                await handler.add("next")
    assert names(await Hand(store).read()) == ["next"]


async def test_the_check_before_a_commit_is_planned_a_few_times_only(url, store):
    """With arrays the server planned it for every event, which cost more than the check itself."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO postroom_inbox (consumer, id, type, state, received_at, processed_at) "
            "SELECT 'c', n::text, 't', 'done', now(), now() FROM generate_series(1, 2000) AS n"
        )
        connection.execute("ANALYZE postroom_inbox")
    for n in range(15):
        accepted = Acceptance("c", f"new-{n}", "t", None)
        async with store.transaction() as tx:
            adapter = resolve(tx, prefix="postroom_")
            assert await adapter.accept(accepted)
            assert await adapter.hold([])
            assert await adapter.standing([accepted]) is Standing.HELD
            found = await tx.execute(
                "SELECT custom_plans, generic_plans, pg_stat_get_xact_numscans"
                "(CAST('postroom_inbox' AS regclass)) FROM pg_prepared_statements "
                "WHERE statement LIKE '%count(*)%postroom_inbox%'"
            )
            plans = await found.fetchall()
    ((custom, generic, whole_reads),) = plans
    assert custom <= 5
    assert generic >= 1
    assert whole_reads == 0
