"""RabbitMQ as a destination."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Container, Mapping, Sequence
from typing import Unpack

from aiormq.exceptions import (
    ChannelAccessRefused,
    ChannelClosed,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
)

from postroom.broker import (
    CONFIRMED,
    Broker,
    BrokerCapabilities,
    Outcome,
    Reporter,
    Verdict,
)
from postroom.brokers.outages import UnreachableError, report_outage
from postroom.brokers.rabbitmq import topology
from postroom.brokers.rabbitmq.channels import Channel
from postroom.brokers.rabbitmq.connection import RabbitConnection, address
from postroom.brokers.rabbitmq.message import Message, Writer
from postroom.brokers.rabbitmq.publish_call import BLOCKED, PublishCall, shown
from postroom.brokers.rabbitmq.settings import RabbitSettings, read_settings
from postroom.errors import ConfigError
from postroom.model.diagnostics import Finding
from postroom.model.url import Host, Url
from postroom.options import RabbitOptions
from postroom.record import Record, short_error

_MAX_CHANNEL_KILLERS = 1_000  # ids that are remembered
_CLOSED: Mapping[type, Verdict] = {
    ChannelNotFoundEntity: Verdict.MISCONFIGURED,
    ChannelAccessRefused: Verdict.MISCONFIGURED,
    ChannelPreconditionFailed: Verdict.REJECTED,  # an invalid property, or too large
}
"""Outcomes of a message that, sent alone, closes its channel."""

Step = Callable[[RabbitConnection, RabbitSettings, str], Awaitable[None]]


class RabbitBroker(Broker):
    """Publishes with confirms, persistent and mandatory, one message of a key in flight.

    url       `amqp://user:password@host/vhost?exchange=orders&routing_key=type`
    options   those of RabbitSettings, by name or in the URL

    Of several hosts the first that answers is used. A lost connection is reopened automatically.
    """

    capabilities = BrokerCapabilities()

    def __init__(self, url: str | Url, **options: Unpack[RabbitOptions]) -> None:
        self._url = Url.parse(url)
        self.settings = read_settings(self._url, options)
        self._hosts = list(self._url.hosts or (Host("localhost"),))
        self._writer = Writer(self.settings, _cloud(self.settings))
        self._tls = self.settings.tls() if self._url.scheme == "amqps" else None
        self._link: RabbitConnection | None = None
        self._suspect_link: RabbitConnection | None = None  # for suspects: a separate connection
        self._connecting, self._connecting_suspects = asyncio.Lock(), asyncio.Lock()
        self._channel_killers: OrderedDict[str, None] = OrderedDict()
        self._closed = False

    def __repr__(self) -> str:
        return f"RabbitBroker({str(self._url)!r})"

    # -- life cycle ---------------------------------------------------------------------------
    async def open(self) -> None:
        """Connect, and declare or check the exchange and queue of the options.

        An unreachable RabbitMQ is not an error; ConfigError is raised if an exchange or queue is
        missing or differs from its declaration.
        """
        self._closed = False
        try:
            link = await self._connected()
            if not self.settings.declare:
                await self._prepare(link, topology.check)
        except SetupError as error:
            raise ConfigError(str(error)) from error
        except UnreachableError:
            return  # publishing reports it, and retries

    async def close(self) -> None:
        self._closed = True
        links, self._link, self._suspect_link = (self._link, self._suspect_link), None, None
        await asyncio.gather(*(link.close() for link in links if link is not None))

    async def health(self) -> None:
        """Make a round trip within `connect_seconds`; raises ConnectionError otherwise."""
        link = await self._connected()
        if link.is_blocked():
            raise UnreachableError(BLOCKED)
        try:
            await link.ready()
        except UnreachableError:
            self._drop(link)
            raise

    async def check(self, topics: Collection[str]) -> list[Finding]:  # noqa: ARG002
        from postroom.brokers.rabbitmq.checks import examine

        return await examine(self._url, self.settings)

    # -- publishing ---------------------------------------------------------------------------
    async def publish(self, batch: Sequence[Record], reporter: Reporter) -> None:
        if not batch:
            return
        try:
            link = await self._connected()
            call, channel = await self._start_call(link, batch, reporter, self._channel_killers)
        except UnreachableError as error:
            report_outage(batch, reporter, error)
            return
        await self._run(call, link, channel)

    async def publish_alone(self, record: Record, reporter: Reporter) -> None:
        """Try a suspect on a separate connection. If its outcome stays unknown, raises."""
        note = _Note(reporter)
        try:
            link = await self._connected(suspect=True)
            call, channel = await self._start_call(link, [record], note, {})
        except UnreachableError as error:
            report_outage([record], reporter, error)
            return
        await self._run(call, link, channel)
        outcome = note.outcome
        if outcome.verdict is Verdict.UNKNOWN:
            outcome = await self._resolve(record, call, link, outcome)
        if outcome.verdict is Verdict.CONFIRMED:
            self._channel_killers.pop(record.id, None)
        reporter.report(record, outcome)

    async def _start_call(
        self,
        link: RabbitConnection,
        batch: Sequence[Record],
        reporter: Reporter,
        channel_killers: Container[str],
    ) -> tuple[PublishCall, Channel]:
        """Prepare a publish call and take a channel for it. Raises UnreachableError:
        nothing was sent.
        """
        try:
            missing = await link.missing({self._writer.exchange_of(record) for record in batch})
            channel = await link.take()
        except UnreachableError:
            if not link.is_blocked():
                self._drop(link)
            raise
        writer = self._writer

        def compose(record: Record) -> Message | Outcome:
            if record.id in channel_killers:
                return Outcome(
                    Verdict.UNKNOWN, "it has closed its channel before and is published alone"
                )
            if missing and (error := missing.get(writer.exchange_of(record))):
                return Outcome(Verdict.MISCONFIGURED, error)
            return writer.write(record, reporter.outbox_id)

        call = PublishCall(
            batch,
            reporter,
            compose,
            confirm_seconds=self.settings.confirm_seconds,
            blocked=link.is_blocked,
        )
        return call, channel

    async def _run(self, call: PublishCall, link: RabbitConnection, channel: Channel) -> None:
        try:
            await call.run(channel)
        finally:
            link.give_back(channel, clean=call.is_clean)
            if call.error is not None:  # an exchange may be gone: check again before the next use
                for each in (self._link, self._suspect_link):
                    if each is not None:
                        each.forget_exchanges()

    async def _resolve(
        self, record: Record, call: PublishCall, link: RabbitConnection, unknown: Outcome
    ) -> Outcome:
        """Determine the outcome of a suspect that is unknown; raises if it stays unknown."""
        closed = _CLOSED.get(type(call.error))
        if closed is not None:
            self._channel_killers[record.id] = None
            if len(self._channel_killers) > _MAX_CHANNEL_KILLERS:
                self._channel_killers.popitem(last=False)
            return Outcome(closed, f"it closes its channel: {short_error(call.error or '')}")
        if call.late:
            await link.ready()
            return Outcome(
                Verdict.MISCONFIGURED,
                f"{unknown.error}, although RabbitMQ responds: a queue behind "
                f"{shown(self._writer.exchange_of(record))} is stuck, or has lost its quorum",
            )
        raise ConnectionError(unknown.error)

    # -- connections --------------------------------------------------------------------------
    async def _connected(self, *, suspect: bool = False) -> RabbitConnection:
        """Return the connection; opens a new one if necessary. Raises UnreachableError."""
        async with self._connecting_suspects if suspect else self._connecting:
            link = self._suspect_link if suspect else self._link
            if link is None or link.is_broken:
                link = await self._connect("suspects" if suspect else "events")
                if suspect:
                    self._suspect_link = link
                else:
                    self._link = link
            return link

    async def _connect(self, what: str) -> RabbitConnection:
        problems: list[str] = []
        for _ in range(len(self._hosts)):
            if self._closed:
                raise UnreachableError("the broker is closed")
            where = address(self._url, self._hosts[0], self.settings, f"postroom {what}")
            try:
                link = await RabbitConnection.connect(where, self.settings, self._tls)
            except UnreachableError as error:
                problems.append(str(error))
                self._hosts.append(self._hosts.pop(0))
                continue
            try:
                if self.settings.declare:
                    await self._prepare(link, topology.declare)
                if self._closed:
                    raise UnreachableError("the broker is closed")
            except BaseException:
                await link.close()
                raise
            return link
        raise UnreachableError("; ".join(problems))

    async def _prepare(self, link: RabbitConnection, step: Step) -> None:
        try:
            await step(link, self.settings, self.settings.exchange)
        except ChannelClosed as error:
            raise SetupError(str(error)) from error

    def _drop(self, link: RabbitConnection) -> None:
        """Close a connection that does not answer."""
        link.abort()
        if self._link is link:
            self._link = None
        if self._suspect_link is link:
            self._suspect_link = None


class SetupError(UnreachableError):
    """RabbitMQ is reachable, but the exchange or queue of the options is not usable."""


class _Note:
    """A reporter that keeps the outcome of a suspect."""

    def __init__(self, reporter: Reporter) -> None:
        self.outbox_id = reporter.outbox_id
        self.keeps_receipts = reporter.keeps_receipts
        self.outcome = Outcome(Verdict.UNKNOWN, "RabbitMQ did not report an outcome")

    def confirm(self, _: Sequence[Record], receipts: Sequence[str] = ()) -> None:
        self.outcome = CONFIRMED._replace(receipt=receipts[0]) if receipts else CONFIRMED

    def report(self, _: Record, outcome: Outcome) -> None:
        self.outcome = outcome

    async def begin(self, _: Record) -> bool:
        return True

    def may_go_on(self, _: Record) -> bool:
        return True


def _cloud(options: RabbitSettings) -> Callable[[Record], Mapping[str, str]] | None:
    if options.cloudevents is None:
        return None
    from postroom.brokers.rabbitmq.cloudevents import cloud_headers

    return cloud_headers(options.cloudevents)
