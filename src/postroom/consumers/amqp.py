"""A message of AMQP 0-9-1 as the same message that every broker gives."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from postroom.brokers.rabbitmq.content import Content
from postroom.envelope import CONTENT_TYPE, CORRELATION_ID, ID, TYPE
from postroom.source import Incoming


def incoming(content: Content, body: bytes) -> Incoming:
    """Return a message with its properties among the headers; a header of ours goes before."""
    headers = dict(content.headers)
    for name, value in (
        (ID, content.message_id),
        (TYPE, content.type),
        (CORRELATION_ID, content.correlation_id),
        (CONTENT_TYPE, content.content_type),
    ):
        if value:
            headers.setdefault(name, value)
    return Incoming(content.routing_key, body, headers, problem=content.problem)


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
