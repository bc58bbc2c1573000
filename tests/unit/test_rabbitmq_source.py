"""What RabbitMQ says about a queue when a consumer comes, without a RabbitMQ."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from aiormq.exceptions import ChannelAccessRefused, ChannelNotFoundEntity

from postroom.brokers.outages import UnreachableError
from postroom.brokers.rabbitmq import RabbitBroker
from postroom.errors import ConfigError
from postroom.model.foreign_messages import NO_NAMES
from postroom.model.pauses import Pauses
from postroom.sources.rabbitmq import source as source_module
from postroom.sources.rabbitmq.source import RabbitSource
from postroom.testing.broker_tools import RecordingReporter, make_record

URL = "amqp://guest@localhost?queue=inbox"


class Link:
    is_broken = False

    def __init__(self):
        self.is_closed = False

    async def close(self):
        self.is_closed = True


class Session:
    async def take(self):
        return ["a message"]

    async def end(self, *, flush):
        pass


def refusing(monkeypatch, *refusals):
    """Let RabbitMQ refuse so, one try after the other, and then no more; returns the links."""
    left, links = list(refusals), []

    async def connect(*args):
        links.append(Link())
        return links[-1]

    async def consume(self, link):
        if left:
            raise ChannelNotFoundEntity(left.pop(0))
        return Session()

    monkeypatch.setattr("postroom.sources.rabbitmq.source.RabbitConnection.connect", connect)
    monkeypatch.setattr(RabbitSource, "_consume", consume)
    return links


def without_pauses(source):
    source._pauses = Pauses(0.0, 10.0)
    return source


@pytest.mark.req("S1.7", "S5.3")
@pytest.mark.parametrize(
    "said",
    [
        "NOT_FOUND - queue 'inbox' in vhost '/' has crashed and failed to restart",
        "NOT_FOUND - home node 'a@b' of durable queue 'inbox' in vhost '/' is down or inaccessible",
        "NOT_FOUND - queue 'inbox' in vhost '/' process is stopped by supervisor",
    ],
)
async def test_a_queue_that_is_not_back_yet_is_waited_for(monkeypatch, said):
    links = refusing(monkeypatch, said, said, said)
    source = without_pauses(RabbitSource(URL))
    await source.open()
    assert await source.receive() == ["a message"]
    assert [link.is_closed for link in links] == [True, True, True, False]
    await source.close()
    assert all(link.is_closed for link in links)


async def test_a_queue_that_is_not_there_is_waited_for(monkeypatch, caplog):  # U8
    missing = "NOT_FOUND - no queue 'inbox' in vhost '/'"
    refusing(monkeypatch, missing, missing, missing)
    source = without_pauses(RabbitSource(URL))
    await source.open()
    assert source.connection.trouble.startswith("the queue 'inbox' cannot be consumed")
    assert await source.receive() == ["a message"]
    assert source.connection.trouble == ""
    lost, back = [record.getMessage() for record in caplog.records]
    assert "no queue 'inbox'" in lost
    assert "Create it; the consumer waits" in lost
    assert back == "consuming 'inbox' of RabbitMQ again"
    await source.close()


async def test_a_queue_that_may_not_be_consumed_is_told_at_once(monkeypatch):  # U8
    async def consume(self, link):
        raise ChannelAccessRefused("ACCESS_REFUSED - access to queue 'inbox' refused")

    refusing(monkeypatch)
    monkeypatch.setattr(RabbitSource, "_consume", consume)
    with pytest.raises(ConfigError, match="the queue 'inbox' cannot be consumed.*REFUSED"):
        await RabbitSource(URL).open()


# -- no loop without a pause (R-C2, X-C1) -----------------------------------------------------
class Clock:
    """A time that passes only while somebody pauses."""

    def __init__(self, monkeypatch):
        self.now, self.pauses = 0.0, []
        monkeypatch.setattr("postroom.sources.rabbitmq.source.asyncio.sleep", self.sleep)

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds
        if self.now > 60.0 or len(self.pauses) == 100:
            raise TimeoutError


class Lost:
    """A session that ends at once, over what it was sent."""

    why_lost = "the connection was lost over a message"

    async def take(self):
        return []

    async def end(self, *, flush):
        pass


def failing(monkeypatch, how):
    """Let every attempt to consume fail in one way, for ever; returns the links made."""
    links = []

    async def connect(*args):
        links.append(Link())
        if how == "unreachable":
            raise UnreachableError("connecting: no answer")
        return links[-1]

    async def consume(self, link):
        if how == "lost":
            return Lost()
        raise ChannelNotFoundEntity(
            "NOT_FOUND - no queue 'inbox' in vhost '/'" if how == "no queue" else "is stopped"
        )

    monkeypatch.setattr("postroom.sources.rabbitmq.source.RabbitConnection.connect", connect)
    monkeypatch.setattr(RabbitSource, "_consume", consume)
    return links


@pytest.mark.promise("F2")
@pytest.mark.req("S5.3")
@pytest.mark.parametrize("how", ["lost", "unreachable", "no queue", "queue stopped"])
async def test_a_failure_without_end_costs_few_attempts_and_one_log_line(monkeypatch, caplog, how):
    links, clock = failing(monkeypatch, how), Clock(monkeypatch)
    source = RabbitSource(URL)
    source._pauses = Pauses(0.1, 10.0, steady_seconds=5.0, clock=clock)
    with pytest.raises(TimeoutError):
        await source.receive()
    longest = 3.0 if how == "no queue" else 10.0  # one that is created is found soon
    grown = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
    assert clock.pauses[:8] == pytest.approx([min(pause, longest) for pause in grown])
    assert set(clock.pauses[8:]) == {longest}
    assert len(links) == len(clock.pauses) <= (25 if how == "no queue" else 13)
    lines = [record.getMessage() for record in caplog.records]
    if how == "lost":  # the connection itself is restored each time, and said to be
        assert len(lines) <= 2 * len(links)
        assert source.connection.losses == len(links)
    else:
        assert len(lines) == source.connection.losses == 1
    assert source.connection.trouble


def test_a_source_that_loses_every_connection_at_once_waits_longer_each_time():
    pauses = RabbitSource(URL)._pauses  # with the settings that a source has by itself
    waits = []
    for _ in range(9):
        pauses.connected()
        waits.append(pauses.grow())
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


async def test_the_pauses_begin_anew_after_a_connection_that_lasted():
    now = [0.0]
    pauses = Pauses(0.1, 10.0, steady_seconds=5.0, clock=lambda: now[0])
    assert [pauses.grow() for _ in range(3)] == [0.1, 0.2, 0.4]
    pauses.connected()
    now[0] += 4.9
    assert pauses.grow() == 0.8
    pauses.connected()
    now[0] += 5.0
    assert [pauses.grow(), pauses.grow()] == [0.1, 0.2]


async def test_the_state_of_the_connection_is_told_once_for_each_change(monkeypatch, caplog):
    said = "NOT_FOUND - queue 'inbox' in vhost '/' process is stopped by supervisor"
    refusing(monkeypatch, said, said)
    source = without_pauses(RabbitSource(URL))
    assert source.connection.trouble == ""
    await source.open()
    assert "is stopped" in source.connection.trouble
    assert await source.receive() == ["a message"]
    assert (source.connection.trouble, source.connection.losses) == ("", 1)
    lost, back = [record.getMessage() for record in caplog.records]
    assert lost.endswith(f"{said} (postroom reconnects)")
    assert back == "consuming 'inbox' of RabbitMQ again"
    await source.close()


class HangsUp:
    """A server that takes every connection and ends it at once."""

    def __init__(self):
        self.connections = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._hang_up, "127.0.0.1", 0)
        self.host = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        await self._server.wait_closed()

    async def _hang_up(self, reader, writer):
        self.connections += 1
        writer.close()


@pytest.mark.promise("F2")
async def test_every_connection_to_a_server_that_hangs_up_is_followed_by_a_pause(caplog):
    async with HangsUp() as server:
        source = RabbitSource(f"amqp://{server.host}?queue=inbox&connect_seconds=5")
        source._pauses = pauses = Pauses(0.001, 0.004, steady_seconds=5.0)
        next_pause, slept = pauses.grow, []
        pauses.grow = lambda: slept.append(next_pause()) or slept[-1]
        receiving = asyncio.create_task(source.receive())
        async with asyncio.timeout(30):
            while len(slept) < 12:  # noqa: ASYNC110 - as many as the loop makes
                await asyncio.sleep(0.001)
        receiving.cancel()
        await asyncio.wait({receiving})
        await source.close()
        assert 0 <= server.connections - len(slept) <= 1
    assert slept[:4] == [0.001, 0.002, 0.004, 0.004]
    lines = [r for r in caplog.records if r.name == "postroom.sources.rabbitmq.source"]
    assert len(lines) == 1


@pytest.mark.promise("F2")
async def test_a_relays_broker_makes_one_attempt_for_each_host_and_call():
    """The pauses between calls are the relay's own: its breaker's."""
    async with HangsUp() as server:
        hosts = f"{server.host},{server.host}"
        broker = RabbitBroker(f"amqp://{hosts}/?connect_seconds=5")
        await broker.open()
        assert server.connections == 2
        reporter = RecordingReporter()
        for n in range(1, 4):
            await broker.publish([make_record(n, key="a"), make_record(n + 10, key="b")], reporter)
            assert server.connections == 2 + 2 * n
        await broker.publish_alone(make_record(30), reporter)
        with pytest.raises(ConnectionError):
            await broker.health()
        await broker.close()
        assert server.connections == 12
    assert {outcome.verdict.value for _, outcome in reporter.reports} == {"outage"}


class Channel:
    """A channel of aiormq that notes what is sent, in order."""

    def __init__(self):
        self.closing = asyncio.get_running_loop().create_future()
        self.consumers, self.sent = {"tag": None}, []

    async def basic_consume(self, queue, call):
        return SimpleNamespace(consumer_tag="tag")

    async def basic_ack(self, tag, *, multiple=False, wait):
        await asyncio.sleep(0)
        self.sent.append(f"ack {'up to ' if multiple else ''}{tag}")

    async def close(self):
        self.sent.append("close")


@pytest.fixture
async def session():
    lost = []
    found = source_module._Session(Channel(), None, NO_NAMES, lost.append)
    found.told = lost
    await found.begin("inbox")
    return found


@pytest.mark.promise("G2", "G6")
async def test_the_acks_of_finished_messages_go_before_the_channel_is_closed(session):
    """Each for itself: an earlier message may still be handled."""
    session.ack(3)
    session.ack(1)
    await session.end(flush=True)
    assert session._channel.sent == ["ack 3", "ack 1", "close"]
    assert session.told == []


@pytest.mark.promise("F2")
async def test_a_consumer_that_rabbitmq_has_cancelled_is_noticed(session, monkeypatch):
    monkeypatch.setattr(source_module, "_LOOK_SECONDS", 0.01)
    session._channel.consumers.clear()  # as aiormq does when it reads Basic.Cancel
    async with asyncio.timeout(10):
        assert await session.take() == []
    (why,) = session.told
    assert "RabbitMQ has cancelled the consumer: does the queue still exist?" in why
