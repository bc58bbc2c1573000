"""A record of Kafka as the same message that every broker gives. Never raises."""

from __future__ import annotations

from collections.abc import Sequence
from operator import methodcaller
from typing import Any, cast

from confluent_kafka import Message

from postroom.record import short_error
from postroom.source import Incoming

# For a header name that is not UTF-8 confluent-kafka returns a list with NULL in it *and* sets an
# exception. A call from C, as this one, always notices and raises SystemError. A call in the
# bytecode does not: once it is specialized it hands out the list, and the process dies by SIGSEGV.
_headers_of = methodcaller("headers")


def incoming(message: Message) -> Incoming:
    """Return a record as a message; what cannot be read of it is told in `problem`."""
    headers: dict[str, str] = {}
    problem = ""
    try:  # once: after an error the record holds the broken list, and would hand it out
        found = cast("Sequence[tuple[str, Any]] | None", _headers_of(message))
    except Exception as error:
        found = None
        problem = f"its headers cannot be read, one has a name that is not UTF-8: {_cause(error)}"
    for name, value in found or ():
        if value is not None:  # of several with one name the first counts, as ours come first
            text = value if isinstance(value, str) else value.decode(errors="replace")
            headers.setdefault(name, text)
    key = message.key()
    return Incoming(
        message.topic() or "",
        _bytes(message.value()),
        headers,
        None if key is None else _bytes(key).decode(errors="replace"),
        f"{message.topic()}/{message.partition()}/{message.offset()}",
        problem,
    )


def _cause(error: Exception) -> str:
    return short_error(error.__cause__ if isinstance(error.__cause__, Exception) else error)


def _bytes(value: bytes | str | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""
