"""Direct mode: a key that fails, with many messages behind it, takes no room from other keys (R-C5)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from postroom import Consumer, Handlers, Retry
from postroom.engine.consumer.detours import Detours
from postroom.lookup import Filter
from postroom.model.envelope import ID, KEY, TYPE
from postroom.model.incoming import Incoming
from postroom.model.pauses import Pauses
from postroom.observer import Alarm
from postroom.retry import Constant, RetryPolicy
from postroom.settings import ConsumerSettings
from postroom.source import SourceCapabilities
from postroom.sources.memory import MemoryQueue, MemorySource
from postroom.sources.rabbitmq.source import RabbitSource
from postroom.stores.memory import MemoryStore
from tests.scenario.every_store import STORES, open_store
from tests.scenario.place import until


@pytest.fixture(params=STORES)
async def stores(request):
    async with open_store(request) as found:
        yield found


HEADERS = {ID: "bad-0", TYPE: "t"}


def message(key, number, kind="t"):
    return Incoming("orders", b"{}", {ID: f"{key}-{number}", TYPE: kind, KEY: key})


class Scene:
    """One key whose first message fails while `broken`; everything else is done at once."""

    def __init__(self, wait=1.0):
        self.queue, self.done, self.told, self.broken = MemoryQueue(), [], [], True
        self.handlers = Handlers(name="payments")

        @self.handlers.on("t")
        async def note(event, tx):
            if event.id == "bad-0" and self.broken:
                raise Retry("not now", after=wait)
            self.done.append(event.id)

    def consumer(self, store, **options):
        watching = SimpleNamespace(observe=self.told.append)
        options.setdefault("retry", RetryPolicy(backoff=Constant(0.05), on_exhausted="block"))
        source = MemorySource(self.queue)
        return Consumer(source, store, self.handlers, observers=[watching], **options)

    def of(self, key):
        return [each for each in self.done if each.startswith(f"{key}-")]

    def alarms(self):
        return [fact.error for fact in self.told if isinstance(fact, Alarm)]


@pytest.mark.promise("G4", "G7", "I3")
async def test_other_keys_go_on_and_the_key_keeps_its_order(stores):
    """`max_in_flight` followers of a key that waits; then more of it comes, and another consumer."""
    make, _ = stores
    scene = Scene()
    scene.queue.send(*(message("bad", n) for n in range(25)))
    async with scene.consumer(make(), max_in_flight=20) as consumer:
        await until(lambda: consumer.counts.received == 25)  # there is no room for more
        scene.queue.send(*(message(f"k{n}", 0) for n in range(20)))
        await until(lambda: len(scene.done) == 20, 30)
        assert scene.of("bad") == []
        scene.queue.send(*(message("bad", n) for n in range(25, 30)), message("last", 0))
        await until(lambda: scene.of("last"), 30)
        await until(lambda: consumer.counts.stored == 30, 30)  # they must not pass
    scene.queue.send(*(message("bad", n) for n in range(30, 35)))
    async with scene.consumer(make(), max_in_flight=20):
        await until(lambda: scene.queue.is_empty, 30)
        assert scene.of("bad") == []
        scene.broken = False
        await until(lambda: len(scene.of("bad")) == 35, 30)
        scene.queue.send(message("bad", 35))
        await until(lambda: len(scene.of("bad")) == 36, 30)
    assert scene.of("bad") == [f"bad-{n}" for n in range(36)]


@pytest.mark.promise("G7")
async def test_many_keys_that_fail_leave_room_for_others():
    scene, store = Scene(), MemoryStore()
    scene.queue.send(
        *(message("bad", 0)._replace(headers={**HEADERS, KEY: str(n)}) for n in range(20))
    )
    async with scene.consumer(store, max_in_flight=20) as consumer:
        await until(lambda: consumer.counts.received == 20)
        scene.queue.send(*(message(f"k{n}", 0) for n in range(5)))
        await until(lambda: len(scene.done) == 5, 30)


@pytest.mark.promise("G7")
async def test_the_room_is_what_the_broker_gives_without_an_acknowledgement():
    scene, store = Scene(), MemoryStore()
    scene.queue.send(*(message("bad", n) for n in range(10)), message("k", 0))
    consumer = scene.consumer(store)
    consumer.source.capabilities = SourceCapabilities(max_unacked=10)
    async with consumer:
        await until(lambda: consumer.counts.stored == 10, 30)
    assert RabbitSource("amqp://localhost?queue=q&prefetch=50").capabilities.max_unacked == 50


@pytest.mark.promise("G4", "G7")
async def test_at_the_bound_nothing_more_is_received_until_there_is_less():
    """Visible by an alarm; and the order holds."""
    scene, store = Scene(), MemoryStore()
    scene.queue.send(*(message("bad", n) for n in range(300)), message("k", 0))
    async with scene.consumer(store, max_in_flight=20, max_stored=50) as consumer:
        await until(lambda: any("max_stored" in said for said in scene.alarms()), 30)
        assert scene.done == []
        received = consumer.counts.received
        assert received < 300
        scene.broken = False
        await until(lambda: len(scene.done) == 301, 30)
    assert scene.of("bad") == [f"bad-{n}" for n in range(300)]


@pytest.mark.promise("G4")
async def test_what_was_kept_in_durable_mode_is_not_passed_in_direct_mode(stores):
    """R-D: the mode was changed while the backlog was not empty."""
    make, look = stores
    scene = Scene()
    scene.queue.send(message("bad", 0), message("bad", 1))
    async with scene.consumer(make(), mode="durable"):

        async def has_failed():
            return bool(await look.find(Filter(stream="inbox.payments", state="failed")))

        await until(has_failed, 30)
    scene.queue.send(message("bad", 2), message("k", 0))
    async with scene.consumer(make()):
        await until(lambda: scene.queue.is_empty and scene.of("k"), 30)
        assert scene.of("bad") == []
        scene.broken = False
        await until(lambda: len(scene.of("bad")) == 3, 30)
    assert scene.of("bad") == ["bad-0", "bad-1", "bad-2"]


@pytest.mark.promise("G4", "G7")
async def test_a_key_with_a_message_that_no_row_can_hold_waits_in_place():
    scene, store = Scene(), MemoryStore()
    refused = []

    async def refuse(rows):
        refused.append(len(rows))
        raise ValueError("this server takes no such value")

    scene.queue.send(*(message("bad", n) for n in range(15)))
    async with scene.consumer(store, max_in_flight=20) as consumer:
        consumer._context.durable_inbox._insert = refuse
        await until(lambda: refused, 30)
        await until(lambda: any("no such value" in said for said in scene.alarms()), 30)
        scene.broken = False
        await until(lambda: len(scene.of("bad")) == 15, 30)
    assert scene.of("bad") == [f"bad-{n}" for n in range(15)]


@pytest.mark.promise("G4", "I3")
async def test_a_key_that_is_kept_while_the_consumer_looks_is_not_passed():
    """The look may not see the rows yet, and the key has nothing in hand any more."""
    asked = []

    async def open_keys(stream, most):
        asked.append(stream)
        if len(asked) == 1:
            detours.left(b"fresh", kept=True)
            detours.left(b"done", kept=False)
        return [b"old"]

    bench = SimpleNamespace(
        settings=ConsumerSettings(), stream="inbox.payments", stopping=asyncio.Event(),
        durable_inbox=SimpleNamespace(store=SimpleNamespace(open_keys=open_keys)),
        recovered=lambda doing: None,
        pauses=lambda: Pauses(0.1, 1.0),
    )  # fmt: skip
    detours = Detours(bench, 100, lambda key: 0)
    assert await detours.look() == {b"old", b"fresh"}
    assert await detours.look() == {b"old"}  # it has begun after that, and would have seen it


async def test_that_the_backlog_is_full_is_told_once_each_time():
    sizes, told = iter([3, 3, 3, 0, 3, 3, 0]), []

    async def open_keys(stream, most):
        return [b"k%d" % n for n in range(next(sizes))]

    async def pause(seconds):
        pass

    bench = SimpleNamespace(
        settings=ConsumerSettings(max_stored=3), stream="inbox.payments", stopping=asyncio.Event(),
        durable_inbox=SimpleNamespace(store=SimpleNamespace(open_keys=open_keys)),
        recovered=lambda doing: None,
        pauses=lambda: Pauses(0.1, 1.0),
        tell=told.append, pause=pause,
    )  # fmt: skip
    detours = Detours(bench, 100, lambda key: 0)
    assert await detours.look() == set()  # when there was less
    assert await detours.look() == set()
    assert [fact.about for fact in told] == ["the durable inbox is full"] * 2
