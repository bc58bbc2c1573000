"""A message of AMQP 0-9-1 as the same message that every broker gives."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from postroom.brokers.rabbitmq.content_header import Content
from postroom.model.envelope import CONTENT_TYPE, CORRELATION_ID, ID, TYPE
from postroom.model.foreign_messages import NO_NAMES, Names, translate
from postroom.model.incoming import Incoming


def incoming(content: Content, body: bytes, names: Names = NO_NAMES) -> Incoming:
    """Return a message with its properties among the headers; a header of ours goes before.

    names   of headers in which foreign senders put an id and a type
    """
    return with_properties(
        Incoming(content.routing_key, body, content.headers, problem=content.problem),
        names,
        message_id=content.message_id,
        kind=content.type,
        correlation_id=content.correlation_id,
        content_type=content.content_type,
    )


def with_properties(
    message: Incoming,
    names: Names,
    *,
    message_id: str | None,
    kind: str | None,
    correlation_id: str | None,
    content_type: str | None,
) -> Incoming:
    """Return a message under our names.

    The properties come last: some libraries give every message an id of its own, so that the id of
    a CloudEvent says more.
    """
    if content_type:
        message = message._replace(headers={CONTENT_TYPE: content_type, **message.headers})
    message = translate(message, names)
    said = {ID: message_id, TYPE: kind, CORRELATION_ID: correlation_id}
    found = {name: value for name, value in said.items() if value}
    return message._replace(headers={**found, **message.headers})


def to_text(headers: Mapping[str, Any]) -> dict[str, str]:
    """Return headers as text; what has no plain form as text, such as a table, is left out."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        match value:
            case str():
                found[name] = value
            case bytes() | bytearray():
                found[name] = bytes(value).decode(errors="replace")
            case bool():
                found[name] = "true" if value else "false"
            case int() | float():
                found[name] = str(value)
            case datetime():
                found[name] = value.isoformat()
            case _:
                pass
    return found
