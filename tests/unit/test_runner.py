"""Several relays in one process: they stop together, and one that breaks takes the others along."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from postroom.brokers import MemoryBroker
from postroom.bus import Bus
from postroom.engine.consumer import Consumer
from postroom.engine.handlers.handlers import Handlers
from postroom.engine.relay.relay import Relay
from postroom.engine.runner import run_all
from postroom.errors import ConfigError, SchemaError, StoreUnknownError
from postroom.event import Event
from postroom.outbox import Outbox
from postroom.sources.memory import MemorySource
from postroom.stores.memory import MemoryStore
from postroom.testing.store.tools import until
from tests.sim.loop import virtual_time


@pytest.fixture
def relays():
    store = MemoryStore()
    return [Relay(store, MemoryBroker(), stream=name) for name in ("main", "mail")]


async def running(relays):
    async def all_run():
        return all(relay.is_running for relay in relays)

    await until(all_run)


@pytest.mark.req("S4.3")
async def test_they_deliver_and_stop_on_a_signal(relays):
    told = []
    task = asyncio.create_task(
        run_all(
            relays, on_stop=lambda by_signal: told.append("stopping" if by_signal else "crashed")
        )
    )
    await running(relays)
    async with relays[0].store.begin() as tx:
        await Outbox().add_many(tx, [Event("a", id="a"), Event("b", id="b", stream="mail")])

    async def sent():
        return all(relay.broker.messages for relay in relays)

    await until(sent)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task is True
    assert told == ["stopping"]
    assert [relay.is_running for relay in relays] == [False, False]
    assert [relay.counts.done for relay in relays] == [1, 1]


async def test_a_second_signal_stops_at_once(relays):
    class Stubborn(Relay):
        async def stop(self):
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()

    stubborn = Stubborn(relays[0].store, MemoryBroker(), stream="third")
    task = asyncio.create_task(run_all([*relays, stubborn]))
    await running([*relays, stubborn])
    os.kill(os.getpid(), signal.SIGINT)
    assert await task is False
    assert not stubborn.is_running


async def test_one_that_crashes_takes_the_others_with_it(relays):
    task = asyncio.create_task(run_all(relays))
    await running(relays)
    relays[1]._broke_down(RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        await task
    assert [relay.is_running for relay in relays] == [False, False]


async def test_tables_that_are_missing_end_all(relays):
    class Bare(MemoryStore):
        async def open(self):
            raise SchemaError("the tables are missing")

    bare = Relay(Bare(), MemoryBroker(), stream="third")
    with pytest.raises(SchemaError):
        await run_all([*relays, bare])
    assert [relay.is_running for relay in relays] == [False, False]


def test_it_needs_the_main_thread(relays):
    found = []

    def run():
        try:
            asyncio.run(run_all([]))
        except ConfigError as error:
            found.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "needs the main thread" in found[0]


@pytest.mark.req("S1.8")
async def test_a_signal_ends_the_waiting_for_a_store_that_is_away(relays):
    class Away(MemoryStore):
        tries = 0

        async def open(self):
            self.tries += 1
            raise StoreUnknownError("nobody answers")

    store = Away()
    task = asyncio.create_task(run_all([*relays, Relay(store, MemoryBroker())]))

    async def tried():
        return store.tries > 1 and all(relay.is_running for relay in relays)

    await until(tried)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task is True
    assert [relay.is_running for relay in relays] == [False, False]


def bus_on(store):
    bus = Bus()
    bus.module("orders", store)
    return bus


async def test_a_bus_runs_until_a_signal_and_raises_what_broke_it_down():
    bus = bus_on(MemoryStore())
    task = asyncio.create_task(bus.run())
    await running([bus])
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task is True
    task = asyncio.create_task(bus.run())
    await running([bus])
    bus._relays[0]._broke_down(RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        await task
    assert not bus.is_running


class Gone(MemoryStore):
    """Cannot be opened; counts how often somebody tries."""

    tries = 0

    async def open(self):
        self.tries += 1
        raise StoreUnknownError("nobody answers")


@pytest.mark.req("S1.8")
@pytest.mark.parametrize(
    "make",
    [
        lambda store: Relay(store, MemoryBroker()),
        lambda store: Consumer(MemorySource(), store, Handlers(name="payments")),
        lambda store: bus_on(store),
    ],
    ids=["relay", "consumer", "bus"],
)
@pytest.mark.promise("F2")
def test_a_store_that_is_away_for_long_is_asked_ever_less_often(make):
    async def story():
        store, asked = Gone(), asyncio.Event()
        waiting = asyncio.create_task(make(store).start_patiently(asked))
        await asyncio.sleep(600)
        asked.set()
        await waiting
        return store.tries

    with virtual_time() as loop:
        tries = loop.run_until_complete(story())
    assert 60 <= tries <= 70  # up to ten seconds apart


async def test_who_is_cancelled_leaves_nothing_behind(relays):
    task = asyncio.create_task(run_all(relays))
    await running(relays)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [relay.is_running for relay in relays] == [False, False]
    assert asyncio.all_tasks() == {asyncio.current_task()}
