"""One connection to RabbitMQ: made within a time limit, dropped when it does not answer.

A connection here is plain, not aio-pika's robust one: when it is lost, those who use it learn so at
once, and the next use makes a new one. What was in flight is the relay's to judge.
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
_FRAMES_AHEAD = 1_000  # answers that aiormq reads before they are handled
_PORTS = {"amqp": 5672, "amqps": 5671}


class UnreachableError(ConnectionError):
    """RabbitMQ cannot be reached, does not let us in, or does not answer."""


class _Transport(TransportFactory):
    """Keeps the writer, so that a connection whose peer is silent can be aborted.

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
        """Cut the connection. Never raises: up to 3.11.2 a TLS transport that has ended does."""
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
        """Connect to one host. Raises AwayError."""
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
                except aiormq.exceptions.InvalidFrameError as error:  # all that aiormq says of it
                    raise UnreachableError(
                        "RabbitMQ closed the connection to the virtual host "
                        f"{connection.vhost!r}: it does not exist, or this user has no access to it"
                    ) from error
        except BaseException:
            transport.abort()
            raise
        return cls(connection, transport, options)

    # -- questions ----------------------------------------------------------------------------
    @property
    def is_broken(self) -> bool:
        return not self._connection.is_opened

    @property
    def major_version(self) -> int:
        """RabbitMQ's own, as 3 or 4; 0 if it does not tell."""
        told = str(self._connection.server_properties.get("version", ""))
        first = told.partition(".")[0]
        return int(first) if first.isdecimal() else 0

    def is_blocked(self) -> bool:
        """Say whether RabbitMQ has sent connection.blocked and not yet connection.unblocked.

        aiormq has no flag for it, but `ready` waits while it is so: here it is only asked (Q4).
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
        """Wait for an answer no longer than `connect_seconds`. Raises AwayError, with the reason.

        RabbitMQ may block the connection in the middle: then it does not read what was asked.
        """
        try:
            async with within(self._options.connect_seconds, doing):
                yield
        except UnreachableError as error:
            if self.is_blocked() and not self.is_broken:
                raise UnreachableError(f"{doing}: {BLOCKED}") from error
            raise

    async def ready(self) -> None:
        """Make sure that it answers: a round trip to RabbitMQ. Raises AwayError."""
        channel = await self.open(confirms=False)
        async with self.answering("closing a channel"):
            await channel.close()

    # -- channels -----------------------------------------------------------------------------
    async def take(self) -> Channel:
        """Return a channel in confirm mode that nobody else uses. Raises AwayError."""
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
        elif self.is_blocked():  # a close would not be read; a second one, later, would hang us up
            self._spoiled.append(channel)
        else:
            self._discard(channel)

    async def open(self, *, confirms: bool) -> AbstractChannel:
        """Open a channel. Raises AwayError, at once if RabbitMQ would not read what we write."""
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
            with ours(), suppress(Exception):  # it is gone, or goes with its connection
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
        """Return the exchanges that are not there, each with the error.

        A message to one would close its channel, for all that share it (Q4). Those that were found
        are not asked for again on this connection, until a channel is closed.
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
        """Look again before the next use: one may have been deleted."""
        self._known_exchanges = {""}

    # -- the end ------------------------------------------------------------------------------
    async def close(self) -> None:
        """Say good-bye if the other side listens; never hangs."""
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
        """Cut the connection; all that use it learn so."""
        self._transport.abort()


@asynccontextmanager
async def within(seconds: float, doing: str) -> AsyncIterator[None]:
    """Turn what can go wrong with a connection into AwayError, but not what RabbitMQ answers."""
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
        ) from error  # aiormq's own way to say so
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
    """Return the address of a host as aiormq wants it; a connection is known to people by name."""
    return URL.build(
        scheme=url.scheme,
        user=url.user or "guest",
        password=url.password or "guest",
        host=host.name,
        port=host.port or _PORTS[url.scheme],
        path="/" + (url.database or "/"),
        query={"heartbeat": int(options.heartbeat_seconds), "name": name},
    )
