"""Services in the lifespan of a web application."""

import asyncio
import signal
from contextlib import asynccontextmanager

import pytest

from postroom import Bus, Handlers, Relay
from postroom.integrations.asgi import lifespan, problems, stop_process
from postroom.stores.memory import MemoryStore


class Service:
    def __init__(self, name, log, *, broken=False):
        self.name, self.log, self.broken = name, log, broken

    async def start(self):
        if self.broken:
            raise RuntimeError("no database")
        self.log.append(f"{self.name} starts")

    async def stop(self):
        self.log.append(f"{self.name} stops")


async def test_services_start_in_order_and_stop_in_reverse():
    log = []

    @asynccontextmanager
    async def own(app):
        log.append(f"{app} opens")
        yield
        log.append(f"{app} closes")

    async with lifespan(Service("relay", log), Service("consumer", log), around=own)("shop"):
        log.append("requests")
    assert log == [
        "shop opens", "relay starts", "consumer starts", "requests", "consumer stops",
        "relay stops", "shop closes",
    ]  # fmt: skip


async def test_what_was_started_is_stopped_when_the_next_cannot_be():
    log = []
    services = Service("relay", log), Service("consumer", log, broken=True)
    with pytest.raises(RuntimeError, match="no database"):
        async with lifespan(*services)(None):
            pytest.fail("it must not come up")
    assert log == ["relay starts", "relay stops"]


def test_a_service_that_does_not_say_whether_it_runs_is_no_problem():
    assert problems(Service("scheduler", [])) == []


class Panic(BaseException):
    pass


@pytest.fixture
def relays():
    return [Relay(MemoryStore(), Handlers(name=name)) for name in ("h", "i")]


async def test_a_service_that_crashes_is_told(caplog, relays):  # R-C6
    relay, other = relays
    called = asyncio.Queue()
    async with lifespan(*relays, on_crash=lambda *about: called.put_nowait(about))(None):
        assert problems(*relays) == []
        relay._broke_down(panic := Panic("index out of bounds"))
        assert problems(*relays) == ["Relay crashed; see the log of this process"]
        assert await asyncio.wait_for(called.get(), 10) == (relay, panic)
        assert other.is_running
        assert [(r.levelname, r.message) for r in caplog.records] == [
            ("ERROR", "the relay of stream main crashed and stops"),
        ]
    assert called.empty()
    assert problems(*relays)[1] == "Relay does not run; see the log of this process"


async def test_an_application_that_continues_without_a_service_says_so(caplog, relays):
    async with lifespan(*relays)(None):
        relays[0]._broke_down(Panic("index out of bounds"))
        with pytest.raises(Panic):
            await relays[0].wait()
        await asyncio.sleep(0)  # the lifespan waits for the same event
    assert [(r.levelname, r.message) for r in caplog.records] == [
        ("ERROR", "the relay of stream main crashed and stops"),
        ("WARNING", "Relay crashed; the application continues without it"),
    ]


async def test_a_service_of_another_kind_that_crashes_is_logged(caplog):
    class Scheduler(Service):
        async def wait(self):
            raise Panic("no memory")

    called = asyncio.Queue()
    services = Scheduler("scheduler", []), Scheduler("mailer", [])
    async with lifespan(*services, on_crash=lambda *about: called.put_nowait(about))(None):
        await asyncio.wait_for(called.get(), 10)
        await asyncio.wait_for(called.get(), 10)
    assert [(r.levelname, r.message) for r in caplog.records] == [
        ("ERROR", "Scheduler scheduler crashed"), ("ERROR", "Scheduler mailer crashed"),
    ]  # fmt: skip


async def test_on_crash_that_fails_is_logged(caplog, relays):
    called = asyncio.Event()

    def bug(*_):
        called.set()
        raise RuntimeError("a bug")

    async with lifespan(*relays, on_crash=bug)(None):
        relays[0]._broke_down(Panic("index out of bounds"))
        await asyncio.wait_for(called.wait(), 10)
        assert caplog.records[-1].message == "on_crash failed for Relay"
        assert relays[1].is_running


async def test_a_web_process_may_end_with_its_service(relays):
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, asked.set)  # as a web server does
    try:
        async with lifespan(*relays, on_crash=stop_process)(None):
            relays[0]._broke_down(Panic("index out of bounds"))
            await asyncio.wait_for(asked.wait(), 10)
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
    assert not relays[1].is_running


async def test_a_bus_whose_relay_crashes_does_not_run():  # R-C6
    bus = Bus(MemoryStore())
    bus.module("orders")
    await bus.start()
    waiting = asyncio.create_task(bus.wait())
    assert bus.is_running
    bus._relays[0]._broke_down(Panic("index out of bounds"))
    assert not bus.is_running
    with pytest.raises(Panic):
        await waiting
    assert not bus.is_running
    await bus.start()
    assert bus.is_running
    await bus.stop()
    await bus.wait()


async def test_a_relay_lives_as_long_as_the_application():
    relay = Relay(MemoryStore(), Handlers())
    async with lifespan(relay)(None):
        assert relay.is_running
    assert not relay.is_running
