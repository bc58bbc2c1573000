"""A consumer dies while it makes a dead letter of a message: the next one finishes that."""

from __future__ import annotations

import pytest

from postroom import Consumer, Handlers
from postroom.lookup import Filter
from postroom.model.envelope import ID, KEY, TYPE
from postroom.model.incoming import Incoming
from postroom.retry import Constant, RetryPolicy
from postroom.sources.memory import MemoryQueue, MemorySource
from tests.scenario.every_store import STORES, open_store
from tests.scenario.place import until

RETRY = RetryPolicy(max_attempts=2, backoff=Constant(0.01))


@pytest.fixture(params=sorted(STORES))
async def stores(request):
    async with open_store(request) as made:
        yield made


def message(name):
    return Incoming("orders", b"{}", {ID: name, TYPE: "t", KEY: "k"})


@pytest.mark.promise("G2", "G7")
@pytest.mark.parametrize("mode", ["direct", "durable"])
async def test_a_burial_that_was_cut_short_is_finished(stores, mode):
    make, store = stores
    handled, handlers = [], Handlers(name="payments")

    @handlers.on("t")
    async def handle(event, tx):
        if event.id == "bad":
            raise ValueError("hopeless")
        handled.append(event.id)

    queue, dying, died = MemoryQueue(), make(), []

    async def killed_here(ids, reason, **_):
        died.append(ids)
        raise RuntimeError("the process is killed here")

    dying.bury = killed_here
    queue.send(message("bad"))
    first = Consumer(MemorySource(queue), dying, handlers, retry=RETRY)
    await first.start()
    await until(lambda: died)
    await first.kill()

    queue.send(message("next"))
    async with Consumer(MemorySource(queue), make(), handlers, retry=RETRY, mode=mode):
        await until(lambda: queue.is_empty and handled)

        async def all_is_over():
            return await store.open_keys("inbox.payments", 9) == []

        await until(all_is_over)
    assert handled == ["next"]
    (dead,) = await store.find(Filter(stream="inbox.payments", state="dead"))
    assert dead.id == "inbox/payments/bad"
    assert "died while it wrote this dead letter" in dead.last_error
