"""A store that fails without end costs a consumer few attempts: no loop without a pause."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from postroom import Consumer, Handlers
from postroom.engine.consumer.context import ConsumerContext, Received
from postroom.engine.consumer.detours import Detours
from postroom.engine.consumer.durable_inbox import DurableInbox
from postroom.engine.consumer.processor import MessageProcessor
from postroom.errors import StoreError
from postroom.model.clock import SystemClock
from postroom.model.incoming import Incoming
from postroom.observer import Alarm, StoreTrouble
from postroom.settings import ConsumerSettings
from postroom.sources.memory import MemorySource
from postroom.stores.memory import MemoryStore
from postroom.testing.broker_tools import make_record

GROWING = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


class EnoughError(BaseException):
    """Two minutes have passed."""


class Scene:
    """A consumer's parts over a store that fails, in a time that passes only during pauses."""

    def __init__(self, monkeypatch, error):
        self.error, self.attempts, self.pauses, self.told = error, 0, [], []
        monkeypatch.setattr(ConsumerContext, "pause", self.pause)
        store = MemoryStore()
        for name in ("transaction", "bury", "open_keys"):
            monkeypatch.setattr(store, name, self.fail)
        self.handlers, self.settings = Handlers(name="payments"), ConsumerSettings(name="payments")
        self.consumer = Consumer(MemorySource(), store, self.handlers, self.settings)
        watching = SimpleNamespace(observe=self.told.append)
        backlog, clock = DurableInbox(store, "payments", strict=False), SystemClock()
        self.bench = ConsumerContext(self.settings, self.handlers, backlog, clock, (watching,))
        message = Incoming("orders", b"{}", {})
        delivery = SimpleNamespace(message=message, is_lost=False, ack=self.never)
        self.received = Received(delivery, make_record(1))

    def fail(self, *args, **options):
        self.attempts += 1
        raise self.error

    def never(self):
        raise AssertionError("it was acknowledged")

    async def pause(self, seconds):
        self.pauses.append(seconds)
        if sum(self.pauses) > 120.0 or len(self.pauses) == 1_000:
            raise EnoughError


CALLS = {
    "Consumer._keep": lambda scene: scene.consumer._keep(scene.bench, [scene.received]),
    "Bench.bury": lambda scene: scene.bench.bury(scene.received, "no handler"),
    "Detours.keep": lambda scene: Detours(scene.bench, 100, int).keep([scene.received]),
    "Detours.look": lambda scene: Detours(scene.bench, 100, int).look(),
}


@pytest.mark.promise("F2")
@pytest.mark.parametrize("call", CALLS)
async def test_a_store_that_fails_without_end_is_asked_ever_less_often(monkeypatch, call):
    scene = Scene(monkeypatch, StoreError("the store cannot be reached"))
    with pytest.raises(EnoughError):
        await CALLS[call](scene)
    assert scene.pauses[:11] == pytest.approx(GROWING)
    assert scene.attempts == len(scene.pauses) == 12
    assert [type(fact) for fact in scene.told] == [StoreTrouble] * 12


@pytest.mark.promise("F2", "G7")
async def test_a_dead_letter_that_is_always_refused_is_tried_every_half_minute(monkeypatch):
    scene = Scene(monkeypatch, ValueError("this server takes no such value"))
    with pytest.raises(EnoughError):
        await MessageProcessor(scene.bench).finish(scene.received._replace(problem="no handler"))
    assert scene.pauses == [30.0] * 5
    assert scene.attempts == 5
    assert [type(fact) for fact in scene.told] == [Alarm] * 5
