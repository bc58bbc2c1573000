"""The life cycle that a relay, a consumer and a bus share."""

from __future__ import annotations

import asyncio
import logging

import pytest

from postroom import Bus, Consumer, Event, Handlers, Outbox, Relay
from postroom.brokers import MemoryBroker
from postroom.model.envelope import ID, TYPE
from postroom.model.incoming import Incoming
from postroom.observer import Alarm
from postroom.sources.memory import MemoryQueue, MemorySource
from postroom.stores.memory import MemoryStore
from postroom.testing.store.tools import until

KINDS = ["relay", "consumer", "bus"]


class Faulty(MemoryStore):
    """Its next `stage` has a bug, once that is switched on; its `open` hangs, if asked to."""

    def __init__(self):
        super().__init__()
        self.bug = asyncio.Event()
        self.hangs = self.reached = None

    async def open(self):
        if self.hangs is not None:
            self.reached.set()
            await self.hangs.wait()
        await super().open()

    async def stage(self, *args):
        if self.bug.is_set():
            self.bug.clear()
            raise ZeroDivisionError("a bug")
        return await super().stage(*args)


class Notes:
    def __init__(self):
        self.alarms = []

    def observe(self, fact):
        if isinstance(fact, Alarm):
            self.alarms.append((fact.stream, fact.about))


def make(kind, store, *, observers=(), handlers=None, queue=None):
    quick = {"lease_seconds": 5.0, "observers": observers}
    if kind == "relay":
        return Relay(store, handlers or MemoryBroker(), poll_seconds=0.01, **quick)
    if kind == "consumer":
        source = MemorySource(queue)
        return Consumer(source, store, handlers or Handlers(name="payments"), **quick)
    bus = Bus(poll_seconds=0.01, **quick)
    bus.module("orders", store)
    bus.module("billing", MemoryStore())
    return bus


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.mark.req("S4.3")
async def test_a_service_that_crashes_stops_the_whole_and_is_reported_once(kind, caplog):
    store, notes, told = Faulty(), Notes(), []
    one = make(kind, store, observers=[notes])
    one.on_crash = told.append
    await one.start()
    assert one.is_running
    store.bug.set()
    with pytest.raises(ZeroDivisionError, match="a bug"):
        await asyncio.wait_for(one.wait(), 10)
    assert not one.is_running
    assert told == [one.error]
    ((crashed, about),) = notes.alarms
    assert about == "the relay crashed"
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [(e.getMessage(), e.exc_info[1]) for e in errors] == [
        (f"the relay of stream {crashed} crashed and stops", one.error)
    ]
    async with one:  # it can be started again
        assert one.is_running
        assert one.error is None


async def test_the_healthy_relays_of_a_broken_bus_stop_gracefully():
    store, left = Faulty(), []
    healthy = MemoryStore()
    leave = healthy.leave

    async def noted(stream, owner):
        left.append(stream)
        await leave(stream, owner)

    healthy.leave = noted
    bus = Bus(poll_seconds=0.01, lease_seconds=5.0)
    bus.module("orders", store)
    bus.module("billing", healthy)
    await bus.start()
    store.bug.set()
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(bus.wait(), 10)
    assert sorted(left) == ["inbox.billing", "main"]
    assert (await healthy.leases("main")).members == ()


async def test_a_bus_does_not_start_if_a_relay_crashes_meanwhile():
    crashing, slow = Faulty(), Faulty()
    crashing.bug.set()
    slow.hangs, slow.reached = asyncio.Event(), asyncio.Event()
    bus = Bus(poll_seconds=0.01, lease_seconds=5.0)
    bus.module("orders", crashing)
    bus.module("billing", slow)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(bus.start(), 10)
    assert not bus.is_running
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_on_crash_that_fails_stops_nothing(kind, caplog):
    store = Faulty()
    one = make(kind, store)
    one.on_crash = lambda _: 1 / 0
    await one.start()
    store.bug.set()
    with pytest.raises(ZeroDivisionError, match="a bug"):
        await asyncio.wait_for(one.wait(), 10)
    assert sum("on_crash of" in record.getMessage() for record in caplog.records) == 1


async def test_a_receive_that_a_cancelled_call_ends_is_a_crash():
    """The consumer seemed to run, and received nothing."""
    notes = Notes()
    consumer = make("consumer", MemoryStore(), observers=[notes])

    async def cancelled():
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    consumer.source.receive = cancelled
    await consumer.start()
    with pytest.raises(RuntimeError, match="ended by a cancelled call"):
        await asyncio.wait_for(consumer.wait(), 10)
    assert notes.alarms == [("inbox.payments", "the consumer crashed")]


async def test_a_kill_ends_a_start_that_hangs(kind):
    store = Faulty()
    store.hangs, store.reached = asyncio.Event(), asyncio.Event()
    one = make(kind, store)
    starting = asyncio.create_task(one.start())
    await store.reached.wait()
    await asyncio.wait_for(one.kill(), 10)
    await asyncio.wait_for(starting, 10)
    assert not one.is_running
    await one.wait()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    store.hangs = None
    async with one:
        assert one.is_running


async def busy(kind):
    """Start one whose handler hangs; return it and the queue of the consumer."""
    store, queue, reached = MemoryStore(), MemoryQueue(), asyncio.Event()
    handlers = Handlers(name="payments", transaction=False)
    one = make(kind, store, handlers=handlers, queue=queue)

    async def handle(event, tx):
        reached.set()
        await asyncio.Event().wait()

    (one.module("billing") if kind == "bus" else handlers).on("order.created")(handle)
    queue.send(Incoming("orders", b"{}", {ID: "m-1", TYPE: "order.created"}))
    async with store.begin() as tx:
        await Outbox().add(tx, Event("order.created", key="o-1"))
    await one.start()
    await asyncio.wait_for(reached.wait(), 10)
    return one, queue


async def test_a_kill_shortens_a_stop(kind):
    one, queue = await busy(kind)
    stopping = asyncio.create_task(one.stop())

    async def has_begun():
        return one._stopping

    await until(has_begun)
    assert one.is_running
    await asyncio.wait_for(one.kill(), 10)  # stop_seconds is longer
    await stopping
    assert not one.is_running
    assert not queue.acked
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_handler_may_stop_its_consumer():
    """The stop waited for the handler, was cancelled with it, and the consumer hung half-way."""
    handlers, queue = Handlers(name="payments", transaction=False), MemoryQueue()
    queue.send(Incoming("orders", b"{}", {ID: "m-1", TYPE: "order.created"}))
    consumer = make("consumer", MemoryStore(), handlers=handlers, queue=queue)

    @handlers.on("order.created")
    async def handle(event, tx):
        await consumer.kill()

    await consumer.start()
    await asyncio.wait_for(consumer.wait(), 10)
    assert not consumer.is_running
    assert asyncio.all_tasks() == {asyncio.current_task()}
