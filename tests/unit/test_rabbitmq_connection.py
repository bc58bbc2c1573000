"""A connection to RabbitMQ that is blocked in the middle of a question."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from postroom.brokers.outages import UnreachableError
from postroom.brokers.rabbitmq import RabbitBroker
from postroom.brokers.rabbitmq.connection import RabbitConnection, TCPTransportFactory, _Transport
from postroom.brokers.rabbitmq.settings import RabbitSettings


class Silent:
    """An open connection that answers nothing; asked for a channel, RabbitMQ may block it."""

    is_opened = True

    def __init__(self, *, blocks):
        self._blocks = blocks
        self._unblocked = asyncio.Event()
        self._unblocked.set()

    async def ready(self):
        await self._unblocked.wait()

    async def channel(self, **_):
        if self._blocks:
            self._unblocked.clear()
        await asyncio.Event().wait()


async def error_of(connection):
    link = RabbitConnection(connection, SimpleNamespace(), RabbitSettings(connect_seconds=0.01))
    with pytest.raises(UnreachableError) as raised:
        await link.open(confirms=True)
    return str(raised.value)


@pytest.mark.req("S5.3")
@pytest.mark.promise("Q4")
async def test_no_answer():
    assert await error_of(Silent(blocks=False)) == "opening a channel: no answer within 0.01 s"


@pytest.mark.req("S5.3")
@pytest.mark.promise("Q4")
async def test_no_answer_because_rabbitmq_has_blocked_the_connection_meanwhile():
    error = await error_of(Silent(blocks=True))
    assert error.startswith("opening a channel: RabbitMQ has blocked this connection")


@pytest.mark.promise("Q4")
async def test_a_lost_connection_is_not_called_blocked():
    lost = Silent(blocks=True)
    lost.is_opened = False
    assert await error_of(lost) == "opening a channel: no answer within 0.01 s"


class EndedTransport:
    """A TLS transport after its end, as asyncio of Python 3.11.2 has it."""

    def abort(self):
        raise AttributeError("'NoneType' object has no attribute 'abort'")


class EndedWriter:
    """A connection that ended during its handshake."""

    def __init__(self):
        self.transport = EndedTransport()

    def write(self, data):
        raise ConnectionResetError("the server hung up")

    def can_write_eof(self):
        return False

    def is_closing(self):
        return True

    def close(self):
        pass

    async def wait_closed(self):
        pass


async def test_a_transport_that_has_ended_can_be_aborted(monkeypatch):
    async def create(self, url, **options):
        return asyncio.StreamReader(), EndedWriter()

    monkeypatch.setattr(TCPTransportFactory, "create", create)
    broker = RabbitBroker("amqp://localhost")
    with pytest.raises(
        UnreachableError, match="connecting to localhost:5672: ConnectionResetError"
    ):
        await broker.health()
    await broker.close()


async def test_a_link_whose_transport_has_ended_can_be_closed():
    class Gone:
        is_opened = False

        async def close(self, error):
            raise error

    transport = _Transport(tls=True)
    transport._writer = EndedWriter()
    link = RabbitConnection(Gone(), transport, RabbitSettings())
    link.abort()
    await link.close()


@pytest.mark.promise("Q2")
async def test_a_channel_that_was_closed_while_it_was_idle_is_not_used_again():
    link = RabbitConnection(
        Silent(blocks=False), SimpleNamespace(), RabbitSettings(connect_seconds=0.01)
    )
    well, closed = SimpleNamespace(is_closed=False), SimpleNamespace(is_closed=True)
    for channel in (well, closed):
        link.give_back(channel, clean=True)
    assert await link.take() is well
    with pytest.raises(UnreachableError):  # there is no other: a new one is asked for
        await link.take()


@pytest.mark.req("S5.3")
@pytest.mark.promise("Q4")
async def test_health_of_a_blocked_connection_says_so_and_keeps_it():
    broker, connection = RabbitBroker("amqp://localhost"), Silent(blocks=False)
    connection._unblocked.clear()
    broker._link = link = RabbitConnection(connection, SimpleNamespace(), broker.settings)
    with pytest.raises(UnreachableError, match="has blocked this connection"):
        await broker.health()
    assert broker._link is link  # what is on its way there may still be confirmed


@pytest.mark.promise("Q2", "Q4")
async def test_channels_that_are_spoiled_while_blocked_are_closed_afterwards():
    connection, closed = Silent(blocks=False), asyncio.Event()
    link = RabbitConnection(connection, SimpleNamespace(), RabbitSettings(connect_seconds=0.01))

    class Spoiled:
        is_closed = False

        async def close(self):
            closed.set()

    connection._unblocked.clear()
    link.give_back(Spoiled(), clean=False)
    await asyncio.sleep(0)
    assert not closed.is_set()  # RabbitMQ would not read it
    connection._unblocked.set()
    link.give_back(well := SimpleNamespace(is_closed=False), clean=True)
    assert await link.take() is well
    async with asyncio.timeout(5):
        await closed.wait()
