"""Channels in confirm mode: messages are sent, and a listener receives their outcomes.

`FastChannel` writes frames encoded here, many in one write, and puts its own entries where aiormq
keeps its futures: five times as fast as a future and a task for each message. It depends on
internal names of aiormq that `fits` checks; where they differ, `PlainChannel` does the same with
aiormq's public `basic_publish`.

Only a Basic.Ack is a confirm: for an unroutable message the same call returns the message (Q1).
Returns are matched by message id, so one id is never in flight twice on a channel, and a channel
with an abandoned message is not used again (Q2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol, cast

from aiormq.abc import AbstractChannel, ChannelFrame, DeliveredMessage
from aiormq.exceptions import DeliveryError, PublishError
from pamqp.commands import Basic

from postroom.brokers.rabbitmq.frames import Encoder, UnsendableError
from postroom.brokers.rabbitmq.message import Message

_MAX_HEADER_NAME = 128  # pamqp would truncate a longer one


class ConfirmListener(Protocol):
    """Receives the outcomes of messages. All calls are made on the event loop, one per message."""

    def confirmed(self, message: Message) -> None: ...

    def returned(self, message: Message, reply: str) -> None:
        """No queue accepted it."""

    def refused(self, message: Message) -> None:
        """A queue refused it (nack)."""

    def closed(self, error: BaseException) -> None:
        """The channel is closed; messages without an answer get none."""


class Channel(Protocol):
    """The operations of a channel. It serves one listener at a time."""

    @property
    def is_closed(self) -> bool: ...

    def listen(self, listener: ConfirmListener | None) -> None: ...

    def pack(self, message: Message) -> object:
        """Encode a message. Raises UnsendableError."""

    async def post(self, packed: Sequence[tuple[Message, Any]]) -> None:
        """Send encoded messages."""

    async def close(self) -> None: ...


def fits(channel: AbstractChannel) -> bool:
    """Return whether this version of aiormq has the internals that FastChannel uses."""
    inside = cast("Any", channel)
    with suppress(AttributeError, TypeError):
        frame = ChannelFrame(payload=b"", should_close=False, drain_future=None)
        return (
            isinstance(inside.confirmations, dict)
            and isinstance(inside.message_id_delivery_tag, dict)
            and isinstance(inside.write_queue, asyncio.Queue)
            and isinstance(inside.number, int)
            and isinstance(inside.connection.connection_tune.frame_max, int)
            and inside.delivery_tag == 0
            and inside._close_exception is None  # noqa: SLF001 - aiormq's; `post` reads it
            and frame.payload == b""
            and not frame.should_drain
        )
    return False


class _PendingConfirm:
    """The entry of one message in aiormq's table of pending confirms, which treats it as a
    future.
    """

    __slots__ = ("_answered", "_channel", "_message")

    def __init__(self, channel: FastChannel, message: Message) -> None:
        self._channel = channel
        self._message = message
        self._answered = False

    def done(self) -> bool:
        return self._answered

    def cancelled(self) -> bool:
        return False

    def set_result(self, answer: object) -> None:
        self._answered = True
        self._channel.heard(self._message, answer)

    def set_exception(self, error: BaseException) -> None:
        self._answered = True
        self._channel.heard(self._message, error)


class _ListeningChannel:
    """Passes aiormq's answers to a listener."""

    def __init__(self, channel: AbstractChannel) -> None:
        self._channel = channel
        self._listener: ConfirmListener | None = None
        channel.closing.add_done_callback(self._on_closed)

    @property
    def is_closed(self) -> bool:
        return self._channel.is_closed

    def listen(self, listener: ConfirmListener | None) -> None:
        self._listener = listener

    def heard(self, message: Message, answer: object) -> None:
        listener = self._listener
        if listener is None:
            return
        if isinstance(answer, Basic.Ack):
            listener.confirmed(message)
        elif isinstance(answer, (PublishError, DeliveredMessage)):
            listener.returned(message, _reply(answer))
        elif isinstance(answer, DeliveryError):
            listener.refused(message)
        # Anything else is not an answer: the time limit applies.

    def _on_closed(self, closing: asyncio.Future[Any]) -> None:
        error = None if closing.cancelled() else closing.exception()
        if self._listener is not None:
            self._listener.closed(error or ConnectionError("the channel was closed"))

    async def close(self) -> None:
        self._listener = None
        if not self._channel.is_closed:
            await self._channel.close()


class FastChannel(_ListeningChannel):
    """Many messages in one write."""

    def __init__(self, channel: AbstractChannel) -> None:
        super().__init__(channel)
        inside = cast("Any", channel)
        self._encoder = Encoder(inside.number, inside.connection.connection_tune.frame_max)
        self.pack = self._encoder.encode
        self._pending: dict[int, _PendingConfirm] = inside.confirmations
        self._tags: dict[str, int] = inside.message_id_delivery_tag
        self._queue: asyncio.Queue[ChannelFrame] = inside.write_queue
        self._tag = 0

    async def post(self, packed: Sequence[tuple[Message, bytes]]) -> None:
        if cast("Any", self._channel)._close_exception is not None:  # noqa: SLF001 - aiormq's
            return  # closed, the notification follows: RabbitMQ would close the connection
        pending, tags = self._pending, self._tags
        for message, _ in packed:
            self._tag += 1
            pending[self._tag] = _PendingConfirm(self, message)
            tags[message.record.id] = self._tag
        payload = b"".join([frames for _, frames in packed])
        await self._queue.put(ChannelFrame(payload=payload, should_close=False, drain_future=None))

    def heard(self, message: Message, answer: object) -> None:
        self._tags.pop(message.record.id, None)
        super().heard(message, answer)


class PlainChannel(_ListeningChannel):
    """One call of the public API per message."""

    def __init__(self, channel: AbstractChannel) -> None:
        super().__init__(channel)
        self._calls: set[asyncio.Task[None]] = set()

    def pack(self, message: Message) -> Basic.Properties:
        for name in message.headers:
            if len(name.encode()) > _MAX_HEADER_NAME:
                raise UnsendableError(
                    f"the header name {name[:40]!r}… is longer than {_MAX_HEADER_NAME} bytes"
                )
        try:
            Basic.Publish(exchange=message.exchange, routing_key=message.routing_key)
        except ValueError as error:
            raise UnsendableError(str(error)) from error
        return Basic.Properties(
            content_type=message.content_type,
            headers=dict(message.headers),
            delivery_mode=2,
            correlation_id=message.correlation_id,
            message_id=message.record.id,
            timestamp=None if message.timestamp is None else _instant(message.timestamp),
            message_type=message.record.type,
            app_id=message.app_id,
        )

    async def post(self, packed: Sequence[tuple[Message, Basic.Properties]]) -> None:
        for message, properties in packed:
            call = asyncio.create_task(self._publish(message, properties))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def close(self) -> None:
        for call in self._calls:
            call.cancel()
        await super().close()

    async def _publish(self, message: Message, properties: Basic.Properties) -> None:
        answer: object
        try:
            answer = await self._channel.basic_publish(
                message.record.payload,
                exchange=message.exchange,
                routing_key=message.routing_key,
                properties=properties,
                mandatory=True,
            )
        except Exception as error:  # the close notification reports a lost channel
            answer = error
        self.heard(message, answer)


def _instant(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _reply(answer: PublishError | DeliveredMessage) -> str:
    frame = answer.frame if isinstance(answer, PublishError) else answer.delivery
    return f"{getattr(frame, 'reply_code', '')} {getattr(frame, 'reply_text', '')}".strip()
