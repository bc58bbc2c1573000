"""Services in the lifespan of a web application."""

from contextlib import asynccontextmanager

import pytest

from postroom import Handlers, Relay
from postroom.integrations.asgi import lifespan
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


async def test_a_relay_lives_as_long_as_the_application():
    relay = Relay(MemoryStore(), Handlers())
    async with lifespan(relay)(None):
        assert relay.is_running
    assert not relay.is_running
