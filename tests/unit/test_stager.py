"""When an idle relay looks: often after something happened, rarely after nothing did."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from postroom.broker import Outcome, Verdict
from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.event import Event
from postroom.outbox import Outbox
from postroom.retry import Constant, RetryPolicy
from postroom.store import Capabilities
from postroom.stores.memory import MemoryStore
from tests.sim.loop import SimClock, virtual_time

HOUR = 3_600.0


class Quiet(MemoryStore):
    """A store that tells nobody of changes, and counts the looks of the stager."""

    capabilities = Capabilities(notify=False, shared=False)

    def __init__(self, loop):
        super().__init__(now_us=lambda: 1_800_000_000_000_000 + int(loop.time() * 1_000_000))
        self.looks = []
        self._loop = loop

    async def stage(self, stream, lanes, limit):
        self.looks.append(self._loop.time())
        return await super().stage(stream, lanes, limit)


def relay_on(store, broker, loop, **options):
    return Relay(
        store, broker, clock=SimClock(loop), retry=RetryPolicy(backoff=Constant(0.2)), **options
    )


async def arrivals(broker, count):
    while len(broker.messages) < count:
        await asyncio.sleep(0.01)


@pytest.mark.promise("F2")
@pytest.mark.req("S4.3")
def test_an_idle_relay_looks_ever_less_often_up_to_the_poll_interval():
    async def story(loop):
        store = Quiet(loop)
        async with relay_on(store, MemoryBroker(), loop, poll_seconds=1.0):
            await asyncio.sleep(HOUR)
        gaps = [round(b - a, 6) for a, b in itertools.pairwise(store.looks)]
        assert gaps == sorted(gaps)
        assert gaps[0] <= 0.02
        assert gaps[-1] == 1.0
        assert len(gaps) == pytest.approx(HOUR, rel=0.01)

    with virtual_time() as loop:
        loop.run_until_complete(story(loop))


@pytest.mark.req("S2.4")
def test_a_retry_comes_when_it_is_due_however_long_the_relay_was_idle():
    async def story(loop):
        store, broker, failures = Quiet(loop), MemoryBroker(), [Outcome(Verdict.FAILED, "boom")]
        broker.script(lambda _: failures.pop() if failures else None)
        async with relay_on(store, broker, loop, poll_seconds=HOUR):
            await asyncio.sleep(HOUR)  # the stager naps for half an hour by now
            async with store.transaction() as tx:
                await Outbox().add(tx, Event("paid", key="k"))
            began = loop.time()
            await arrivals(broker, 1)
            assert 0.2 <= loop.time() - began < 0.3

    with virtual_time() as loop:
        loop.run_until_complete(story(loop))


class Slow(Quiet):
    """A store that needs a while for each look, and has always more to read."""

    async def stage(self, stream, lanes, limit):
        staged = await super().stage(stream, lanes, limit)
        await asyncio.sleep(0.004)
        return staged

    async def read(self, question):
        await asyncio.sleep(0.004)
        return await super().read(question)


def test_a_busy_relay_leaves_the_database_to_its_workers():
    async def story(loop):
        store, broker = Slow(loop), MemoryBroker()
        async with store.transaction() as tx:
            await Outbox().add_many(tx, [Event("paid", key=f"k{n}") for n in range(4_000)])
        relay = relay_on(store, broker, loop, batch_size=10, max_batch_size=10, groups=1)
        async with relay:
            await arrivals(broker, 4_000)
        seconds = store.looks[-1] - store.looks[0]
        assert seconds > 1.5
        assert len(store.looks) <= seconds / 0.04 + 2  # a tenth of the time, at 4 ms a look

    with virtual_time() as loop:
        loop.run_until_complete(story(loop))
