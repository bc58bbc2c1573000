"""RabbitMQ keeps the contract of brokers, on the real server."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from postroom.brokers.rabbitmq import RabbitBroker, connection
from postroom.brokers.rabbitmq.channels import FastChannel, PlainChannel
from postroom.testing.broker import BrokerContract
from tests.scenario.place import until
from tests.scenario.rabbit import Tap, arrival, fresh
from tests.servers.proxy import Proxy


class Gate:
    """Stops a message before it is written."""

    def __init__(self):
        self.reached = asyncio.Event()
        self.released = asyncio.Event()

    def release(self):
        self.released.set()


class Gated:
    """A channel that lets all messages pass but those that are held."""

    def __init__(self, inner, gates):
        self._inner = inner
        self._gates = gates
        self._waiting = set()
        self.listen, self.pack = inner.listen, inner.pack

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def post(self, packed):
        free = [call for call in packed if call[0].record.id not in self._gates]
        for call in packed:
            if call not in free:
                task = asyncio.create_task(self._later(call))
                self._waiting.add(task)
                task.add_done_callback(self._waiting.discard)
        if free:
            await self._inner.post(free)

    async def _later(self, call):
        gate = self._gates[call[0].record.id]
        gate.reached.set()
        await gate.released.wait()
        await self._inner.post([call])


class OnRabbitMQ:
    """The fixtures."""

    topic = BrokerContract.topic
    channel = FastChannel
    queue_type = "quorum"

    @pytest.fixture
    async def queue(self):
        return fresh("contract")

    @pytest.fixture
    def proxy(self, rabbitmq_url):
        with Proxy(urlsplit(rabbitmq_url).port) as proxy:
            yield proxy

    @pytest.fixture
    async def tap(self, rabbitmq_url, queue):
        async with Tap(rabbitmq_url) as tap:
            await tap.exchange(queue, "direct")
            await tap.queue(queue, kind=self.queue_type)
            await tap.bind(queue, queue, self.topic)
            yield tap

    @pytest.fixture
    def gates(self):
        return {}

    @pytest.fixture
    async def broker(self, rabbitmq_url, proxy, tap, queue, gates, monkeypatch):
        used = set()
        take = connection.RabbitConnection.take

        async def take_gated(self):
            channel = await take(self)
            inner = channel._inner if isinstance(channel, Gated) else channel
            used.add(type(inner))
            return Gated(inner, gates)

        monkeypatch.setattr(connection.RabbitConnection, "take", take_gated)
        if self.channel is PlainChannel:
            monkeypatch.setattr(connection, "fits", lambda _: False)
        broker = RabbitBroker(proxy.url_for(rabbitmq_url), **self.options(queue))
        await broker.open()
        yield broker
        await broker.close()
        assert used <= {self.channel}

    def options(self, queue):
        return {"exchange": queue, "confirm_seconds": 15, "connect_seconds": 10}

    @pytest.fixture
    def arrived(self, tap, queue):
        async def read():
            return [arrival(message) for message in await tap.drain(queue)]

        return read

    @pytest.fixture
    def refuse(self):
        return lambda record: record._replace(topic="nobody.is.bound.to.this")

    @pytest.fixture
    def hold(self, gates):
        def hold(record):
            gates[record.id] = Gate()
            return gates[record.id]

        yield hold
        for gate in gates.values():
            gate.release()

    @pytest.fixture
    def outage(self, broker, proxy):
        async def go_away():
            proxy.refuse()
            # What is written before the loss is noticed is unknown, and rightly so.
            await until(lambda: broker._link is None or broker._link.is_broken)

        return go_away, proxy.accept


class TestRabbitMQ(OnRabbitMQ, BrokerContract):
    abilities = frozenset({"refuse", "hold", "outage"})


class TestRabbitMQByThePublicApi(OnRabbitMQ, BrokerContract):
    abilities = frozenset({"refuse", "hold", "outage"})
    channel = PlainChannel
    queue_type = "classic"


class TestRabbitMQWithAnyRoutingKey(OnRabbitMQ, BrokerContract):
    abilities = frozenset({"any_topic"})

    @pytest.fixture
    async def tap(self, rabbitmq_url, queue):
        async with Tap(rabbitmq_url) as tap:
            await tap.exchange(queue, "topic")
            await tap.queue(queue, kind="classic")
            await tap.bind(queue, queue, "#")
            yield tap


def test_the_contract_leaves_out_only_what_the_abilities_say():
    tests = {name for name in dir(BrokerContract) if name.startswith("test_")}
    left_out = {name for name in tests if getattr(TestRabbitMQ, name) is None}
    assert left_out == {
        "test_a_start_is_told_for_each_record_that_starts",
        "test_what_never_started_is_not_told_as_started",
        "test_a_lost_lane_keeps_its_records_from_starting",
        "test_what_is_too_large_is_rejected_and_its_neighbours_are_not",
        "test_hostile_topics_arrive_as_they_are",
    }
    assert getattr(TestRabbitMQWithAnyRoutingKey, "test_hostile_topics_arrive_as_they_are")
