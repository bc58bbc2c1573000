"""Declares or checks the exchange and the queue that events go to.

Relays and consumers declare a queue with the same function, so that they never contradict each
other.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from aiormq.abc import AbstractChannel
from aiormq.exceptions import ChannelPreconditionFailed

from postroom.brokers.rabbitmq.settings import RabbitSettings

if TYPE_CHECKING:
    from postroom.brokers.rabbitmq.connection import RabbitConnection

KIND = "x-queue-type"
SINGLE = "x-single-active-consumer"
LIMIT = "x-delivery-limit"
NO_LIMIT = 2**31 - 1
"""The delivery limit of a quorum queue, after which it drops a message: more than ever happen.

RabbitMQ 4 drops a message after 20 deliveries by default. -1 turns that off there, but makes
RabbitMQ 3 drop a message at its first return; a large number means the same to both.
"""
_INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' for queue .*: received .* but current is "
    r"(?:none|(?:the value )?'(?P<value>[^']*)'(?: of type '(?P<type>\w+)')?)",
    re.DOTALL,
)
NUMBERS = ("byte", "short", "long", "signedint", "unsignedint")
_MOST_ARGUMENTS = 20
_LOSES = dict.fromkeys(
    ("durable", "auto_delete"), "it would lose messages. Name another queue, or delete this one"
)

_log = logging.getLogger(__name__)
_told: set[str] = set()


def queue_arguments(options: RabbitSettings) -> dict[str, Any]:
    """Return the arguments that declare the queue."""
    arguments: dict[str, Any] = {KIND: options.queue_type}
    if options.single:
        arguments[SINGLE] = True
    if options.queue_type == "quorum":
        arguments[LIMIT] = NO_LIMIT
    return arguments


def binding_keys(options: RabbitSettings) -> tuple[str, ...]:
    """Return the keys that bind the queue."""
    if options.bindings is not None:
        return options.bindings
    return ("#",) if options.exchange_type == "topic" else ("",)


async def declare(
    link: RabbitConnection, options: RabbitSettings, exchange: str, *, consumes: bool = False
) -> None:
    """Declare an exchange, the queue and its bindings, all durable; idempotent.

    A queue that exists with other arguments is used as it is, with a warning. Raises ChannelClosed
    if that would break a guarantee: a queue that is not durable or is deleted with its last
    consumer loses messages, and one that several consumers share inverts keys. Also raises it for
    an exchange of another type. Raises UnreachableError.
    """
    channel = await link.open(confirms=False)
    async with link.answering("declaring"):
        if exchange:
            await channel.exchange_declare(
                exchange, exchange_type=options.exchange_type, durable=True
            )
        if options.queue is not None:
            unsafe = refused(options, consumes=consumes)
            channel = await _declare_queue(link, channel, options.queue, options, unsafe)
            for key in binding_keys(options) if exchange else ():
                await channel.queue_bind(options.queue, exchange, key)
        await channel.close()


def refused(options: RabbitSettings, *, consumes: bool) -> Mapping[str, str]:
    """Return the properties of an existing queue that must not differ: the reason, and the remedy.

    A relay does not depend on the number of consumers; a consumer that keeps order does.
    """
    if not (consumes and options.single):
        return _LOSES
    return {
        **_LOSES,
        SINGLE: "several consumers would handle the events of a key out of order. Name another "
        "queue, or add single=off to give up the order",
    }


async def _declare_queue(
    link: RabbitConnection,
    channel: AbstractChannel,
    queue: str,
    options: RabbitSettings,
    unsafe: Mapping[str, str],
) -> AbstractChannel:
    """Declare the queue; returns an open channel, since a refusal closes the given one.

    RabbitMQ names one argument at a time, so the declaration is repeated with the queue's own
    values until all are named.
    """
    arguments = queue_arguments(options)
    others: list[Inequivalent] = []
    for _ in range(_MOST_ARGUMENTS):
        try:
            await channel.queue_declare(queue, durable=True, arguments=arguments)
        except ChannelPreconditionFailed as error:
            other = Inequivalent.read(str(error))
            if other is None and not others:
                raise
            if other is not None and (why := unsafe.get(other.name)) is not None:
                said = f"the queue {queue!r} exists with {other}: {why}"
                raise ChannelPreconditionFailed(said) from error
            channel = await link.open(confirms=False)
            if other is None:  # the requested value is invalid for this kind of queue
                break
            others.append(other)
            if not other.adopt(arguments):
                break
        else:
            break
    if others:
        await channel.queue_declare(queue, passive=True)
        others.sort(key=lambda one: one.name)
        there = ", ".join(map(str, others))
        wanted = queue_arguments(options)
        ours = ", ".join(f"{one.name}={wanted.get(one.name, 'none')}" for one in others)
        _warn(
            f"the queue {queue!r} exists with {there}, where postroom would declare {ours}: it is "
            "used as it is. To change it, name another queue, or delete this one while it is empty"
        )
    return channel


class Inequivalent(NamedTuple):
    """An argument that a queue was declared with, as RabbitMQ names it in a refusal."""

    name: str
    value: str | None  # None: the queue has no such argument
    type: str | None

    def adopt(self, arguments: dict[str, Any]) -> bool:
        """Put it among the arguments; False if its type cannot be determined from the text."""
        if self.value is None:
            return arguments.pop(self.name, None) is not None
        if self.type in NUMBERS:
            arguments[self.name] = int(self.value)
        elif self.type == "bool":
            arguments[self.name] = self.value == "true"
        elif self.type == "longstr":
            arguments[self.name] = self.value
        else:
            return False
        return True

    @classmethod
    def read(cls, refusal: str) -> Inequivalent | None:
        found = _INEQUIVALENT.search(refusal)
        return None if found is None else cls(found["name"], found["value"], found["type"])

    def __str__(self) -> str:
        return f"{self.name}={'none' if self.value is None else self.value}"


async def check(link: RabbitConnection, options: RabbitSettings, exchange: str) -> None:
    """Check that exchange and queue exist. Raises ChannelClosed, UnreachableError."""
    if exchange:
        await check_exchange(link, exchange)
    if options.queue is not None:
        channel = await link.open(confirms=False)
        async with link.answering("looking for a queue"):
            await channel.queue_declare(options.queue, passive=True)
            await channel.close()


async def check_exchange(link: RabbitConnection, exchange: str) -> None:
    """Check that an exchange exists. Raises ChannelClosed, UnreachableError."""
    channel = await link.open(confirms=False)
    async with link.answering("looking for an exchange"):
        await channel.exchange_declare(exchange, passive=True)
        await channel.close()


def _warn(text: str) -> None:
    """Log it once in this process, not at every connection."""
    if text not in _told:
        _told.add(text)
        _log.warning("%s", text)
