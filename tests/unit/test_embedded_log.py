"""A relay, consumer or bus in another process logs by itself: nothing fails in silence."""

from __future__ import annotations

import asyncio
import io
import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest

from postroom import Bus, Consumer, Event, Handlers, Outbox, Relay, RetryPolicy
from postroom.brokers.memory import MemoryBroker
from postroom.engine.summaries import Summaries
from postroom.lookup import Filter
from postroom.model.clock import SystemClock
from postroom.model.incoming import Incoming
from postroom.observer import LanesChanged, LanesHeld, Summary
from postroom.record import State
from postroom.sources.memory import MemoryQueue, MemorySource
from postroom.stores.memory import MemoryStore
from postroom.telemetry.log import LogObserver
from postroom.testing.store.tools import until

AT_ONCE = RetryPolicy(max_attempts=2, backoff=lambda _: 0.0)


def broken():
    handlers = Handlers(name="payments")

    @handlers.on("order.paid")
    async def pay(event, tx):
        raise ValueError("no such card")

    return handlers


async def add(store, *events):
    async with store.transaction() as tx:
        await Outbox().add_many(tx, events)


def lines(caplog, name):
    return [r for r in caplog.records if r.getMessage().startswith(f"{name} ")]


@pytest.mark.parametrize("given", [{}, {"observers": [LogObserver()]}], ids=["default", "given"])
async def test_a_relay_logs_failures_and_the_dead_letter_once(given, caplog):  # U1, U2
    store = MemoryStore()
    await add(store, Event("order.paid", {}, id="e-1"))
    async with Relay(store, broken(), retry=AT_ONCE, poll_seconds=0.01, **given):
        await until(lambda: asyncio.sleep(0, bool(lines(caplog, "dead-letter"))))
    attempts, (dead,) = lines(caplog, "attempt"), lines(caplog, "dead-letter")
    assert [r.getMessage().split("attempts=")[1][0] for r in attempts] == ["1", "2"]
    assert "no such card" in attempts[0].exc_text
    assert "in pay\n" in attempts[0].exc_text
    assert " attempts=2 " in dead.getMessage()
    assert "in pay\n" in dead.exc_text
    assert {r.levelname for r in (*attempts, dead)} == {"WARNING"}


async def test_a_consumer_logs_failures_from_the_first_and_the_dead_letter(caplog):  # U1, U10
    queue, store = MemoryQueue(), MemoryStore()
    queue.send(Incoming("orders", b"{}", {"postroom-id": "e-1", "postroom-type": "order.paid"}))
    source = MemorySource(queue)
    async with Consumer(source, store, broken(), retry=AT_ONCE) as consumer:
        await until(lambda: asyncio.sleep(0, consumer.counts.dead == 1))
    assert [r.getMessage().split("attempts=")[1][0] for r in lines(caplog, "attempt")] == ["1", "2"]
    (dead,) = lines(caplog, "dead-letter")
    assert dead.exc_text


async def test_a_dead_letter_of_a_consumer_is_the_same_after_a_replay():  # U10
    queue, store = MemoryQueue(), MemoryStore()
    queue.send(Incoming("orders", b"{}", {"postroom-id": "e-1", "postroom-type": "order.paid"}))
    found = []

    async def is_dead():
        found[:] = await store.find(Filter(stream="inbox.payments", state=State.DEAD))
        return found

    async with Consumer(MemorySource(queue), store, broken(), retry=AT_ONCE, log=False):
        await until(is_dead)
        (first,) = found
        details = await store.details(first.id)
        assert details.available_us is None  # not the year 3000
        await store.replay([first.id])
        await until(is_dead)
    (again,) = found
    assert (first.attempts, again.attempts) == (2, 2)
    assert first.last_error == again.last_error == "ValueError: no such card"
    causes = await store.dead_causes()
    assert [cause.error for cause in causes] == ["ValueError: no such card"]


async def test_a_bus_logs_once(caplog):  # U1
    bus = Bus(retry=AT_ONCE, poll_seconds=0.01)
    orders = bus.module("orders", MemoryStore())
    billing = bus.module("billing", MemoryStore())

    @billing.on("order.paid")
    async def pay(event, tx):
        raise ValueError("no such card")

    await add(orders.store, Event("order.paid", {}, id="e-1"))
    async with bus:
        await until(lambda: asyncio.sleep(0, bool(lines(caplog, "dead-letter"))))
    assert len(lines(caplog, "dead-letter")) == 1


@pytest.mark.parametrize("kind", ["relay", "consumer", "bus"])
async def test_it_can_be_switched_off(kind, caplog):  # U1
    store = MemoryStore()
    await add(store, Event("order.paid", {}, id="e-1"))
    one = {
        "relay": lambda: Relay(store, broken(), log=False, poll_seconds=0.01),
        "consumer": lambda: Consumer(MemorySource(), store, broken(), log=False),
        "bus": lambda: Bus(log=False),
    }[kind]()
    if kind == "bus":
        one.module("orders", store)
    assert one._observers == ()
    async with one:
        pass
    assert not [r for r in caplog.records if r.name == "postroom.relay"]


async def test_an_unreachable_broker_is_logged_once_each_way(caplog):  # U1
    caplog.set_level(logging.INFO, "postroom")
    store, broker = MemoryStore(), MemoryBroker()
    broker.go_down("connection refused")
    await add(store, *(Event("order.paid", {}) for _ in range(10)))
    async with Relay(store, broker, poll_seconds=0.01, outage_seconds=0.01) as relay:
        await until(lambda: asyncio.sleep(0, bool(lines(caplog, "breaker"))))
        broker.come_back()
        await until(lambda: asyncio.sleep(0, relay.counts.done == 10))
    assert [r.levelname for r in lines(caplog, "breaker")] == ["WARNING", "INFO"]


def test_warnings_are_seen_without_any_set_up():  # U1
    program = """
import asyncio
from postroom import Event, Handlers, Outbox, Relay, RetryPolicy
from postroom.stores.memory import MemoryStore

handlers = Handlers(name="payments")

@handlers.on("order.paid")
async def pay(event, tx):
    raise ValueError("no such card")

async def main():
    store = MemoryStore()
    async with store.transaction() as tx:
        await Outbox().add(tx, Event("order.paid", {}, id="e-1"))
    await Relay(store, handlers, retry=RetryPolicy(max_attempts=1)).drain()

asyncio.run(main())
"""
    ran = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert "dead-letter stream=main id=e-1 " in ran.stderr
    assert ", in pay\nValueError: no such card\n" in ran.stderr
    assert "summary" not in ran.stderr  # INFO


def test_a_traceback_is_printed_below_its_line():
    out = io.StringIO()
    logger = logging.getLogger("postroom.relay.test")
    handler = logging.StreamHandler(out)
    logger.addHandler(handler)
    try:
        from postroom.telemetry.log import say

        say(logger, logging.WARNING, "attempt", {"id": "e-1"}, "Traceback …\nValueError: no")
        say(logger, logging.DEBUG, "attempt", {"id": "e-2"}, "Traceback …")
    finally:
        logger.removeHandler(handler)
    assert out.getvalue() == "attempt id=e-1\nTraceback …\nValueError: no\n"


# -- summaries ------------------------------------------------------------------------------------
def test_a_minute_with_traffic_has_a_summary_of_what_is_new():  # U6
    told, counts, clock = [], {"done": 0, "failed": 0}, SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    lags = iter([0.5, None, None])
    it = Summaries("main", lambda: counts, told.append, clock, lambda: next(lags))
    counts["done"], clock.now = 120, 60.0
    it.look()
    clock.now = 120.0
    it.look()  # nothing new
    counts["failed"], clock.now = 3, 180.0
    it.look()
    assert told == [
        Summary("main", 60.0, {"done": 120, "failed": 0}, 0.5),
        Summary("main", 60.0, {"done": 0, "failed": 3}, None),
    ]


async def test_a_relay_and_a_consumer_summarise(monkeypatch):  # U6
    monkeypatch.setattr("postroom.engine.summaries.EVERY_SECONDS", 0.01)
    store, queue, facts = MemoryStore(), MemoryQueue(), []
    notes = SimpleNamespace(observe=facts.append)
    handlers = Handlers(name="payments")
    handlers.on("order.paid")(_nothing)
    await add(store, Event("order.paid", {}, id="e-1"))
    queue.send(Incoming("orders", b"{}", {"postroom-id": "e-2", "postroom-type": "order.paid"}))
    async with (
        Relay(store, MemoryBroker(), observers=[notes], poll_seconds=0.01),
        Consumer(MemorySource(queue), MemoryStore(), handlers, observers=[notes]),
    ):
        await until(lambda: asyncio.sleep(0, len(_summaries(facts)) == 2))
    relay, consumer = sorted(_summaries(facts), key=lambda each: each.stream, reverse=True)
    assert (relay.stream, relay.counts["done"], relay.lag_seconds >= 0) == ("main", 1, True)
    assert consumer.stream == "inbox.payments"
    assert (consumer.counts["received"], consumer.counts["done"]) == (1, 1)


async def _nothing(event, tx):
    pass


def _summaries(facts):
    return [fact for fact in facts if isinstance(fact, Summary)]


async def test_a_relay_that_waits_for_a_dead_one_says_so_and_takes_over():  # U6
    store, facts = MemoryStore(), []
    dead = Relay(store, MemoryBroker(), name="host:1", lease_seconds=0.5, clock=SystemClock())
    await dead.start()
    await until(lambda: asyncio.sleep(0, dead.vitals.lanes == 64))
    for service in dead._services:  # it dies: nothing is released
        await service.stop()
    notes = SimpleNamespace(observe=facts.append)
    async with Relay(store, MemoryBroker(), observers=[notes], lease_seconds=0.5) as relay:
        await until(lambda: asyncio.sleep(0, relay.vitals.lanes == 64))
    (waiting,) = [fact for fact in facts if isinstance(fact, LanesHeld)]
    assert waiting == LanesHeld("main", 64, "host:1", 0.5)
    (taken,) = [f for f in facts if isinstance(f, LanesChanged) and f.change == "taken"]
    assert taken.before == "host:1"
    await dead.kill()
