"""A real relay, a real RabbitMQ, real faults: nothing lost, nothing out of order, nobody charged."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from postroom.brokers.rabbitmq import RabbitBroker
from postroom.event import Event
from postroom.observer import BreakerChanged
from tests.scenario.place import until
from tests.scenario.rabbit import AttentivePlace, Tap, first_seen_by_key, fresh
from tests.servers.proxy import Proxy
from tests.servers.rabbitmq import RabbitMQ

pytestmark = [pytest.mark.slow, pytest.mark.server]
KEYS = [f"order-{n}" for n in range(50)]
IMPATIENT = {"confirm_seconds": 1.0, "connect_seconds": 1.0}
CALM = {"confirm_seconds": 4.0, "connect_seconds": 4.0}
PATIENCE = 90.0


@pytest.fixture(scope="module")
def module_server():
    with RabbitMQ() as server:
        yield server


@pytest.fixture
def server(module_server):
    """A RabbitMQ of this module alone; every test leaves it well."""
    yield module_server
    module_server.thaw()
    if not module_server.pids:
        module_server.restart()


@pytest.fixture
def proxy(server):
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
async def place(tmp_path):
    made = AttentivePlace(tmp_path / "app.db")
    await made.open()
    yield made
    await made.close()


class Production:
    """Writes events, key after key, until it is told to stop."""

    def __init__(self, place):
        self._place = place
        self.events = []
        self._going = True

    async def write(self, count):
        first = len(self.events)
        made = [
            Event("order.made", {"n": n}, id=f"e{n:05}", key=KEYS[n % len(KEYS)])
            for n in range(first, first + count)
        ]
        await self._place.write(*made)
        self.events += made

    async def run(self):
        while self._going and len(self.events) < 3_000:
            await self.write(25)

    def by_key(self):
        return {key: [e.id for e in self.events if e.key == key] for key in KEYS}

    @classmethod
    @asynccontextmanager
    async def of(cls, place):
        production = cls(place)
        running = asyncio.create_task(production.run())
        yield production
        production._going = False
        await running


async def check(production, place, url, queue, repeats=True):
    """All is done, all is there, first seen in its order, and nobody was charged."""
    await until(place.all_done, PATIENCE)
    assert await place.attempts() == {}
    async with Tap(url) as tap:
        tap.owns(queue, queue)
        messages = await tap.messages(queue, len(production.events), PATIENCE)
    assert first_seen_by_key(messages) == production.by_key()
    if not repeats:
        assert len(messages) == len(production.events)


def changes(notes):
    return [fact.state for fact in notes.of(BreakerChanged)]


def in_turns(notes):
    """Each change of state is told once."""
    told = changes(notes)
    return told == (["open", "closed"] * len(told))[: len(told)] and told[-1] == "closed"


def destination(url, limits=IMPATIENT):
    name = fresh("outage")
    broker = RabbitBroker(url, exchange=name, queue=name, declare=True, single=False, **limits)
    return name, broker


def opened(notes, reason=""):
    return any(fact.state == "open" and reason in fact.error for fact in notes.of(BreakerChanged))


async def strike(place, notes, broker, fault, heal, prepare=bool, reason=""):
    """Let a relay work, strike while it does, go on writing, heal, and let it finish.

    It is healed when the relay has told of an outage, for this reason.
    """
    async with place.relay(broker, observers=[notes], publish_seconds=5) as relay:
        await broker.health()
        await asyncio.to_thread(prepare)
        async with Production.of(place) as production:
            await until(lambda: relay.counts.done > 200, PATIENCE)
            await asyncio.to_thread(fault)
        await production.write(200)
        await until(lambda: opened(notes, reason), PATIENCE)
        assert relay.is_running
        await asyncio.to_thread(heal)
        await until(place.all_done, PATIENCE)
        await production.write(100)
        await until(place.all_done, PATIENCE)
        assert relay.counts.dead == 0
    return production


@pytest.mark.req("S1.4", "S5.3")
@pytest.mark.promise("G2", "G4", "P2")
async def test_away_at_start(server, place, notes):
    name, broker = destination(server.url)
    await asyncio.to_thread(server.kill)
    async with place.relay(broker, observers=[notes]) as relay:
        production = Production(place)
        await production.write(200)
        await until(lambda: changes(notes) == ["open"], PATIENCE)
        assert relay.is_running
        assert relay.counts.done == 0
        await asyncio.to_thread(server.restart)
        await until(place.all_done, PATIENCE)
    assert changes(notes) == ["open", "closed"]
    await check(production, place, server.url, name, repeats=False)


@pytest.mark.req("S1.4", "S1.7", "S5.3")
@pytest.mark.promise("G2", "G4", "P2", "P3", "P4")
async def test_killed_and_restarted(server, place, notes):
    name, broker = destination(server.url)

    def write_down_the_queue():
        # RabbitMQ does so after a moment. Killed before, it has forgotten a quorum queue, and with
        # it what it had confirmed: no client can do anything about that.
        server.ctl("eval", "[dets:sync(Table) || Table <- dets:all()].")

    production = await strike(
        place, notes, broker, server.kill, server.restart, write_down_the_queue
    )
    assert in_turns(notes)
    await check(production, place, server.url, name)


@pytest.mark.req("S1.4", "S1.7", "S5.3")
@pytest.mark.promise("G2", "G4", "P2", "P3")
async def test_frozen(server, place, notes):
    """Connections stay, nothing answers: a time limit must notice."""
    name, broker = destination(server.url)
    production = await strike(place, notes, broker, server.freeze, server.thaw)
    assert in_turns(notes)
    await check(production, place, server.url, name)


@pytest.mark.req("S1.4", "S1.7", "S5.3")
@pytest.mark.promise("G2", "G4", "P2", "P3")
@pytest.mark.parametrize("direction", ["replies", "requests"])
async def test_a_network_that_swallows(server, place, notes, proxy, direction):
    name, broker = destination(proxy.url_for(server.url))
    production = await strike(place, notes, broker, lambda: proxy.swallow(direction), proxy.heal)
    assert in_turns(notes)
    await check(production, place, server.url, name)


@pytest.mark.req("S1.7", "S5.3")
@pytest.mark.promise("G2", "G4", "P2", "P3")
async def test_connections_that_are_cut_again_and_again(server, place, notes, proxy):
    name, broker = destination(proxy.url_for(server.url))
    async with place.relay(broker, observers=[notes]) as relay:
        async with Production.of(place) as production:
            for n in range(1, 8):
                await until(lambda n=n: relay.counts.done > n * 100, PATIENCE)
                await asyncio.to_thread(proxy.cut)
        await until(place.all_done, PATIENCE)
        assert relay.counts.dead == 0
    await check(production, place, server.url, name)


@pytest.mark.req("S5.3")
@pytest.mark.promise("G2", "G4", "Q4", "P2")
@pytest.mark.nightly
async def test_a_memory_alarm_blocks_the_connection(server, place, notes):
    name, broker = destination(server.url, CALM)  # that nothing else opens the breaker
    try:
        production = await strike(
            place,
            notes,
            broker,
            lambda: server.ctl("set_vm_memory_high_watermark", "0.0001"),
            lambda: server.ctl("set_vm_memory_high_watermark", "0.4"),
            reason="RabbitMQ has blocked this connection",
        )
    finally:
        await asyncio.to_thread(server.ctl, "set_vm_memory_high_watermark", "0.4")
    assert in_turns(notes)
    await check(production, place, server.url, name)


@pytest.mark.req("S1.4", "S5.3")
@pytest.mark.promise("G2", "P2")
async def test_a_name_that_cannot_be_resolved(server, place, notes, monkeypatch):
    resolve, broken = socket.getaddrinfo, [True]

    def getaddrinfo(host, *rest, **more):
        if host != "rabbit.test":
            return resolve(host, *rest, **more)
        if broken:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve("127.0.0.1", *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    name, broker = destination(server.url.replace("127.0.0.1", "rabbit.test"))
    async with place.relay(broker, observers=[notes]) as relay:
        production = Production(place)
        await production.write(200)
        await until(lambda: changes(notes) == ["open"], PATIENCE)
        assert "Temporary failure in name resolution" in notes.of(BreakerChanged)[0].error
        assert relay.is_running
        broken.clear()
        await until(place.all_done, PATIENCE)
    assert changes(notes) == ["open", "closed"]
    await check(production, place, server.url, name, repeats=False)


@pytest.mark.req("S5.3")
@pytest.mark.promise("G2", "G4", "P2")
@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_a_full_queue(server, place, notes, kind):
    """It refuses what does not fit: nobody's fault, so nobody is charged; the relay waits."""
    name = fresh("full")
    async with Tap(server.url) as tap:
        await tap.queue(name, kind=kind, x_max_length=30, x_overflow="reject-publish")
        broker = RabbitBroker(server.url, **IMPATIENT)
        async with place.relay(broker, observers=[notes]) as relay:
            production = Production(place)
            place.outbox = place.outbox_to(name)
            await production.write(300)
            await until(lambda: "open" in changes(notes), PATIENCE)
            await until(lambda: relay.counts.done, PATIENCE)
            assert relay.counts.done < 100
            assert "is full or unavailable" in notes.of(BreakerChanged)[0].error
            await tap.messages(name, 300, PATIENCE)  # a consumer comes, and makes room
            await until(place.all_done, PATIENCE)
            assert relay.counts.dead == 0
        assert await place.attempts() == {}
        assert first_seen_by_key(tap.seen) == production.by_key()
        assert len(tap.seen) == 300
