"""Every loop of a relay under a failure that never ends: it pauses ever longer, and goes on after."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from types import SimpleNamespace

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.inbox_pruner import InboxPruner
from postroom.engine.relay.relay import Relay
from postroom.errors import StoreRetryableError, StoreUnknownError
from postroom.event import Event
from postroom.model.pauses import Pauses
from postroom.observer import StoreRecovered, StoreTrouble
from postroom.outbox import Outbox
from postroom.stores.memory import MemoryStore
from tests.scenario.place import ids
from tests.sim.loop import SimClock, virtual_time

LONG = 600.0


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success():
    pauses = Pauses(0.2, 1.0)
    assert [pauses.grow() for _ in range(5)] == [0.2, 0.4, 0.8, 1.0, 1.0]
    pauses.reset()
    assert pauses.grow() == 0.2


class Failing(MemoryStore):
    """Some calls fail from a certain moment on; all of them are noted with their times."""

    def __init__(self, loop):
        super().__init__(now_us=lambda: 1_800_000_000_000_000 + int(loop.time() * 1_000_000))
        self.errors, self.calls, self._loop = {}, defaultdict(list), loop

    def _note(self, name):
        if name in self.errors:
            self.calls[name].append(self._loop.time())
            raise self.errors[name]

    async def read(self, question):
        self._note("read")
        return await super().read(question)

    async def heartbeat(self, *arguments):
        self._note("heartbeat")
        return await super().heartbeat(*arguments)

    async def stage(self, *arguments):
        self._note("stage")
        return await super().stage(*arguments)

    async def settle(self, settlement):
        self._note("settle")
        return await super().settle(settlement)

    async def retake(self, *arguments):
        self._note("retake")
        return await super().retake(*arguments)

    async def prune(self, *arguments):
        self._note("prune")
        return await super().prune(*arguments)

    async def wait_for_change(self, timeout_seconds):
        self._note("wait_for_change")
        return await super().wait_for_change(timeout_seconds)


LOST, CONFLICT = StoreUnknownError("lost"), StoreRetryableError("conflict")
GROUPS = 3  # workers of a relay by default, the one for lanes that are served apart included


@pytest.mark.promise("F2", "G7")
@pytest.mark.parametrize(
    ("errors", "watched", "first", "longest"),
    [
        ({"read": LOST}, "read", 0.1, 2.0),
        ({"heartbeat": LOST}, "heartbeat", 0.05, 1.0),
        ({"stage": LOST}, "stage", None, 1.0),
        ({"settle": CONFLICT}, "settle", 0.05, 1.0),
        ({"settle": LOST}, "settle", 0.05, 1.0),
        ({"settle": LOST, "retake": LOST}, "retake", 0.05, 1.0),
        ({"prune": LOST}, "prune", None, 60.0),
        ({"wait_for_change": LOST}, "wait_for_change", 1.0, 10.0),
    ],
    ids=[
        "Worker, read", "Heartbeat, beat", "Stager, stage", "Settler, conflicts",
        "Settler, outcome unknown", "Settler, retake", "Pruner", "Watcher",
    ],
)  # fmt: skip
def test_a_failure_without_end_costs_few_attempts(errors, watched, first, longest):
    troubles = []

    async def story(loop):
        store, broker = Failing(loop), MemoryBroker()
        relay = Relay(
            store, broker, clock=SimClock(loop), prune_seconds=60.0, poll_seconds=1.0,
            observers=[SimpleNamespace(observe=troubles.append)],
        )  # fmt: skip
        async with relay:
            await asyncio.sleep(10)
            store.errors = errors
            async with store.transaction() as tx:
                await Outbox().add_many(tx, [Event("t", id="a", key="k"), Event("t", id="b")])
            await asyncio.sleep(LONG)
            workers = GROUPS if watched == "read" else 2 if watched in ("settle", "retake") else 1
            made = store.calls[watched]
            assert LONG / longest * 0.5 < len(made) <= workers * (LONG / longest * 1.1 + 20)
            if first and workers == 1:
                gaps = [b - a for a, b in itertools.pairwise(made)]
                assert gaps[:2] == pytest.approx([first, min(2 * first, longest)])
            store.errors = {}
            await asyncio.sleep(2 * longest + 60)
            assert sorted(set(ids(broker))) == ["a", "b"]
            assert relay.counts.done >= 2

    with virtual_time() as loop:
        loop.run_until_complete(story(loop))
    last = {
        fact.doing: fact for fact in troubles if isinstance(fact, StoreTrouble | StoreRecovered)
    }
    assert last
    assert [type(fact) for fact in last.values()] == [StoreRecovered] * len(last)


@pytest.mark.promise("F2")
def test_a_forgetter_that_always_fails_tries_once_in_its_interval():
    troubles, asked = [], []

    async def story(loop):
        async def fail(_):
            asked.append(loop.time())
            raise ValueError("no")

        settings = SimpleNamespace(prune_seconds=60.0, dedup_seconds=1.0)
        context = SimpleNamespace(
            settings=settings, trouble=lambda doing, error: troubles.append((doing, str(error)))
        )
        forgetter = InboxPruner(context, fail)
        forgetter.start(pytest.fail)
        await asyncio.sleep(LONG + 1)
        await forgetter.stop()

    with virtual_time() as loop:
        loop.run_until_complete(story(loop))
    assert len(asked) == 10
    assert set(troubles) == {("pruning the inbox", "no")}
