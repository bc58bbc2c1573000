"""How relays on PostgreSQL are woken: a NOTIFY after the commit, heard on a connection of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from urllib.parse import urlsplit

import psycopg
import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.observer import Woken
from postroom.outbox import Outbox
from postroom.store import Capabilities
from postroom.stores.postgres import PostgresNotifier, PostgresStore
from postroom.testing.store.tools import FAR, event, patience
from tests.scenario.place import Notes, until
from tests.scenario.postgres_place import opened, own_schema, writing
from tests.servers.proxy import Proxy


@pytest.fixture
def url(postgres18_url):
    with own_schema(postgres18_url) as url:
        # A prefix of its own is a channel of its own: all tests share one database.
        prefix = url.rpartition("%3D")[2]
        yield f"{url}&prefix={prefix}_"


@pytest.fixture
async def store(url):
    async with opened(url) as store:
        yield store


@pytest.fixture
def notifier(url):
    made = PostgresNotifier(url)
    yield made
    made.close()


def plain(url):
    """The URL without options that are not libpq's."""
    return url.partition("&prefix")[0]


def outbox_of(url, **more):
    return Outbox(prefix=url.partition("&prefix=")[2], **more)


@pytest.fixture
async def ear(url, store):
    """Another process' ear: how many NOTIFYs there were."""
    connection = await psycopg.AsyncConnection.connect(plain(url), autocommit=True)
    await connection.execute(f'LISTEN "{store.settings.channel}"')

    async def heard(*, within=0.0, at_most=10_000):
        return len([n async for n in connection.notifies(timeout=within, stop_after=at_most)])

    yield heard
    await connection.close()


async def silence(store):
    while await store.wait_for_change(0.0):
        pass


async def test_a_kick_in_another_process_ends_the_wait(store, notifier):
    await silence(store)
    waiting = asyncio.create_task(store.wait_for_change(FAR))
    await asyncio.sleep(0)
    notifier.notify(["main"])
    async with patience():
        assert await waiting is True


async def test_all_who_wait_are_woken(store, notifier):
    await silence(store)
    waiting = [asyncio.create_task(store.wait_for_change(FAR)) for _ in range(3)]
    await asyncio.sleep(0)
    notifier.notify(None)
    async with patience():
        assert await asyncio.gather(*waiting) == [True] * 3


async def test_many_kicks_are_few_notifies(notifier, ear):
    for _ in range(20_000):
        notifier.notify(["main"])
    assert await ear(within=20.0, at_most=1) >= 1
    await asyncio.to_thread(notifier.close)
    assert await ear(within=0.0) < 500


async def test_the_last_kick_is_always_told(notifier, ear):
    for _ in range(20):
        notifier.notify()
        assert await ear(within=20.0, at_most=1) >= 1


async def test_a_kick_while_the_server_is_away_is_told_when_it_is_back(
    url, store, ear, caplog, monkeypatch
):
    from postroom.stores.postgres import notifier as module

    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.05)
    with Proxy(urlsplit(url).port) as proxy:
        notifier = PostgresNotifier(proxy.url_for(url))
        proxy.refuse()
        with caplog.at_level(logging.WARNING, module.__name__):
            notifier.notify()
            await until(lambda: caplog.records)
            notifier.notify()
        proxy.accept()
        assert await ear(within=20.0, at_most=1) == 1
        assert [record.getMessage()[:26] for record in caplog.records] == [
            "cannot notify other relays"
        ]
        proxy.cut()
        notifier.notify()
        assert await ear(within=20.0, at_most=1) == 1
        notifier.close()


async def test_closing_with_the_server_away_takes_no_time(url):
    with Proxy(urlsplit(url).port) as proxy:
        proxy.refuse()
        notifier = PostgresNotifier(proxy.url_for(url))
        notifier.notify()
        async with asyncio.timeout(5):
            await asyncio.to_thread(notifier.close)
        notifier.notify()  # does nothing
        notifier.close()


async def test_a_notifier_works_in_a_forked_child_too(url, notifier, ear):
    notifier.notify()
    assert await ear(within=20.0, at_most=1) == 1

    def forked():
        child = os.fork()
        if child == 0:
            notifier.notify()
            notifier.close()
            os._exit(0)
        os.waitpid(child, 0)

    with pytest.warns(DeprecationWarning) if hasattr(os, "process_cpu_count") else _nothing():
        await asyncio.to_thread(forked)
    assert await ear(within=20.0, at_most=1) == 1
    notifier.notify()
    assert await ear(within=20.0, at_most=1) == 1


class _nothing:
    def __enter__(self):
        return None

    def __exit__(self, *_):
        return None


async def test_threads_may_share_a_notifier(notifier, ear):
    threads = [threading.Thread(target=notifier.notify) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert await ear(within=20.0, at_most=1) >= 1


async def test_a_handlers_commit_tells_others_only_if_it_added_events(url, store, ear):
    async with store.transaction() as tx:
        await tx.execute("SELECT 1")
    with store.sync_transaction() as tx:
        tx.execute("SELECT 1")
    async with store.transaction() as tx:
        await outbox_of(url).add(tx, event("e"))
    assert await ear(within=20.0, at_most=1) == 1
    assert await ear(within=0.05) == 0


async def test_the_listener_finds_its_way_back(url, store, notifier):
    await silence(store)
    waiting = asyncio.create_task(store.wait_for_change(FAR))
    await asyncio.sleep(0)
    with psycopg.connect(plain(url), autocommit=True) as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE %s",
            (f'LISTEN "{store.settings.channel}"',),
        ).fetchall()
    assert ended == [(True,)]
    async with patience():
        assert await waiting is True  # something may have been missed
        await silence(store)
        waiting = asyncio.create_task(store.wait_for_change(FAR))
        await asyncio.sleep(0)
        notifier.notify()
        assert await waiting is True


async def test_without_a_server_a_wait_ends_with_its_time(url, store):
    with Proxy(urlsplit(url).port) as proxy:
        async with opened(proxy.url_for(url), migrate=False) as away:
            await silence(away)
            proxy.refuse()
            async with patience():
                assert await away.wait_for_change(0.3) is False
                proxy.accept()
                assert await away.wait_for_change(FAR) is True


async def test_an_idle_relay_hears_of_a_commit_long_before_its_poll(url, store):
    """The writer's commit holds no NOTIFY; the kick that follows it does."""
    broker, notes = MemoryBroker(), Notes()
    notifier = PostgresNotifier(url)
    relay = Relay(url, broker, poll_seconds=60.0, observers=[notes])
    async with relay:
        await until(lambda: len([h for h in relay._context.keeper.held]) == 64)
        await asyncio.sleep(0)
        async with writing(plain(url)) as connection:
            await outbox_of(url).add(connection, event("e", "k"))
        notifier.notify(["main"])
        await until(lambda: broker.messages)
        await until(lambda: relay.counts.done == 1)
    assert "change" in {woke.by for woke in notes.of(Woken)}
    notifier.close()


def test_listening_can_be_turned_off(url):
    quiet = PostgresStore(url + "&notify=off")
    assert quiet.capabilities == Capabilities(notify=False, adopts=True)
    assert PostgresStore(url).capabilities == Capabilities(adopts=True)
