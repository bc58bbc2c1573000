"""One connection to RabbitMQ: opened within a time limit, dropped when it does not answer.

It is a plain connection, not aio-pika's robust one: when it is lost, its users are notified at
once, and the next use opens a new one. The relay decides about messages in flight.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiormq
from aiormq.abc import AbstractChannel
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from pamqp.commands import Exchange
from yarl import URL

from postroom.brokers.outages import UnreachableError
from postroom.brokers.rabbitmq import topology
from postroom.brokers.rabbitmq.channels import Channel, FastChannel, PlainChannel, fits
from postroom.brokers.rabbitmq.content_header import Content
from postroom.brokers.rabbitmq.log import ours, take_over
from postroom.brokers.rabbitmq.publish_call import BLOCKED, shown
from postroom.brokers.rabbitmq.settings import RabbitSettings
from postroom.brokers.rabbitmq.tolerant_reader import TolerantReader
from postroom.model.url import Host, Url
from postroom.record import short_error

_CLOSE_SECONDS = 2.0
_FRAMES_AHEAD = 1_000  # answers that aiormq reads ahead
_PORTS = {"amqp": 5672, "amqps": 5671}


class _Transport(TransportFactory):
    """Keeps the writer, so that a connection with an unresponsive peer can be aborted.

    Reads through a TolerantReader, so that no message can end the connection.
    """

    def __init__(self, *, tls: bool) -> None:
        self._factory = TLSTransportFactory() if tls else TCPTransportFactory()
        self._writer: asyncio.StreamWriter | None = None
        self.reader: TolerantReader | None = None

    async def create(
        self, url: URL, **options: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, self._writer = await self._factory.create(url, **options)
        self.reader = TolerantReader(reader)
        return self.reader, self._writer

    def abort(self) -> None:
        """Abort the connection. Never raises: up to Python 3.11.2 a closed TLS transport would."""
        if self._writer is not None:
            with suppress(Exception):
                self._writer.transport.abort()


class RabbitConnection:
    """A connection and its idle channels."""

    def __init__(
        self, connection: aiormq.Connection, transport: _Transport, options: RabbitSettings
    ) -> None:
        self._connection = connection
        self._transport = transport
        self._options = options
        self._idle: list[Channel] = []
        self._spoiled: list[Channel] = []
        self._known_exchanges = {""}
        self._closing: set[asyncio.Task[None]] = set()

    @classmethod
    async def connect(
        cls, address: URL, options: RabbitSettings, context: ssl.SSLContext | None
    ) -> RabbitConnection:
        """Connect to one host. Raises UnreachableError."""
        take_over()
        transport = _Transport(tls=context is not None)
        try:
            async with within(
                options.connect_seconds, f"connecting to {address.host}:{address.port}"
            ):
                connection = aiormq.Connection(
                    address, context=context, transport_factory=transport
                )
                try:
                    await connection.connect()
                except aiormq.exceptions.InvalidFrameError as error:  # aiormq gives no more details
                    raise UnreachableError(
                        "RabbitMQ closed the connection to the virtual host "
                        f"{connection.vhost!r}: it does not exist, or this user has no access to it"
                    ) from error
        except BaseException:
            transport.abort()
            raise
        return cls(connection, transport, options)

    # -- requests -----------------------------------------------------------------------------
    @property
    def is_broken(self) -> bool:
        return not self._connection.is_opened

    @property
    def major_version(self) -> int:
        """RabbitMQ's major version, such as 3 or 4; 0 if unknown."""
        told = str(self._connection.server_properties.get("version", ""))
        first = told.partition(".")[0]
        return int(first) if first.isdecimal() else 0

    def is_blocked(self) -> bool:
        """Return whether RabbitMQ has sent connection.blocked and not yet connection.unblocked.

        aiormq has no flag for it, but `ready` waits while it is blocked: here it is only checked
        (Q4).
        """
        asking = self._connection.ready()
        try:
            asking.send(None)
        except StopIteration:
            return False
        finally:
            asking.close()
        return True

    @asynccontextmanager
    async def answering(self, doing: str) -> AsyncIterator[None]:
        """Wait for an answer, `connect_seconds` at most. Raises UnreachableError, with the reason.

        RabbitMQ may block the connection meanwhile: then it does not read the request.
        """
        try:
            async with within(self._options.connect_seconds, doing):
                yield
        except UnreachableError as error:
            if self.is_blocked() and not self.is_broken:
                raise UnreachableError(f"{doing}: {BLOCKED}") from error
            raise

    async def ready(self) -> None:
        """Make sure that RabbitMQ answers, with a round trip. Raises UnreachableError."""
        channel = await self.open(confirms=False)
        async with self.answering("closing a channel"):
            await channel.close()

    # -- channels -----------------------------------------------------------------------------
    async def take(self) -> Channel:
        """Return an unused channel in confirm mode. Raises UnreachableError."""
        spoiled, self._spoiled = self._spoiled, []
        for channel in spoiled:
            self._discard(channel)
        while self._idle:
            channel = self._idle.pop()
            if not channel.is_closed:
                return channel
        opened = await self.open(confirms=True)
        return FastChannel(opened) if fits(opened) else PlainChannel(opened)

    def give_back(self, channel: Channel, *, clean: bool) -> None:
        """Return a channel. One that is not clean is not used again (Q2)."""
        if clean:
            self._idle.append(channel)
        # a close would not be read; a second one, later, would close the connection
        elif self.is_blocked():
            self._spoiled.append(channel)
        else:
            self._discard(channel)

    async def open(self, *, confirms: bool) -> AbstractChannel:
        """Open a channel. Raises UnreachableError, at once if RabbitMQ would not read the
        request.
        """
        if self.is_blocked():
            raise UnreachableError(BLOCKED)
        async with self.answering("opening a channel"):
            return await self._connection.channel(
                publisher_confirms=confirms,
                on_return_raises=False,
                frame_buffer_size=_FRAMES_AHEAD,
            )

    def _discard(self, channel: Channel) -> None:
        async def close() -> None:
            with ours(), suppress(Exception):  # it is gone, or closes with its connection
                await channel.close()

        closing = asyncio.create_task(close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def content_of(self, consumer_tag: str, delivery_tag: int) -> Content | None:
        """Return routing key and properties of a delivery, once: aiormq does not see them."""
        reader = self._transport.reader
        return None if reader is None else reader.content_of(consumer_tag, delivery_tag)

    # -- exchanges ----------------------------------------------------------------------------
    async def missing(self, exchanges: Iterable[str]) -> dict[str, str]:
        """Return the missing exchanges, each with its error.

        A message to one would close its channel, for all messages that share it (Q4). Existing ones
        are not checked again on this connection until a channel is closed.
        """
        errors: dict[str, str] = {}
        for exchange in exchanges:
            if exchange in self._known_exchanges:
                continue
            try:
                Exchange.Declare(exchange=exchange)
            except ValueError:
                errors[exchange] = f"{exchange!r} is not a valid exchange name"
                continue
            try:
                if self._options.declare:
                    await topology.declare(self, self._options, exchange)
                else:
                    await topology.check_exchange(self, exchange)
            except aiormq.exceptions.ChannelClosed as error:
                errors[exchange] = f"{shown(exchange)} cannot be used: {short_error(error)}"
            else:
                self._known_exchanges.add(exchange)
        return errors

    def forget_exchanges(self) -> None:
        """Check again before the next use: an exchange may have been deleted."""
        self._known_exchanges = {""}

    # -- the end ------------------------------------------------------------------------------
    async def close(self) -> None:
        """Close gracefully if the peer reads; never hangs."""
        gone = ConnectionError("the connection was closed")
        if not self.is_broken:
            with suppress(Exception):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._connection.close(gone)
        self.abort()
        with suppress(Exception):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._connection.close(gone)
        for task in self._closing:
            task.cancel()

    def abort(self) -> None:
        """Abort the connection; all its users are notified."""
        self._transport.abort()


@asynccontextmanager
async def within(seconds: float, doing: str) -> AsyncIterator[None]:
    """Turn connection failures into UnreachableError, but not RabbitMQ's answers."""
    try:
        with ours():
            async with asyncio.timeout(seconds):
                yield
    except (aiormq.exceptions.ChannelClosed, UnreachableError):
        raise
    except TimeoutError as error:
        raise UnreachableError(f"{doing}: no answer within {seconds:g} s") from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise UnreachableError(
            f"{doing}: the connection was lost"
        ) from error  # how aiormq reports it
    except Exception as error:
        raise UnreachableError(f"{doing}: {short_error(error)}") from error


async def connect_first(url: Url, options: RabbitSettings, name: str) -> RabbitConnection:
    """Connect to the first host of a URL that answers. Raises UnreachableError."""
    tls = options.tls() if url.scheme == "amqps" else None
    errors: list[str] = []
    for host in url.hosts or (Host("localhost"),):
        try:
            return await RabbitConnection.connect(address(url, host, options, name), options, tls)
        except UnreachableError as error:
            errors.append(str(error))
    raise UnreachableError("; ".join(errors))


def address(url: Url, host: Host, options: RabbitSettings, name: str) -> URL:
    """Return a host's address in aiormq's form; the name identifies the connection to operators."""
    return URL.build(
        scheme=url.scheme,
        user=url.user or "guest",
        password=url.password or "guest",
        host=host.name,
        port=host.port or _PORTS[url.scheme],
        path="/" + (url.database or "/"),
        query={"heartbeat": int(options.heartbeat_seconds), "name": name},
    )
