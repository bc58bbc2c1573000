"""Converts an AMQP 0-9-1 message to the message that every source returns."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from postroom.brokers.rabbitmq.content_header import Content
from postroom.model.envelope import CONTENT_TYPE, CORRELATION_ID, ID, TYPE
from postroom.model.foreign_messages import NO_NAMES, Names, translate
from postroom.model.incoming import Incoming


def incoming(content: Content, body: bytes, names: Names = NO_NAMES) -> Incoming:
    """Return a message with its properties among the headers; postroom's headers take precedence.

    names: of the headers that hold the id and type of foreign senders
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
    """Return a message under postroom's header names.

    The properties come last: some libraries give every message its own id, so the id of a
    CloudEvent is more significant.
    """
    if content_type:
        message = message._replace(headers={CONTENT_TYPE: content_type, **message.headers})
    message = translate(message, names)
    said = {ID: message_id, TYPE: kind, CORRELATION_ID: correlation_id}
    found = {name: value for name, value in said.items() if value}
    return message._replace(headers={**found, **message.headers})


def to_text(headers: Mapping[str, Any]) -> dict[str, str]:
    """Return headers as text; values without a plain text form, such as tables, are left out."""
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
