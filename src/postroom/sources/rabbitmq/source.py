"""RabbitMQ as a source: a queue, consumed with manual acknowledgements on its own connection.

Order: RabbitMQ keeps the order of a queue for one consumer. With two of them a key is inverted as
soon as one is slow or dies (I3), so a queue declared here has a single active consumer; the others
stand by. Nothing is ever requeued: unacknowledged messages return to their place when the channel
closes. And consumers are never cancelled: RabbitMQ would activate the next consumer at once, and
send it the messages behind those still in flight here.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Unpack, cast

from aiormq.abc import AbstractChannel, DeliveredMessage
from aiormq.exceptions import ChannelClosed, ChannelNotFoundEntity

from postroom.brokers.outages import UnreachableError
from postroom.brokers.rabbitmq import topology
from postroom.brokers.rabbitmq.connection import RabbitConnection, address, within
from postroom.brokers.rabbitmq.content_header import Content
from postroom.errors import ConfigError
from postroom.model.diagnostics import Finding
from postroom.model.foreign_messages import Names
from postroom.model.incoming import Incoming
from postroom.model.pauses import Pauses
from postroom.model.url import Host, Url
from postroom.options import RabbitSourceOptions
from postroom.record import short_error
from postroom.source import SourceCapabilities, SourceConnection
from postroom.sources.rabbitmq.message import incoming
from postroom.sources.rabbitmq.settings import read_settings

_log = logging.getLogger(__name__)
_FLUSH_SECONDS = 3.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # before it connects again
_MISSING_PAUSE = 3.0  # after which a queue that was created is found
_STEADY_SECONDS = 5.0  # a connection that lasts this long begins with short pauses again
# NOT_FOUND, although it exists: its node is down, or RabbitMQ is still starting.
_NOT_BACK_YET = re.compile("crashed and failed to restart|is down or inaccessible|is stopped")
_UNKNOWN = Content("", None, None, None, None, {}, "its properties were not received")
# how often to check that the consumer is still active: aiormq does not report it
_LOOK_SECONDS = 2.0


class RabbitSource:
    """Consumes one queue; `amqp://user:password@host/vhost?queue=payments&prefetch=200`.

    Options are those of RabbitSourceSettings and those of RabbitSettings for connecting and
    declaring. Of several hosts the first that answers is used; a lost connection is reopened.
    """

    def __init__(self, url: str | Url, **options: Unpack[RabbitSourceOptions]) -> None:
        self._url = Url.parse(url)
        self.settings = read_settings(self._url, options)
        self.name = self.settings.queue
        self.capabilities = SourceCapabilities(max_unacked=self.settings.prefetch)
        self._hosts = list(self._url.hosts or (Host("localhost"),))
        self._tls = self.settings.link.tls() if self._url.scheme == "amqps" else None
        self._link: RabbitConnection | None = None
        self._session: _Session | None = None
        self._is_missing = False  # the queue, or something that it is bound to
        self._pauses = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE, steady_seconds=_STEADY_SECONDS)
        self.connection = SourceConnection()

    def __repr__(self) -> str:
        return f"RabbitSource({str(self._url)!r})"

    # -- life ---------------------------------------------------------------------------------
    async def open(self) -> None:
        try:
            await self._connect()
        except UnreachableError as error:  # receiving waits for it
            self._lost(str(error))

    async def close(self) -> None:
        await self._drop(self._session, flush=True)
        self.connection.restored()  # no longer needed

    async def pause(self) -> None:
        if self._session is not None:
            self._session.leave_the_rest()

    async def health(self) -> None:
        """Make a round trip; raises ConnectionError otherwise."""
        if self._link is None or self._link.is_broken:
            raise UnreachableError("not connected to RabbitMQ")
        await self._link.ready()

    async def backlog(self) -> int | None:
        from postroom.brokers.rabbitmq.checks import count_messages

        return await count_messages(self._url, self.settings.link, self.settings.queue)

    async def check(self) -> list[Finding]:
        from postroom.brokers.rabbitmq.checks import examine_queue

        return await examine_queue(self._url, self.settings.link, self.settings.queue)

    # -- receiving ----------------------------------------------------------------------------
    async def receive(self) -> Sequence[_Delivery]:
        while True:
            session = self._session
            try:
                if session is None:
                    session = await self._connect()
                if deliveries := await session.take():
                    return deliveries
                self._lost(session.why_lost)
            except (UnreachableError, ConfigError) as error:
                self._lost(str(error))
            await self._drop(session)  # before the pause: another consumer may continue at once
            pause = self._pauses.grow()  # however the last connection ended
            await asyncio.sleep(min(pause, _MISSING_PAUSE) if self._is_missing else pause)

    def _lost(self, why: str) -> None:
        if self.connection.lost(why):
            _log.warning("%s (postroom reconnects)", why)

    async def _connect(self) -> _Session:
        errors: list[str] = []
        self._is_missing = False
        for host in self._hosts:
            name = f"postroom consumer of {self.settings.queue}"
            try:
                where = address(self._url, host, self.settings.link, name)
                self._link = await RabbitConnection.connect(where, self.settings.link, self._tls)
                self._session = await self._consume(self._link)
            except UnreachableError as error:
                errors.append(str(error))
            except ChannelClosed as error:
                said = f"the queue {self.settings.queue!r} cannot be consumed: {short_error(error)}"
                if not isinstance(
                    error, ChannelNotFoundEntity
                ):  # no permission, or an exclusive one
                    raise ConfigError(said) from error
                self._is_missing = _NOT_BACK_YET.search(str(error)) is None
                advice = ". Create it; the consumer waits" if self._is_missing else ""
                errors.append(said + advice)
            else:
                self._pauses.connected()
                if self.connection.restored():
                    _log.warning("consuming %r of RabbitMQ again", self.settings.queue)
                return self._session
            await self._drop(None)
        raise UnreachableError("; ".join(errors))

    async def _consume(self, link: RabbitConnection) -> _Session:
        options, patience = self.settings, self.settings.link.connect_seconds
        if options.link.declare:
            await topology.declare(link, options.link, options.link.exchange, consumes=True)
        channel = await link.open(confirms=False)
        session = _Session(channel, link, self.settings.names, self._lost)
        async with within(patience, f"consuming {options.queue}"):
            await channel.basic_qos(prefetch_count=options.prefetch)
            await session.begin(options.queue)
        return session

    async def _drop(self, session: _Session | None, *, flush: bool = False) -> None:
        if session is not None:
            await session.end(flush=flush)
        if session is self._session:
            self._session = None
            link, self._link = self._link, None
            if link is not None:
                await link.close()


class _Session:
    """One channel: its deliveries are lost when it ends."""

    def __init__(
        self,
        channel: AbstractChannel,
        link: RabbitConnection,
        names: Names,
        lost: Callable[[str], None],
    ) -> None:
        self._channel = channel
        self._link = link
        self._lost = lost  # reported at once: there may be no receiver waiting
        self._names = names
        self._tag: str | None = None
        self._arrived: deque[_Delivery] = deque()
        self._news = asyncio.Event()
        self._to_ack: list[int] = []
        self._acking: asyncio.Task[None] | None = None
        self._takes = True
        self.is_over = False
        self.why_lost = ""
        channel.closing.add_done_callback(self._closed)

    async def begin(self, queue: str) -> None:
        answer = await self._channel.basic_consume(queue, self._on_message)
        self._tag = answer.consumer_tag

    async def take(self) -> list[_Delivery]:
        """Wait for messages; an empty list means that the channel has closed."""
        while not self._arrived and not self.is_over:
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._news.wait()
            if self._tag is not None and self._tag not in cast("Any", self._channel).consumers:
                self._lose("RabbitMQ has cancelled the consumer: does the queue still exist?")
        taken = [] if self.is_over else list(self._arrived)
        self._arrived.clear()
        return taken

    def leave_the_rest(self) -> None:
        """Accept no more; received messages can still be acknowledged. The rest waits for
        the end.
        """
        self._takes = False
        self._arrived.clear()

    async def end(self, *, flush: bool) -> None:
        self._lost = lambda _: None  # intended
        if flush and not self.is_over:
            if self._acking is not None:
                await asyncio.wait({self._acking}, timeout=_FLUSH_SECONDS)
            with suppress(Exception):
                async with asyncio.timeout(2.0):
                    await self._channel.close()
        self._lose("closed")
        if self._acking is not None:
            self._acking.cancel()

    def ack(self, tag: int) -> None:
        self._to_ack.append(tag)
        if self._acking is None:
            self._acking = asyncio.create_task(self._send_acks())

    async def _send_acks(self) -> None:
        try:
            while self._to_ack and not self.is_over:
                tags, self._to_ack = self._to_ack, []
                for tag in tags:
                    await self._channel.basic_ack(tag, wait=False)
        except Exception as error:  # the acks were not received: the messages are delivered again
            self._lose(short_error(error))
        finally:
            self._acking = None

    async def _on_message(self, message: DeliveredMessage) -> None:
        tag = message.delivery_tag
        if tag is None:
            return
        content = self._link.content_of(message.consumer_tag or "", tag)
        if self._takes and not self.is_over:
            found = self._read(content or _UNKNOWN, message.body)
            self._arrived.append(_Delivery(self, tag, found))
            self._news.set()

    def _read(self, content: Content, body: bytes) -> Incoming:
        """Return the message; aiormq would swallow an error, and keep the message in flight."""
        try:
            return incoming(content, body, self._names)
        except Exception as error:
            problem = f"the message cannot be read: {short_error(error)}"
            return Incoming(content.routing_key, body, content.headers, problem=problem)

    def _closed(self, closing: asyncio.Future[Any]) -> None:
        said = None if closing.cancelled() else closing.exception()
        self._lose(short_error(said) if said is not None else "closed")

    def _lose(self, why: str) -> None:
        if not self.is_over:
            self.is_over = True
            self.why_lost = f"the connection to RabbitMQ was lost: {why}"
            self._arrived.clear()
            self._news.set()
            if self._tag is not None:  # it has begun: otherwise the caller of `begin` reports it
                self._lost(self.why_lost)


class _Delivery:
    __slots__ = ("_session", "_tag", "message")

    def __init__(self, session: _Session, tag: int, message: Incoming) -> None:
        self._session = session
        self._tag = tag
        self.message = message

    @property
    def is_lost(self) -> bool:
        return self._session.is_over

    def ack(self) -> None:
        if not self._session.is_over:
            self._session.ack(self._tag)
