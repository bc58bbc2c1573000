"""What is remembered of a message that the broker took back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from postroom import Consumer, Handlers
from postroom.engine.consumer.attempts import Attempts
from postroom.model.envelope import ID, TYPE
from postroom.model.history import read
from postroom.model.incoming import Incoming
from postroom.retry import Constant, RetryPolicy
from postroom.sources.memory import MemoryQueue, MemorySource
from postroom.stores.memory import MemoryStore
from postroom.testing.broker_tools import make_record


def remembering(most=10_000):
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    return Attempts(clock, most), clock


def test_attempts_and_the_rest_of_the_wait_are_remembered_once():
    attempts, clock = remembering()
    tried = make_record(1, attempts=2)
    attempts.keep(tried, 30.0)
    clock.now += 10.0
    again, waiting = attempts.recall(make_record(1))
    assert (again.attempts, waiting) == (2, 20.0)
    assert attempts.recall(make_record(1)) == (make_record(1), 0.0)


def test_a_wait_that_is_over_is_not_negative():
    attempts, clock = remembering()
    attempts.keep(make_record(1, attempts=1), 5.0)
    clock.now += 60.0
    assert attempts.recall(make_record(1))[1] == 0.0


def test_a_message_that_was_not_tried_is_not_remembered():
    attempts, _ = remembering()
    attempts.keep(make_record(1), 0.0)
    assert not attempts._kept


def test_of_too_many_the_oldest_are_forgotten():
    attempts, _ = remembering(most=2)
    for number in (1, 2, 3):
        attempts.keep(make_record(number, attempts=number), 0.0)
    assert [attempts.recall(make_record(n))[0].attempts for n in (1, 2, 3)] == [0, 2, 3]


@pytest.mark.promise("G7")
async def test_a_message_that_is_lost_and_comes_again_has_spent_its_attempts():
    queue, runs, store = MemoryQueue(), [], MemoryStore()
    source, handlers = MemorySource(queue), Handlers(name="payments")

    @handlers.on("order.created")
    async def fail(event, tx):
        runs.append(event.id)
        if len(runs) == 1:
            source.lose_all()  # as if the connection was cut
        raise ValueError("no such order")

    queue.send(Incoming("orders", b"{}", {ID: "m-1", TYPE: "order.created"}))
    retry = RetryPolicy(max_attempts=2, backoff=Constant(0.01))
    async with Consumer(source, store, handlers, retry=retry) as consumer:
        async with asyncio.timeout(20):
            while not queue.is_empty:
                await asyncio.sleep(0.001)
        assert (consumer.counts.lost, consumer.counts.dead) == (1, 1)
    assert runs == ["m-1", "m-1"]


async def test_the_dead_letter_of_a_direct_consumer_has_its_history():
    queue, store, handlers = MemoryQueue(), MemoryStore(), Handlers(name="payments")

    @handlers.on("order.created")
    async def fail(event, tx):
        raise ValueError("no such order")

    queue.send(Incoming("orders", b"{}", {ID: "m-1", TYPE: "order.created"}))
    retry = RetryPolicy(max_attempts=2, backoff=Constant(0.01))
    source = MemorySource(queue)
    async with Consumer(source, store, handlers, retry=retry) as consumer, asyncio.timeout(20):
        while consumer.counts.dead < 1:
            await asyncio.sleep(0.001)
    found = read((await store.details("inbox/payments/m-1")).history)
    assert [(e["by"], e["what"], e["attempt"]) for e in found.entries] == [
        ("payments", "failed", 1), ("payments", "failed", 2),
    ]  # fmt: skip
    assert all("in fail" in entry["traceback"] for entry in found.entries)
