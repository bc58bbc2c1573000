"""Messages larger than the limit become dead letters without their body.

The publisher decides how large a message is; the limit protects memory and the database from it.
"""

from __future__ import annotations

from postroom.model.envelope import ID
from postroom.model.incoming import BODY_BYTES, Incoming
from postroom.model.message_id import hash_id
from postroom.source import Delivery

_LONGEST_HEADER, _MOST_HEADERS = 1_000, 100  # bytes kept of a message that is too large


def limited(delivery: Delivery, max_bytes: int) -> Delivery:
    """Return a delivery unchanged, or without its oversized part and with a problem."""
    message = delivery.message
    size = size_of(message)
    if size <= max_bytes:
        return delivery
    return _Cut(delivery, _cut(message, size, max_bytes))


def size_of(message: Incoming) -> int:
    """Return the size of a message: body and headers."""
    size = len(message.body)
    if message.headers:
        size += sum(map(len, message.headers)) + sum(map(len, message.headers.values()))
    return size


def _cut(message: Incoming, size: int, max_bytes: int) -> Incoming:
    small = [(n, v) for n, v in message.headers.items() if len(n) + len(v) <= _LONGEST_HEADER]
    headers = {**dict(small[:_MOST_HEADERS]), BODY_BYTES: str(size)}
    if message.offset is None and ID not in headers:  # two are two dead letters
        headers[ID] = hash_id(message.topic, message.body)
    problem = (
        f"it has {size} bytes, more than max_bytes ({max_bytes}), so its body was not "
        "stored. Raise max_bytes and have it sent again"
    )
    return message._replace(body=b"", headers=headers, problem=problem)


class _Cut:
    """The delivery of a message that is passed on in part."""

    __slots__ = ("_delivery", "message")

    def __init__(self, delivery: Delivery, message: Incoming) -> None:
        self._delivery = delivery
        self.message = message

    @property
    def is_lost(self) -> bool:
        return self._delivery.is_lost

    def ack(self) -> None:
        self._delivery.ack()
