"""Kafka goes away in every way it can: nothing is lost, reordered, or charged an attempt."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

import pytest

from postroom import Consumer, Handlers
from postroom.brokers.kafka import KafkaBroker
from postroom.event import Event
from postroom.observer import BreakerChanged
from postroom.sources.kafka import KafkaSource
from postroom.stores.memory import MemoryStore
from postroom.testing.consumer import Sent
from tests.contract.test_consumer_kafka import KafkaWire
from tests.scenario.kafka_place import Traffic, kafka_behind_a_proxy, make_topic
from tests.scenario.place import SqlitePlace, until
from tests.servers.kafka import Kafka
from tests.servers.programs import nss_wrapper

pytestmark = [pytest.mark.slow, pytest.mark.server]
PATIENCE = 90.0


@pytest.fixture(scope="module")
def module_server():
    with Kafka() as server:
        yield server


@pytest.fixture
def server(module_server):
    """A Kafka of this module alone; it is well when a test begins."""
    module_server.thaw()
    if not module_server.pids:
        module_server.restart()
    return module_server


@pytest.fixture(scope="module")
def behind_a_proxy():
    with kafka_behind_a_proxy() as (_, proxy, url):
        yield proxy, url


@pytest.fixture
async def place(tmp_path):
    made = SqlitePlace(tmp_path / "app.db")
    await made.open()
    yield made
    await made.close()


def broker_at(url, **options):
    return KafkaBroker(url, **{"publish_seconds": 3, "answer_seconds": 1, **options})


def changes(notes):
    return [fact.state for fact in notes.of(BreakerChanged)]


@pytest.mark.req("S1.4", "S1.6", "S1.7")
@pytest.mark.promise("G2", "G4", "P2", "P4")
class TestOutages:
    async def test_away_at_the_start(self, place, notes, server):
        traffic = Traffic(place, server.url, make_topic(server.url))
        server.kill()
        async with place.relay(broker_at(server.url), observers=[notes]) as relay:
            assert relay.is_running
            await traffic.write(10)
            await until(lambda: changes(notes) == ["open"], PATIENCE)
            await traffic.write(10)
            await asyncio.to_thread(server.restart)
            await until(traffic.all_done, PATIENCE)
        # Nothing had left before: there is nothing to send twice.
        assert await traffic.check() == {}
        assert changes(notes) == ["open", "closed"]
        assert "127.0.0.1" in notes.of(BreakerChanged)[0].error

    async def test_killed_while_running(self, place, notes, server):
        traffic = Traffic(place, server.url, make_topic(server.url))
        async with place.relay(broker_at(server.url), observers=[notes]):
            await traffic.write(20)
            await until(traffic.all_done, PATIENCE)
            writing = asyncio.create_task(traffic.write(60))
            await asyncio.to_thread(server.kill)
            await writing
            await traffic.write(10)
            await until(lambda: "open" in changes(notes), PATIENCE)
            await asyncio.to_thread(server.restart)
            await traffic.write(10)
            await until(traffic.all_done, PATIENCE)
        await traffic.check()
        assert changes(notes) == ["open", "closed"]

    async def test_frozen(self, place, notes, server):
        traffic = Traffic(place, server.url, make_topic(server.url))
        async with place.relay(broker_at(server.url), observers=[notes]):
            await traffic.write(20)
            await until(traffic.all_done, PATIENCE)
            await asyncio.to_thread(server.freeze)
            await traffic.write(20)
            await until(lambda: changes(notes) == ["open"], PATIENCE)
            await traffic.write(10)
            server.thaw()
            await until(traffic.all_done, PATIENCE)
        await traffic.check()
        assert changes(notes)[-1] == "closed"

    async def test_replies_are_swallowed(self, place, notes, behind_a_proxy):
        proxy, url = behind_a_proxy
        traffic = Traffic(place, url, make_topic(url))
        async with place.relay(broker_at(url), observers=[notes]):
            await traffic.write(20)
            await until(traffic.all_done, PATIENCE)
            proxy.swallow("replies")
            try:
                await traffic.write(20)
                await until(lambda: changes(notes) == ["open"], PATIENCE)
                await traffic.write(10)
            finally:
                proxy.heal()
            await until(traffic.all_done, PATIENCE)
        copies = await traffic.check()
        # They had arrived, and nobody could know: sent again, which the receiver's inbox sees.
        assert set(copies) <= {i for ids in traffic.written.values() for i in ids[20:40]}
        assert copies != {}

    async def test_a_reply_that_is_late_makes_no_copy(self, place, notes, behind_a_proxy):
        """A connection that breaks within the time limit is mended by the idempotent producer."""
        proxy, url = behind_a_proxy
        traffic = Traffic(place, url, make_topic(url))
        async with place.relay(broker_at(url, publish_seconds=15), observers=[notes]):
            await traffic.write(20)
            await until(traffic.all_done, PATIENCE)
            proxy.swallow("replies")
            try:
                await traffic.write(20)
                await asyncio.to_thread(proxy.wait_swallowed)
            finally:
                proxy.heal()
            await until(traffic.all_done, PATIENCE)
        assert await traffic.check() == {}
        assert changes(notes) == []

    @pytest.mark.promise("K6")
    async def test_killed_while_in_transactions(self, place, server):
        traffic = Traffic(place, server.url, make_topic(server.url))
        broker = broker_at(server.url, delivery="transactional", publish_seconds=5)
        async with place.relay(broker):
            await traffic.write(20)
            await until(traffic.all_done, PATIENCE)
            writing = asyncio.create_task(traffic.write(20))
            await asyncio.to_thread(server.restart)
            await writing
            await until(traffic.all_done, PATIENCE)
        await traffic.check(committed=True)


RELAY = """
import asyncio, sys
from postroom import Relay
from postroom.observer import BreakerChanged

class Tell:
    def observe(self, fact):
        if isinstance(fact, BreakerChanged):
            print(fact.state, fact.error, flush=True)

asyncio.run(Relay(*sys.argv[1:], observers=[Tell()], max_outage_seconds=0.2).run())
"""


@pytest.mark.req("S1.4", "S1.6")
@pytest.mark.promise("G2", "G4", "P2")
async def test_a_name_that_resolves_later(place, tmp_path, kafka_url):
    """The relay has a hosts file of its own, in which its Kafka is missing at first.

    The file comes from a preloaded library, not from a mount: containers and chroots allow no
    namespaces.
    """
    names = tmp_path / "hosts"
    names.write_text("127.0.0.1 localhost\n")
    traffic = Traffic(place, kafka_url, make_topic(kafka_url))
    await traffic.write(10)
    url = kafka_url.replace("127.0.0.1", "kafka.test") + "?answer_seconds=1"
    relay = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RELAY, f"sqlite:///{place.path}", url,
        env={**os.environ, "LD_PRELOAD": str(nss_wrapper()), "NSS_WRAPPER_HOSTS": str(names)},
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE):
            state, _, error = (await relay.stdout.readline()).decode().partition(" ")
        assert state == "open"
        assert "kafka.test" in error
        await traffic.write(10)
        changed_at = names.stat().st_mtime
        names.write_text("127.0.0.1 localhost\n127.0.0.1 kafka.test\n")
        os.utime(names, (changed_at + 2, changed_at + 2))  # the library looks at whole seconds
        await until(traffic.all_done, PATIENCE)
    finally:
        relay.terminate()
        said, _ = await relay.communicate()
    assert (relay.returncode, said) == (0, b"closed \n")
    assert await traffic.check() == {}


@pytest.mark.req("S1.6")
async def test_a_name_that_does_not_resolve_is_an_outage(place, notes, caplog):
    caplog.set_level(logging.INFO)
    async with place.relay(broker_at("kafka://nowhere.invalid:9092"), observers=[notes]) as relay:
        await place.write(Event("made", id="e1", key="k"))
        await until(lambda: changes(notes) == ["open"], PATIENCE)
        with pytest.raises(Exception, match=r"nowhere\.invalid"):
            await relay.broker.health()
    assert "nowhere.invalid" in notes.of(BreakerChanged)[0].error
    assert [r for r in caplog.records if r.name.startswith("postroom.brokers")] == []
    assert (await place.record("e1")).attempts == 0


@pytest.mark.nightly
async def test_a_consumer_goes_on_soon_after_a_freeze(server, caplog):  # U5
    """Longer than its session: the group does not wait for the member of the past."""
    wire, handlers, done = KafkaWire(server.url), Handlers(name="payments"), []

    @handlers.on("order.created")
    async def charge(event, tx):
        done.append(event.id)

    source = KafkaSource(wire.url, topic=wire.topic, group=wire.group)
    async with Consumer(source, MemoryStore(), handlers):
        await wire.send(Sent("before"))
        await until(lambda: done == ["before"], PATIENCE)
        for name in ("first", "second"):
            await asyncio.to_thread(server.freeze)
            await asyncio.sleep(14)  # a session has 10 s
            server.thaw()
            await wire.send(Sent(name))
            began = asyncio.get_running_loop().time()
            await until(lambda name=name: done[-1] == name, PATIENCE)
            # Kafka itself waits 3 s for further members of an empty group
            assert asyncio.get_running_loop().time() - began < 8
    said = [r.getMessage() for r in caplog.records if r.name == "postroom.sources.kafka.source"]
    assert [line.partition(" (")[0] for line in said] == [
        "Kafka is unreachable", "Kafka is reachable again",
    ] * 2  # fmt: skip
