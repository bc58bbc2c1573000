"""Converts a Kafka record to the message that every source returns. Never raises."""

from __future__ import annotations

from collections.abc import Sequence
from operator import methodcaller
from typing import Any, cast

from confluent_kafka import Message

from postroom.model.envelope import TOMBSTONE
from postroom.model.foreign_messages import NO_NAMES, Names, translate
from postroom.model.incoming import Incoming
from postroom.record import short_error

# For a header name that is not UTF-8, confluent-kafka returns a list with NULL in it *and* sets an
# exception. A call from C, like this one, always notices and raises SystemError. A call in
# specialized bytecode does not: it returns the list, and the process dies with SIGSEGV.
_headers_of = methodcaller("headers")


def incoming(message: Message, names: Names = NO_NAMES, generation: str = "") -> Incoming:
    """Return a record as a message; `problem` names unreadable parts.

    names         of the headers that hold the id and type of foreign senders
    generation    the id of the topic: a topic that is created again begins with offset 0
    """
    headers: dict[str, str] = {}
    problem = ""
    try:  # once: after an error the record holds the broken list
        found = cast("Sequence[tuple[str, Any]] | None", _headers_of(message))
    except Exception as error:
        found = None
        problem = f"its headers cannot be read: a name is not UTF-8: {_cause(error)}"
    for name, value in found or ():
        if value is not None:  # the first header of a name counts, as postroom's come first
            text = value if isinstance(value, str) else value.decode(errors="replace")
            headers.setdefault(name, text)
    key, value, topic = message.key(), message.value(), message.topic() or ""
    if value is None:
        headers[TOMBSTONE] = "true"
    read = Incoming(
        topic,
        _bytes(value),
        headers,
        None if key is None else _bytes(key).decode(errors="backslashreplace"),
        f"{topic}{generation and '@'}{generation}/{message.partition()}/{message.offset()}",
        problem,
    )
    return translate(read, names)


def _cause(error: Exception) -> str:
    return short_error(error.__cause__ if isinstance(error.__cause__, Exception) else error)


def _bytes(value: bytes | str | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""
