"""After a correction events go out within seconds, and any answer of a broker ends an outage."""

from __future__ import annotations

import asyncio

import pytest

from postroom.broker import Outcome, Verdict
from postroom.brokers.kafka.verdicts import Loss, in_a_batch
from postroom.brokers.memory import MemoryBroker
from postroom.engine.handlers.handlers import Handlers
from postroom.engine.relay.prober import Corrections
from postroom.engine.relay.relay import Relay
from postroom.errors import StoreUnknownError
from postroom.event import Event
from postroom.observer import BreakerChanged, Freed
from postroom.outbox import Outbox
from postroom.stores.memory import MemoryStore
from tests.sim.loop import SimClock, virtual_time

SECOND = 1_000_000


class Scene:
    """A relay in virtual time, and a broker without the topic `orders`."""

    def __init__(self, loop):
        self.loop, self.broker, self.facts, self.calls = loop, MemoryBroker(), [], 0
        self.store = MemoryStore(now_us=lambda: 1_800_000_000 * SECOND + int(loop.time() * SECOND))
        self.missing = Outcome(Verdict.MISCONFIGURED, "there is no topic 'orders'")
        self.broker.script(self.answer)

    def answer(self, record):
        self.calls += 1
        return self.missing if record.topic == "orders" else None

    def observe(self, fact):
        self.facts.append(fact)

    def relay(self, broker=None, **more):
        return Relay(
            self.store, broker or self.broker, clock=SimClock(self.loop), observers=[self],
            log=False, **more,
        )  # fmt: skip

    async def add(self, *events):
        async with self.store.transaction() as tx:
            await Outbox().add_many(tx, events)

    def told(self, kind):
        return [fact for fact in self.facts if isinstance(fact, kind)]

    async def until(self, is_so, seconds=10.0):
        async with asyncio.timeout(seconds):
            while not is_so():
                await asyncio.sleep(0.01)


def played(story):
    with virtual_time() as loop:
        loop.run_until_complete(asyncio.wait_for(story(Scene(loop)), 10_000))


def orders(number):
    return [
        Event("order.paid", n, id=f"e{n}", topic="orders", key=f"k{n}" if n % 2 else None)
        for n in range(number)
    ]


def test_events_that_waited_for_a_topic_go_out_within_seconds():  # U9
    async def story(scene):
        await scene.add(*orders(300))
        async with scene.relay(misconfigured_seconds=3_600):
            await scene.until(lambda: scene.calls == 300)
            await asyncio.sleep(300)
            assert 330 < scene.calls < 370  # one event every five seconds
            scene.missing = None
            await scene.until(lambda: len(scene.broker.messages) == 300)
        (freed,) = scene.told(Freed)
        assert freed == Freed("main", "orders", 299, "there is no topic 'orders'")

    played(story)


def test_each_cause_has_its_own_probe():  # U9
    async def story(scene):
        errors = {"e1": "no route for a", "e2": "no route for b", "e3": "no route for b"}
        scene.broker.script(
            lambda record: (
                Outcome(Verdict.MISCONFIGURED, errors[record.id]) if record.id in errors else None
            )
        )
        await scene.add(*orders(4))
        async with scene.relay(misconfigured_seconds=3_600):
            await scene.until(lambda: len(scene.broker.messages) == 1)
            await asyncio.sleep(60)
            del errors["e2"], errors["e3"]
            await scene.until(lambda: len(scene.broker.messages) == 3)
            await asyncio.sleep(60)
            assert len(scene.broker.messages) == 3  # e1 still waits

    played(story)


def test_a_probe_that_was_buried_is_replaced():  # U9
    async def story(scene):
        await scene.add(*orders(3))
        async with scene.relay(misconfigured_seconds=3_600):
            await scene.until(lambda: scene.calls == 3)
            await asyncio.sleep(20)
            await scene.store.bury(["e0"], "not needed", by="anna")
            await asyncio.sleep(20)
            scene.missing = None
            await scene.until(lambda: len(scene.broker.messages) == 2)

    played(story)


def test_a_store_that_fails_is_probed_with_pauses(monkeypatch):  # U9: no loop without a pause
    tries = []

    async def story(scene):
        async def broken(ids, *, by=None):
            tries.append(scene.loop.time())
            raise StoreUnknownError("away")

        await scene.add(*orders(3))
        monkeypatch.setattr(scene.store, "retry_now", broken)
        async with scene.relay(misconfigured_seconds=3_600):
            await asyncio.sleep(300)

    played(story)
    assert 10 < len(tries) < 80


def test_causes_are_bounded():
    known = Corrections()
    for n in range(1_000):
        known.note(record(f"e{n}"), f"error {n}", 0.0)
    assert len(known.due(10.0)) == 100
    assert known.due(10.0) == []


def record(name):
    store = MemoryStore()

    async def make():
        async with store.transaction() as tx:
            await Outbox().add(tx, Event("order.paid", 1, id=name, topic="orders"))
        return await store.get(name)

    return asyncio.run(make())


# -- the breaker ----------------------------------------------------------------------------------
@pytest.mark.parametrize("local", [False, True], ids=["answer", "local"])
def test_only_an_answer_of_the_broker_itself_closes_the_breaker(local):  # U7
    async def story(scene):
        scene.missing = scene.missing._replace(local=local)
        await scene.add(*orders(3))
        scene.broker.go_down("connection refused")
        asked = []

        async def health():
            asked.append(scene.loop.time())
            raise ConnectionError("refused")

        scene.broker.health = health  # without it, only an event can bring an answer
        async with scene.relay() as relay:
            await scene.until(lambda: relay.vitals.breaker == "open")
            scene.broker.come_back()
            if local:
                await asyncio.sleep(600)
                assert relay.vitals.breaker != "closed"
                assert 10 < len(asked) < 100  # with growing pauses
            else:
                await scene.until(lambda: relay.vitals.breaker == "closed", 60)
                await asyncio.sleep(600)
                assert relay.vitals.breaker == "closed"
        assert [f.state for f in scene.told(BreakerChanged)] == ["open", "closed"][
            : 1 + (not local)
        ]

    played(story)


def test_an_outage_ends_although_no_event_is_left_to_try_with():  # U7
    async def story(scene):
        await scene.add(*orders(1))
        scene.broker.go_down("connection refused")
        async with scene.relay() as relay:
            await scene.until(lambda: relay.vitals.breaker == "open")
            await scene.store.bury(["e0"], "not needed", by="anna")
            scene.broker.come_back()
            await scene.until(lambda: relay.vitals.breaker == "closed", 60)

    played(story)


def test_outcomes_that_are_decided_here_are_no_answers():  # U7
    own = Loss(0, "too large for the queue", verdict=Verdict.MISCONFIGURED)
    assert not in_a_batch(own).is_answer
    assert Outcome(Verdict.MISCONFIGURED, "no topic").is_answer
    assert not Outcome(Verdict.OUTAGE).is_answer
    assert not Outcome(Verdict.UNKNOWN).is_answer


async def test_a_missing_handler_is_no_answer_of_a_database():  # U7
    store = MemoryStore()
    async with store.transaction() as tx:
        await Outbox().add(tx, Event("order.paid", 1, id="e"))
    event = await store.get("e")
    outcome = await Handlers(name="payments").bind(store, 10.0).handle(event, None)
    assert (outcome.verdict, outcome.is_answer) == (Verdict.MISCONFIGURED, False)
