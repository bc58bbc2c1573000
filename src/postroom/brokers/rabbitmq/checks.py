"""What a doctor asks of RabbitMQ before people rely on it.

AMQP has no question for what kind a queue is. But a declaration with other properties is refused,
and the refusal names one property and what it is: so they are learned one after the other. The
declaration has a property that no new queue can have, so that nothing is ever created.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from aiormq.exceptions import ChannelClosed, ChannelNotFoundEntity

from postroom.brokers.rabbitmq.broker import RabbitBroker
from postroom.brokers.rabbitmq.link import Link, within
from postroom.errors import ConfigError
from postroom.finding import Finding
from postroom.record import short_error

_KIND = "x-queue-type"
_SINGLE = "x-single-active-consumer"
_NEVER = {"x-quorum-initial-group-size": 0}
_MOST_PROPERTIES = 20
_PATIENCE_SECONDS = 10.0
_REFUSED = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' for queue .*: received .* but current is "
    r"(?:none|(?:the value )?'(?P<value>[^']*)'(?: of type '(?P<type>\w+)')?)",
    re.DOTALL,
)
_NUMBERS = ("byte", "short", "long", "signedint", "unsignedint")
_DROPS = {
    "x-message-ttl": "milliseconds after which messages are dropped",
    "x-expires": "milliseconds without a consumer after which the queue is dropped",
    "x-max-length": "messages, and beyond it the oldest are dropped",
    "x-max-length-bytes": "bytes, and beyond it the oldest are dropped",
}


async def examine(broker: RabbitBroker, topics: Collection[str]) -> list[Finding]:  # noqa: ARG001
    """Return what is odd about exchange and queue; nothing is declared.

    Raises AwayError if RabbitMQ does not answer.
    """
    options = broker.options
    onlooker = RabbitBroker(broker._url)
    onlooker.options = replace(options, declare=False, bindings=None)
    try:
        await onlooker.open()
        await onlooker.health()
        if options.queue is None:
            return []
        found = await _properties(await onlooker._linked(), options.queue)
    except ConfigError as error:
        return [] if options.declare else [_missing(str(error))]
    finally:
        await onlooker.close()
    if found is None:
        return []
    wanted = {_KIND: options.queue_type} if options.declare else None
    return [*judge_queue(options.queue, found), *judge_declared(options.queue, found, wanted)]


async def examine_queue(
    link: Link, queue: str, wanted: Mapping[str, Any] | None = None
) -> list[Finding]:
    """Return what is odd about a queue that is consumed; `wanted` is what it is declared with."""
    found = await _properties(link, queue)
    if found is None:
        return [] if wanted is not None else [_missing(f"there is no queue {queue!r}")]
    return [
        *judge_queue(queue, found),
        *judge_order(queue, found),
        *judge_declared(queue, found, wanted),
    ]


def judge_queue(queue: str, found: Mapping[str, Any]) -> Iterator[Finding]:
    """Say how safe a queue is for what it has confirmed (G2)."""
    another = f"make another one, as with queue={queue}-2&queue_type=quorum&declare=on"
    if found.get("durable") == "false":
        yield Finding(
            "error", f"the queue {queue!r} is not durable",
            "RabbitMQ forgets it when it restarts, with all that it has confirmed", another,
        )  # fmt: skip
    elif found.get(_KIND) == "classic":
        yield Finding(
            "warning", f"{queue!r} is a classic queue, not a quorum queue",
            "one node alone has its messages: what it confirmed is gone if its disk is", another,
        )  # fmt: skip
    if found.get("auto_delete") == "true":
        yield Finding(
            "warning", f"the queue {queue!r} is deleted when its last consumer leaves",
            "what it has confirmed goes with it", another,
        )  # fmt: skip
    rejects = str(found.get("x-overflow", "")).startswith("reject-publish")
    for name, what in _DROPS.items():
        if name in found and not (rejects and name.startswith("x-max-length")):
            yield Finding(
                "warning", f"the queue {queue!r} has {name}={found[name]}: {what}",
                "an event that was confirmed may never reach its consumer",
                "leave it out; to bound a queue, x-overflow=reject-publish makes events wait",
            )  # fmt: skip


def judge_order(queue: str, found: Mapping[str, Any]) -> Iterator[Finding]:
    """Two consumers of one queue invert a key as soon as one of them is slow or dies (I3)."""
    if found.get(_KIND) in ("classic", "quorum") and found.get(_SINGLE) != "true":
        yield Finding(
            "warning", f"the queue {queue!r} has no single active consumer",
            "with two consumers the events of a key are handled out of order",
            f"run one consumer at a time, or make another queue with queue={queue}-2&declare=on",
        )  # fmt: skip


def judge_declared(
    queue: str, found: Mapping[str, Any], wanted: Mapping[str, Any] | None
) -> Iterator[Finding]:
    """A queue is never changed by declaring it: what is there otherwise is refused."""
    if wanted is None or not found:
        return
    other = {n: v for n, v in {**wanted, **found}.items() if str(v) != str(wanted.get(n)).lower()}
    if other:
        what = ", ".join(f"{name}={found.get(name, 'none')}" for name in sorted(other))
        yield Finding(
            "error", f"the queue {queue!r} is there with other properties: {what}",
            "declare=on is refused by RabbitMQ: nothing is sent or consumed",
            "leave declare=on out, or name another queue",
        )  # fmt: skip


def _missing(error: str) -> Finding:
    return Finding(
        "warning", error, "its events wait, and an alarm is raised",
        "declare it in RabbitMQ, or add declare=on to the URL",
    )  # fmt: skip


async def _properties(link: Link, queue: str) -> dict[str, Any] | None:
    """Return what the queue was declared with; None if it is not there or may not be looked at."""
    channel = await link.open(confirms=False)
    try:
        async with within(_PATIENCE_SECONDS, "looking at the queue"):
            await channel.queue_declare(queue, passive=True)
            await channel.close()
    except ChannelNotFoundEntity:
        return None
    except ChannelClosed:  # another connection's own, or we have no right to look
        return {}
    known: dict[str, Any] = {}
    for _ in range(_MOST_PROPERTIES):
        told = _REFUSED.search(await _declare(link, queue, known))
        if told is None:
            break
        name, value = told["name"], told["value"]
        if name in _NEVER:  # it is asked for after the kind, which was right then
            known[_KIND] = "quorum"
            break
        if name == _KIND:
            known[_KIND] = value or "classic"
            break
        known[name] = int(value) if told["type"] in _NUMBERS else value
    return known


async def _declare(link: Link, queue: str, known: Mapping[str, Any]) -> str:
    """Return how RabbitMQ refuses a declaration with these properties."""
    words = {name: known[name] == "true" for name in ("durable", "auto_delete") if name in known}
    arguments = {
        name: value == "true" if name == _SINGLE else value
        for name, value in known.items()
        if name.startswith("x-")
    }
    channel = await link.open(confirms=False)
    try:
        async with within(_PATIENCE_SECONDS, "looking at the queue"):
            await channel.queue_declare(
                queue,
                durable=words.get("durable", True),
                auto_delete=words.get("auto_delete", False),
                arguments={_KIND: "quorum", **arguments, **_NEVER},
            )
            await channel.close()
    except ChannelClosed as error:
        return short_error(error)
    return ""
