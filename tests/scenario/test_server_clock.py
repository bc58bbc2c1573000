"""The clock of the database's host is set, by an hour, while relays are at work: a real server, with
a clock of its own. Back: lanes of the dead are free, the living go on. Ahead: leases run out early;
nothing is lost, nothing comes out of order, and who lost a lane changes no row.
"""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.event import Event
from postroom.settlement import Settlement
from tests.contract.mysql_database import own_database
from tests.scenario.mongo_place import MongoPlace
from tests.scenario.mysql_place import MysqlPlace
from tests.scenario.place import ids, until
from tests.scenario.postgres_place import PostgresPlace, own_schema
from tests.scenario.sharing import in_order
from tests.servers.clock import CLOCKED

HOUR = 3600
LEASE = 2.0
KEYS = [f"k{n}" for n in range(40)]
pytestmark = pytest.mark.server


@asynccontextmanager
async def place_on(kind, url):
    if kind == "mongo":
        yield MongoPlace(url)
    elif kind == "mysql":
        with own_database(url) as database:
            yield MysqlPlace(database)
    else:
        with own_schema(url) as own:
            yield PostgresPlace(own)


@pytest.fixture(params=sorted(CLOCKED), scope="module")
def server(request):
    with CLOCKED[request.param]() as server:
        yield request.param, server


@pytest.fixture
async def scene(server):
    """A place on a server with a clock of its own, and what sets that clock."""
    kind, running = server
    running.set_clock(0)
    async with place_on(kind, running.url) as place:
        await place.open()
        try:
            yield place, running.set_clock
        finally:
            await place.close()


async def write(place, name):
    """Write an event of every key; returns their ids."""
    events = [Event("t", id=f"{name}-{key}", key=key) for key in KEYS]
    await place.write(*events)
    return {event.id for event in events}


async def owns_all(place, name):
    """A lane that a slow heartbeat missed is taken again by the next one."""
    return await place.owners() == {name: 64}


@pytest.mark.req("S2.3")
@pytest.mark.promise("G2", "L1")
async def test_set_back_by_an_hour(scene):  # E-6, T-B1
    place, set_clock = scene
    broker = MemoryBroker()
    anna = place.relay(broker, owner="anna", lease_seconds=LEASE)
    await anna.start()
    written = await write(place, "before")
    await until(place.all_done)
    await until(lambda: owns_all(place, "anna"))

    await anna.kill()  # she gives nothing back
    set_clock(-HOUR)
    written |= await write(place, "after")
    bert = place.relay(broker, owner="bert", lease_seconds=LEASE)
    await bert.start()
    await until(lambda: set(ids(broker)) == written)
    await until(place.all_done)
    await until(lambda: owns_all(place, "bert"))

    set_clock(-2 * HOUR)  # under a relay that is alive
    written |= await write(place, "again")
    await until(lambda: set(ids(broker)) == written)
    await until(place.all_done)
    await until(lambda: owns_all(place, "bert"))
    assert len(ids(broker)) == len(written)
    assert in_order(broker)


@pytest.mark.req("S2.3")
@pytest.mark.promise("G2", "G4", "G5", "L1")
async def test_set_ahead_by_an_hour(scene):  # E-6, T-B1
    place, set_clock = scene
    broker = MemoryBroker()
    relays = [place.relay(broker, owner=name, lease_seconds=LEASE) for name in ("anna", "bert")]
    for relay in relays:
        await relay.start()
    await until(lambda: all(relay.vitals.lanes == 32 for relay in relays))
    calm = await write(place, "before")
    await until(place.all_done)

    hold = broker.hold()
    in_flight = await write(place, "during")
    await until(lambda: sum(relay.vitals.in_flight for relay in relays) == len(in_flight))
    store = place.store
    held = await store.take("side", "dead", [7], LEASE)
    set_clock(HOUR)  # every lease is over at this moment
    assert await store.take("side", "quick", [7], LEASE) == {7: held[7] + 1}
    assert await store.settle(Settlement("side", "dead", LEASE, held)) == set()
    hold.release()

    await until(lambda: set(ids(broker)) == calm | in_flight)
    await until(place.all_done)
    await until(lambda: all(relay.vitals.lanes == 32 for relay in relays))
    calm |= await write(place, "after")
    await until(lambda: set(ids(broker)) == calm | in_flight)
    await until(place.all_done)
    assert in_order(broker)
    # A lane that was taken early costs copies of what was in flight there, and no others.
    arrived = ids(broker)
    assert {name for name in arrived if arrived.count(name) > 1} <= in_flight
