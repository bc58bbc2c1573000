"""Checks of RabbitMQ for `postroom doctor`.

AMQP cannot query the properties of a queue. But a declaration with other properties is refused, and
the refusal names one property and its value, in an order that differs between servers. Each
property is therefore declared with a value that no queue can have until RabbitMQ has named it: the
properties are learned one after the other, and nothing is ever created.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from aiormq.exceptions import ChannelClosed, ChannelNotFoundEntity

from postroom.brokers.outages import UnreachableError
from postroom.brokers.rabbitmq import topology
from postroom.brokers.rabbitmq.connection import RabbitConnection, connect_first, within
from postroom.brokers.rabbitmq.publish_call import BLOCKED
from postroom.brokers.rabbitmq.settings import RabbitSettings
from postroom.brokers.rabbitmq.topology import (
    KIND,
    LIMIT,
    NUMBERS,
    SINGLE,
    Inequivalent,
    queue_arguments,
    refused,
)
from postroom.model.diagnostics import Finding
from postroom.model.url import Url
from postroom.record import short_error

NAME = "postroom doctor"
_NO_VALUE = "postroom-doctor"  # which no queue has
_MOST_PROPERTIES = 30
_DEFAULT_LIMIT, _LIMITS_BY_DEFAULT = 20, 4  # deliveries, and RabbitMQ's version
_NEVER_REACHED = 1_000_000
_PATIENCE_SECONDS = 10.0
_DROPS = {
    "x-message-ttl": "milliseconds, after which messages are dropped",
    "x-expires": "milliseconds without a consumer, after which the queue is deleted",
    "x-max-length": "messages, beyond which the oldest are dropped",
    "x-max-length-bytes": "bytes, beyond which the oldest are dropped",
}
_ASKED = (SINGLE, "x-overflow", "x-dead-letter-exchange", *_DROPS)


async def examine(url: Url, options: RabbitSettings) -> list[Finding]:
    """Return the problems of exchange and queue; nothing is declared.

    Raises UnreachableError if RabbitMQ does not answer.
    """
    link = await connect_first(url, options, NAME)
    try:
        if link.is_blocked():
            raise UnreachableError(BLOCKED)
        await link.ready()
        await topology.check(link, options, options.exchange)
        if options.queue is None:
            return []
        found = await _properties(link, options.queue)
    except ChannelClosed as error:
        return [] if options.declare else [_missing(str(error))]
    finally:
        await link.close()
    if found is None:
        return []
    return [
        *judge_queue(options.queue, found),
        *judge_limit(options.queue, found, link.major_version),
        *judge_declared(options.queue, found, options),
    ]


async def examine_queue(url: Url, options: RabbitSettings, queue: str) -> list[Finding]:
    """Return the problems of a consumed queue; nothing is declared or consumed."""
    link = await connect_first(url, options, NAME)
    try:
        found = await _properties(link, queue)
    finally:
        await link.close()
    if found is None:
        return [] if options.declare else [_missing(f"the queue {queue!r} does not exist")]
    return [
        *judge_queue(queue, found),
        *judge_limit(queue, found, link.major_version),
        *judge_order(queue, found),
        *judge_declared(queue, found, options, consumes=True),
    ]


async def count_messages(url: Url, options: RabbitSettings, queue: str) -> int | None:
    """Return the number of messages in a queue that were not delivered yet."""
    link = await connect_first(url, options, NAME)
    try:
        channel = await link.open(confirms=False)
        async with within(_PATIENCE_SECONDS, "looking at the queue"):
            found = await channel.queue_declare(queue, passive=True)
        return found.message_count
    except ChannelClosed as error:
        raise UnreachableError(short_error(error)) from error
    finally:
        await link.close()


def judge_queue(queue: str, found: Mapping[str, Any]) -> Iterator[Finding]:
    """Return how a queue could lose confirmed messages (G2)."""
    another = f"create another one, for example with queue={queue}-2&queue_type=quorum&declare=on"
    if found.get("durable") == "false":
        yield Finding(
            "error", f"the queue {queue!r} is not durable",
            "a restart of RabbitMQ deletes it, and every message that it has confirmed", another,
        )  # fmt: skip
    elif found.get(KIND) == "classic":
        yield Finding(
            "warning", f"{queue!r} is a classic queue, not a quorum queue",
            "a single node holds its messages: confirmed messages are lost with its disk", another,
        )  # fmt: skip
    if found.get("auto_delete") == "true":
        yield Finding(
            "warning", f"the queue {queue!r} is deleted when its last consumer disconnects",
            "every message that it has confirmed is deleted with it", another,
        )  # fmt: skip
    rejects = str(found.get("x-overflow", "")).startswith("reject-publish")
    for name, what in _DROPS.items():
        if name in found and not (rejects and name.startswith("x-max-length")):
            yield Finding(
                "warning", f"the queue {queue!r} has {name}={found[name]}: {what}",
                "a confirmed event may never reach its consumer",
                "remove it; to limit a queue, use x-overflow=reject-publish, which makes "
                "events wait",
            )  # fmt: skip


def judge_limit(queue: str, found: Mapping[str, Any], version: int) -> Iterator[Finding]:
    """A quorum queue may drop a message after too many deliveries, although it was not handled."""
    if found.get(KIND) != "quorum":
        return
    default = _DEFAULT_LIMIT if version >= _LIMITS_BY_DEFAULT else None
    limit = found.get(LIMIT, default)
    if limit is None or limit >= _NEVER_REACHED or (limit < 0 and version >= _LIMITS_BY_DEFAULT):
        return
    count = max(limit, 0) + 1
    whose = "" if LIMIT in found else ", RabbitMQ's default"
    exchange = found.get("x-dead-letter-exchange")
    if exchange is not None:
        yield Finding(
            "info",
            f"after {count} deliveries the queue {queue!r} moves a message to the exchange "
            f"{exchange!r} ({LIMIT}={limit}{whose})",
            "a consumer that crashes or is disconnected this many times stops receiving the "
            "messages it held; postroom does not read from that exchange",
            "monitor the queue behind that exchange",
        )
        return
    yield Finding(
        "warning",
        f"after {count} deliveries the queue {queue!r} drops a message ({LIMIT}={limit}{whose})",
        "a consumer that crashes or is disconnected this many times loses every message it held",
        f"create another queue, for example with queue={queue}-2&declare=on, or give this one a "
        "dead-letter exchange by a policy",
    )


def judge_order(queue: str, found: Mapping[str, Any]) -> Iterator[Finding]:
    """Two consumers of one queue invert the order of a key as soon as one is slow or dies (I3)."""
    if found.get(KIND) in ("classic", "quorum") and found.get(SINGLE) != "true":
        yield Finding(
            "warning", f"the queue {queue!r} has no single active consumer",
            "with two consumers, the events of a key are handled out of order",
            f"run one consumer at a time, or create another queue with queue={queue}-2&declare=on",
        )  # fmt: skip


def judge_declared(
    queue: str, found: Mapping[str, Any], options: RabbitSettings, *, consumes: bool = False
) -> Iterator[Finding]:
    """Declaring never changes an existing queue: it is used as it is, or refused if unsafe."""
    if not options.declare or not found:
        return
    wanted = queue_arguments(options)
    names = {*wanted, *found}
    other = {n for n in names if str(found.get(n)) != str(wanted.get(n)).lower()}
    if other:
        what = ", ".join(f"{name}={found.get(name, 'none')}" for name in sorted(other))
        unsafe = any(name in other for name in refused(options, consumes=consumes))
        yield Finding(
            "error" if unsafe else "warning",
            f"the queue {queue!r} exists with other properties: {what}",
            "declare=on refuses it: nothing is published or consumed"
            if unsafe
            else "declare=on does not change an existing queue; it is used as it is",
            "name another queue, or delete this one while it is empty",
        )


def _missing(error: str) -> Finding:
    return Finding(
        "warning", error, "its events wait, and an alarm is raised",
        "declare it in RabbitMQ, or add declare=on to the URL",
    )  # fmt: skip


async def _properties(link: RabbitConnection, queue: str) -> dict[str, Any] | None:
    """Return the queue's properties; None if it does not exist or cannot be inspected."""
    channel = await link.open(confirms=False)
    try:
        async with within(_PATIENCE_SECONDS, "looking at the queue"):
            await channel.queue_declare(queue, passive=True)
            await channel.close()
    except ChannelNotFoundEntity:
        return None
    except ChannelClosed:  # exclusive to another connection, or no permission
        return {}
    known: dict[str, Any] = {}
    await _ask(link, queue, known, {KIND})
    if KIND in known:
        known[KIND] = known[KIND] or "classic"
        await _ask(link, queue, known, {*_ASKED, LIMIT} if known[KIND] == "quorum" else {*_ASKED})
    return {name: value for name, value in known.items() if value is not None}


async def _ask(link: RabbitConnection, queue: str, known: dict[str, Any], names: set[str]) -> None:
    """Learn these properties, and those that RabbitMQ names before them; None: there is no
    queue.
    """
    for _ in range(_MOST_PROPERTIES):
        told = Inequivalent.read(await _declare(link, queue, known, names))
        if told is None or (told.name in known and told.name not in names):
            return
        names.discard(told.name)
        # When it refuses a text in place of a number, RabbitMQ omits the types of both.
        is_number = told.type in NUMBERS or told.name in (LIMIT, *_DROPS)
        known[told.name] = int(told.value) if told.value and is_number else told.value
        if not names:  # the next declaration could be accepted
            return


async def _declare(
    link: RabbitConnection, queue: str, known: Mapping[str, Any], names: set[str]
) -> str:
    """Return RabbitMQ's refusal of a declaration with these properties, and invalid values
    for names.
    """
    words = {name: known[name] == "true" for name in ("durable", "auto_delete") if name in known}
    arguments = {
        name: value == "true" if name == SINGLE else value
        for name, value in known.items()
        if name.startswith("x-") and value is not None
    }
    channel = await link.open(confirms=False)
    try:
        async with within(_PATIENCE_SECONDS, "looking at the queue"):
            await channel.queue_declare(
                queue,
                durable=words.get("durable", True),
                auto_delete=words.get("auto_delete", False),
                arguments=arguments | dict.fromkeys(names, _NO_VALUE),
            )
            await channel.close()
    except ChannelClosed as error:
        return short_error(error)
    return ""
