"""Services in the lifespan of a web application."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from postroom import Bus, Handlers, Relay
from postroom.integrations.asgi import lifespan, problems
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


async def test_a_service_that_breaks_down_is_told(caplog):  # R-C6
    relay, other = (
        Relay(MemoryStore(), Handlers(name="h")),
        Relay(MemoryStore(), Handlers(name="i")),
    )
    async with lifespan(relay, other)(None):
        assert problems(relay, other) == []
        relay._broke_down(Panic("index out of bounds"))
        with pytest.raises(Panic):
            await relay.wait()
        assert problems(relay, other) == ["Relay does not run; see the log of this process"]
        await asyncio.sleep(0)
        assert [r.message for r in caplog.records if "asgi" in r.name] == [
            "Relay broke down and does not run any more"
        ]
    assert not other.is_running


async def test_a_bus_whose_relay_breaks_down_does_not_run(tmp_path):  # R-C6
    bus = Bus(MemoryStore())
    bus.module("orders")
    await bus.start()
    waiting = asyncio.create_task(bus.wait())
    assert bus.is_running
    bus._relays[0]._broke_down(Panic("index out of bounds"))
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
