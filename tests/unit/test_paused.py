"""Pauses of streams, topics and consumers: nothing is sent, no attempt is spent, nothing is lost."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from postroom import Consumer, Handlers
from postroom.broker import Outcome, Verdict
from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.errors import PausedError, StoreUnknownError
from postroom.event import Event
from postroom.lookup import Filter
from postroom.model.envelope import ID, TYPE
from postroom.model.incoming import Incoming
from postroom.observer import ControlChanged, Settled
from postroom.outbox import Outbox
from postroom.record import State
from postroom.retry import Constant, RetryPolicy
from postroom.sources.memory import MemoryQueue, MemorySource
from postroom.stores.memory import MemoryStore
from tests.sim.loop import SimClock, virtual_time

SECOND = 1_000_000


class Counting(MemoryStore):
    """Counts the looks at the controls, which can fail, and the reads of events."""

    def __init__(self, loop):
        super().__init__(now_us=lambda: 1_800_000_000 * SECOND + int(loop.time() * SECOND))
        self.looks = self.reads = 0
        self.is_broken = False

    async def controls(self):
        self.looks += 1
        if self.is_broken:
            raise StoreUnknownError("the connection went away")
        return await super().controls()

    async def read(self, request):
        self.reads += 1
        return await super().read(request)


class Told:
    def __init__(self):
        self.facts = []
        self.held = 0

    def observe(self, fact):
        if isinstance(fact, Settled):
            self.held += fact.held
        if isinstance(fact, ControlChanged):
            self.facts.append((fact.kind, fact.name, fact.paused))


class Scene:
    """A store, a broker, and relays in virtual time."""

    def __init__(self, loop):
        self.loop, self.store, self.broker = loop, Counting(loop), MemoryBroker()
        self.told = Told()

    def relay(self, broker=None, **more):
        return Relay(
            self.store,
            broker or self.broker,
            clock=SimClock(self.loop),
            lease_seconds=10,
            observers=[self.told],
            **more,
        )

    @asynccontextmanager
    async def running(self, broker=None, **more):
        relay = self.relay(broker, **more)
        await relay.start()
        try:
            yield relay
        finally:
            await relay.stop()

    async def add(self, *events):
        async with self.store.transaction() as tx:
            await Outbox().add_many(tx, events)

    async def pause(self, kind, name, **more):
        await self.store.set_control(kind, name, pause=True, by="anna", **more)

    async def resume(self, kind, name):
        await self.store.set_control(kind, name, pause=False, by="anna")

    @property
    def sent(self):
        return [message.record.id for message in self.broker.messages]

    async def until(self, *ids):
        async with asyncio.timeout(10):
            while set(ids) - set(self.sent):
                await asyncio.sleep(0.01)


def played(story):
    with virtual_time() as loop:
        loop.run_until_complete(asyncio.wait_for(story(Scene(loop)), 10_000))


def event(name, key=None, topic="t", **more):
    return Event("done", name, id=name, key=key, topic=topic, **more)


def test_a_paused_stream_is_not_read_and_goes_on_within_a_second():
    async def story(scene):
        async with scene.running() as relay:
            await scene.add(event("1", "k"))
            await scene.until("1")
            await scene.pause("stream", "main", reason="deploy")
            await asyncio.sleep(1)
            reads = scene.store.reads
            await scene.add(event("2", "k"), event("3"))
            await asyncio.sleep(600)
            assert scene.sent == ["1"]
            assert scene.store.reads == reads
            assert relay.vitals.lanes == 64  # lanes and heartbeats stay
            assert [(one.kind, one.name, one.reason) for one in relay.pauses] == [
                ("stream", "main", "deploy")
            ]
            waiting = await scene.store.find(Filter(state=State.PENDING))
            assert [(r.id, r.attempts) for r in waiting] == [("2", 0), ("3", 0)]
            await scene.resume("stream", "main")
            began = scene.loop.time()
            await scene.until("2", "3")
            assert scene.loop.time() - began <= 1
        assert scene.told.facts == [("stream", "main", True), ("stream", "main", False)]

    played(story)


def test_a_relay_that_starts_during_a_pause_sends_nothing():
    async def story(scene):
        await scene.add(event("1"))
        await scene.pause("stream", "main")
        async with scene.running():
            await asyncio.sleep(60)
            assert scene.sent == []

    played(story)


def test_the_pause_of_one_stream_does_not_concern_another():
    async def story(scene):
        await scene.pause("stream", "other")
        await scene.pause("consumer", "main")
        await scene.add(event("1"))
        assert (await scene.relay().drain()).done == 1

    played(story)


def test_a_pause_that_ends_at_its_time_needs_no_resume():
    async def story(scene):
        await scene.add(event("1"))
        await scene.pause("stream", "main", seconds=600)
        async with scene.running():
            await asyncio.sleep(599)
            assert scene.sent == []
            await asyncio.sleep(2)
            assert scene.sent == ["1"]

    played(story)


def test_events_in_flight_finish_when_their_stream_is_paused():
    async def story(scene):
        hold = scene.broker.hold()
        await scene.add(event("1"))
        async with scene.running():
            await hold.reached.wait()
            await scene.pause("stream", "main")
            await asyncio.sleep(2)
            hold.release()
            await asyncio.sleep(2)
            assert scene.sent == ["1"]
            assert (await scene.store.stats()).counts["pending"] == 0

    played(story)


def test_a_drain_of_a_paused_stream_ends_with_an_error_that_names_the_command():
    async def story(scene):
        await scene.add(event("1"))
        await scene.pause("stream", "main")
        with pytest.raises(PausedError, match="postroom resume main"):
            await scene.relay().drain()
        assert scene.sent == []

    played(story)


def test_if_the_controls_cannot_be_read_the_last_known_state_stays():
    async def story(scene):
        await scene.pause("stream", "main")
        async with scene.running():
            scene.store.is_broken = True
            await scene.add(event("1"))
            await scene.resume("stream", "main")
            looks = scene.store.looks
            await asyncio.sleep(600)
            assert scene.sent == []
            assert scene.store.looks - looks < 200  # with growing pauses
            scene.store.is_broken = False
            await scene.until("1")

    played(story)


def test_relays_of_one_process_share_one_look_a_second():
    async def story(scene):
        async with (
            scene.running(stream="a"),
            scene.running(stream="b"),
            scene.running(stream="c"),
        ):
            before = scene.store.looks
            await asyncio.sleep(100)
            assert 90 <= scene.store.looks - before <= 130

    played(story)


def test_a_paused_topic_holds_its_keys_in_order_and_no_others():
    async def story(scene):
        await scene.pause("topic", "t")
        await scene.add(
            event("k1", "k"),
            event("k2", "k", topic="free"),
            event("o1", "o", topic="free"),
            event("o2", "o"),
            event("o3", "o", topic="free"),
            event("none"),
        )
        async with scene.running() as relay:
            await scene.until("o1")
            await asyncio.sleep(1_000)
            assert scene.sent == ["o1"]
            found = {r.id: r for r in await scene.store.find(Filter())}
            assert {r.attempts for r in found.values()} == {0}
            assert "the topic t is paused" in found["k1"].last_error
            assert relay.vitals.breaker == "closed"
            await scene.resume("topic", "t")
            began = scene.loop.time()
            await scene.until("k1", "k2", "o2", "o3", "none")
            assert scene.loop.time() - began < 5
            assert [name for name in scene.sent if name[0] == "k"] == ["k1", "k2"]
            assert [name for name in scene.sent if name[0] == "o"] == ["o1", "o2", "o3"]
            assert len(scene.sent) == 6
        assert scene.told.facts == [("topic", "t", True), ("topic", "t", False)]

    played(story)


def test_a_pause_is_not_a_failure():
    """Held events counted as failed, and the pause replaced their last error."""

    async def story(scene):
        scene.broker.script(lambda record: Outcome(Verdict.FAILED, "boom"))
        await scene.add(event("1", "k"), event("2", topic="free"))
        async with scene.running(retry=RetryPolicy(backoff=Constant(5))) as relay:
            await asyncio.sleep(1)
            (failed, other) = await scene.store.find(Filter())
            assert (failed.attempts, failed.last_error) == (1, "boom")
            history = (await scene.store.details("1")).history
            scene.broker.script(lambda record: None)
            await scene.pause("topic", "t")
            await asyncio.sleep(600)
            (held, other) = await scene.store.find(Filter())
            assert (held.state, held.attempts) == ("failed", 1)
            assert held.last_error == "not sent: the topic t is paused. Last error: boom"
            assert (await scene.store.details("1")).history == history
            assert other.state == "done"
            assert relay.counts.failed == 2
            assert scene.told.held > 1
            await scene.resume("topic", "t")
            await scene.until("1")

    played(story)


def test_a_topic_that_is_paused_for_long_costs_ever_fewer_looks_at_its_events():
    async def story(scene):
        await scene.pause("topic", "t")
        await scene.add(event("1"))
        settled = []
        settle = scene.store.settle

        async def counted(settlement):
            settled.append(len(settlement.failed))
            return await settle(settlement)

        scene.store.settle = counted
        async with scene.running():
            await asyncio.sleep(1_200)
        assert 0 < sum(settled) < 30

    played(story)


def test_many_held_events_are_freed_in_steps():
    async def story(scene):
        await scene.pause("topic", "t")
        await scene.add(*(event(f"e{n}", f"k{n}") for n in range(350)))
        async with scene.running():
            await asyncio.sleep(1_000)
            assert scene.sent == []
            await scene.resume("topic", "t")
            await scene.until(*(f"e{n}" for n in range(350)))

    played(story)


def test_a_drain_leaves_the_events_of_a_paused_topic():
    async def story(scene):
        await scene.pause("topic", "t")
        await scene.add(event("1"), event("2", topic="free"))
        assert (await scene.relay().drain()).done == 1
        assert scene.sent == ["2"]

    played(story)


@pytest.mark.parametrize(("kind", "name"), [("stream", "main"), ("topic", "t")])
def test_an_event_of_unknown_outcome_is_not_sent_again_during_a_pause(kind, name):
    async def story(scene):
        tries = []

        def unknown(record):
            tries.append(record.id)
            return Outcome(Verdict.UNKNOWN, "no reply") if len(tries) == 1 else None

        hold = scene.broker.hold()
        scene.broker.script(unknown)
        await scene.add(event("1", "k"), event("2", "k"))
        async with scene.running():
            await hold.reached.wait()
            await scene.pause(kind, name)
            await asyncio.sleep(1)
            hold.release()
            await asyncio.sleep(300)
            assert tries == ["1"]
            await scene.resume(kind, name)
            await scene.until("1", "2")
            assert scene.sent[-2:] == ["1", "2"]
            await asyncio.sleep(1)
            found = await scene.store.find(Filter())
            assert [(r.state, r.attempts) for r in found] == [("done", 0)] * 2

    played(story)


@pytest.mark.parametrize(("kind", "name"), [("stream", "main"), ("topic", "t")])
def test_handlers_that_have_not_started_do_not_start_during_a_pause(kind, name):
    async def story(scene):
        handlers, ran, gate = Handlers(name="h"), [], asyncio.Event()

        @handlers.on("done")
        async def handle(event, tx):
            ran.append(event.id)
            await gate.wait()

        await scene.add(*(event(str(n), "k") for n in range(20)))
        async with scene.running(handlers):
            while not ran:
                await asyncio.sleep(0.01)
            await scene.pause(kind, name)
            await asyncio.sleep(1)
            gate.set()
            await asyncio.sleep(300)
            assert ran == ["0"]
            left = [r for r in await scene.store.find(Filter()) if r.state != "done"]
            assert [(r.id, r.attempts) for r in left] == [(str(n), 0) for n in range(1, 20)]
            await scene.resume(kind, name)
            await asyncio.sleep(10)
            assert ran == [str(n) for n in range(20)]

    played(story)


@pytest.mark.parametrize("mode", ["direct", "durable"])
def test_a_paused_consumer_receives_and_handles_nothing(mode):
    async def story(scene):
        queue, handlers, ran = MemoryQueue(), Handlers(name="mail"), []

        @handlers.on("done")
        async def handle(event, tx):
            ran.append(event.id)

        def send(*names):
            queue.send(
                *(Incoming("t", f'"{name}"'.encode(), {ID: name, TYPE: "done"}) for name in names)
            )

        consumer = Consumer(
            MemorySource(queue), scene.store, handlers, mode=mode, clock=SimClock(scene.loop)
        )
        await consumer.start()
        try:
            send("1")
            await asyncio.sleep(5)
            assert ran == ["1"]
            await scene.pause("consumer", "mail")
            await asyncio.sleep(1)
            assert consumer.is_paused
            send("2", "3")
            await asyncio.sleep(600)
            assert ran == ["1"]
            assert consumer.is_running
            await scene.resume("consumer", "mail")
            await asyncio.sleep(5)
            assert sorted(ran) == ["1", "2", "3"]
        finally:
            await consumer.stop()

    played(story)
