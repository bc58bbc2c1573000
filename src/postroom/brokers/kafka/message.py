"""An event as a Kafka message: its key and headers.

The value is the unchanged payload, and null for a tombstone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

from postroom.brokers.cloudevents import need_sdk, to_cloudevent
from postroom.brokers.kafka.partitions import ANY, Partitions
from postroom.brokers.kafka.settings import KafkaSettings
from postroom.model.envelope import CONTENT_TYPE, write_headers
from postroom.record import Record

Headers = list[tuple[str, str | bytes | None]]

MOST_BESIDES = 100_000
"""The maximum number of bytes of a message besides its payload: below it there is no need
to count.
"""
_FRAME = 120  # of a batch with one message, and of a message in it
_FRAME_OF_HEADER = 6


class Message(NamedTuple):
    """The arguments of the producer for an event."""

    topic: str
    value: bytes | None
    key: str | None
    headers: Headers
    partition: int = ANY

    @property
    def size(self) -> int:
        """The maximum number of bytes in its own batch, before compression."""
        total = _FRAME + len(self.value or b"") + _length(self.key)
        for name, value in self.headers:
            total += _FRAME_OF_HEADER + _length(name) + _length(value)
        return total


Writer = Callable[[Record, str], Message]

_headers = cast("Callable[[Record, str], Headers]", write_headers)  # here, not for each event
_message = partial(tuple.__new__, Message)  # Message._make without its Python frame


def writer(settings: KafkaSettings, partitions: Partitions) -> Writer:
    """Return the function that makes a message of a record and the outbox' id."""
    topic = settings.topic
    by_id = settings.key == "id"
    source = settings.cloudevents
    if source is not None:
        need_sdk()

    def write(record: Record, outbox_id: str) -> Message:
        headers = _headers(record, outbox_id)
        if source is not None:
            headers = [*_cloudevent(record, source), *headers]
        key = record.id if by_id else record.key
        where, value, partition = topic or record.topic, record.payload, ANY
        if record.options_json is not None:
            partition = partitions.of(where, record)
            if record.tombstone:
                return Message(where, None, key, headers, partition)
        return _message((where, value, key, headers, partition))

    return write


def _cloudevent(record: Record, source: str) -> Headers:
    """Return the attributes as headers; the content type is already among postroom's."""
    from cloudevents.core.bindings.kafka import to_binary_event

    message = to_binary_event(to_cloudevent(record, source))
    return [(name, value) for name, value in message.headers.items() if name != CONTENT_TYPE]


def _length(text: str | bytes | None) -> int:
    return len(text.encode() if isinstance(text, str) else text or b"")
