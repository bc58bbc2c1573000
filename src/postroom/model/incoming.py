"""A message as it came in, before postroom has read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

TOMBSTONE = "kafka-tombstone"
"""A header of a record whose value is null: its body is empty, and was none."""


class Incoming(NamedTuple):
    """A message as it came in, the same for every broker.

    topic       a Kafka topic, a routing key of RabbitMQ
    key         the broker's message key, where it has one
    headers     text by name, the broker's own properties among them under the names of
                `postroom.model.envelope`
    offset      the place in the broker's log, unique and stable, where there is one
    problem     why it cannot be handled, if something of it could not be read: it becomes a dead
                letter with whatever there is
    """

    topic: str
    body: bytes
    headers: Mapping[str, str]
    key: str | None = None
    offset: str | None = None
    problem: str = ""
