"""A message of AMQP 0-9-1 as the same message that every broker gives."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from aiormq.abc import DeliveredMessage

from postroom.envelope import CONTENT_TYPE, CORRELATION_ID, ID, TYPE
from postroom.source import Incoming


def incoming(message: DeliveredMessage) -> Incoming:
    """Return a message with its properties among the headers; a header of ours goes before."""
    properties = message.header.properties
    headers = to_text(properties.headers or {})
    for name, value in (
        (ID, properties.message_id),
        (TYPE, properties.message_type),
        (CORRELATION_ID, properties.correlation_id),
        (CONTENT_TYPE, properties.content_type),
    ):
        if value:
            headers.setdefault(name, str(value))
    return Incoming(message.routing_key or "", message.body, headers)


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
