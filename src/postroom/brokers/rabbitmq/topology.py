"""What must be there before events can go: declared, or only looked for.

Relays and consumers declare a queue by the same function, so that they never contradict each other.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from aiormq.abc import AbstractChannel
from aiormq.exceptions import ChannelPreconditionFailed

from postroom.brokers.rabbitmq.options import RabbitOptions

if TYPE_CHECKING:
    from postroom.brokers.rabbitmq.link import Link

KIND = "x-queue-type"
SINGLE = "x-single-active-consumer"
LIMIT = "x-delivery-limit"
NO_LIMIT = 2**31 - 1
"""Deliveries of one message before a quorum queue drops it: more than ever happen.

RabbitMQ 4 drops a message after 20 unless told otherwise. -1 turns that off there, but makes
RabbitMQ 3 drop a message at its first return; a large number means the same to both.
"""
_INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' for queue .*: received .* but current is "
    r"(?:none|(?:the value )?'(?P<value>[^']*)'(?: of type '(?P<type>\w+)')?)",
    re.DOTALL,
)
UNSAFE = ("durable", "auto_delete")

_log = logging.getLogger(__name__)
_told: set[str] = set()


def queue_arguments(options: RabbitOptions) -> dict[str, Any]:
    """Return the arguments that the queue is declared with."""
    arguments: dict[str, Any] = {KIND: options.queue_type}
    if options.single:
        arguments[SINGLE] = True
    if options.queue_type == "quorum":
        arguments[LIMIT] = NO_LIMIT
    return arguments


async def declare(link: Link, options: RabbitOptions, exchange: str) -> None:
    """Declare an exchange, the queue and its bindings: all durable. Doing it again is no change.

    A queue that exists with other arguments is used as it is, with a warning. Raises ChannelClosed
    if it would lose messages (not durable, deleted with its last consumer), and for an exchange of
    another type. Raises AwayError.
    """
    channel = await link.open(confirms=False)
    async with link.answering("declaring"):
        if exchange:
            await channel.exchange_declare(
                exchange, exchange_type=options.exchange_type, durable=True
            )
        if options.queue is not None:
            channel = await _declare_queue(link, channel, options.queue, options)
            for key in options.binding_keys() if exchange else ():
                await channel.queue_bind(options.queue, exchange, key)
        await channel.close()


async def _declare_queue(
    link: Link, channel: AbstractChannel, queue: str, options: RabbitOptions
) -> AbstractChannel:
    """Declare the queue; returns an open channel: a refusal closes the one that was given."""
    wanted = queue_arguments(options)
    try:
        await channel.queue_declare(queue, durable=True, arguments=wanted)
    except ChannelPreconditionFailed as error:
        other = Inequivalent.read(str(error))
        if other is None:
            raise
        if other.name in UNSAFE:
            raise ChannelPreconditionFailed(
                f"the queue {queue!r} exists with {other}, and would lose messages: name another "
                "one, or delete it"
            ) from error
        channel = await link.open(confirms=False)
        await channel.queue_declare(queue, passive=True)
        ours = wanted.get(other.name, "none")
        _warn(
            f"the queue {queue!r} exists with {other}, and postroom would declare {ours}: it is "
            "used as it is. To change it, name another queue, or delete this one while it is empty"
        )
    return channel


class Inequivalent(NamedTuple):
    """An argument that a queue was declared with, as RabbitMQ tells when it refuses another."""

    name: str
    value: str | None  # None: the queue has no such argument
    type: str | None

    @classmethod
    def read(cls, refusal: str) -> Inequivalent | None:
        found = _INEQUIVALENT.search(refusal)
        return None if found is None else cls(found["name"], found["value"], found["type"])

    def __str__(self) -> str:
        return f"{self.name}={'none' if self.value is None else self.value}"


async def check(link: Link, options: RabbitOptions, exchange: str) -> None:
    """Look whether exchange and queue are there. Raises ChannelClosed, AwayError."""
    if exchange:
        await check_exchange(link, exchange)
    if options.queue is not None:
        channel = await link.open(confirms=False)
        async with link.answering("looking for a queue"):
            await channel.queue_declare(options.queue, passive=True)
            await channel.close()


async def check_exchange(link: Link, exchange: str) -> None:
    """Look whether an exchange is there. Raises ChannelClosed, AwayError."""
    channel = await link.open(confirms=False)
    async with link.answering("looking for an exchange"):
        await channel.exchange_declare(exchange, passive=True)
        await channel.close()


def _warn(text: str) -> None:
    """Say it once in this process, not at every connection."""
    if text not in _told:
        _told.add(text)
        _log.warning("%s", text)
