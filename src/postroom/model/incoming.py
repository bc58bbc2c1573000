"""A received message, before postroom has parsed it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

BODY_BYTES = "postroom-body-bytes"
"""The header of a dead letter whose body was not stored: the message's size in bytes."""


class Incoming(NamedTuple):
    """A received message, the same for every broker.

    topic       Kafka topic, or RabbitMQ routing key
    key         the broker's message key, if any
    headers     text by name, including the broker's properties under the names of
                `postroom.model.envelope`
    offset      unique and stable position in the broker's log, if any
    problem     why the message cannot be handled, if a part of it could not be read: it becomes a
                dead letter with the readable parts
    """

    topic: str
    body: bytes
    headers: Mapping[str, str]
    key: str | None = None
    offset: str | None = None
    problem: str = ""
