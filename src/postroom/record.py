"""Record: a stored event with its delivery state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from hashlib import md5, sha256
from typing import Any, NamedTuple

from postroom.event import MAX_ID_BYTES, STORED_IDS
from postroom.model.clock import from_microseconds
from postroom.model.codec import JSON, decode_json
from postroom.model.secrets import mask

LANES = 64
MAX_ATTEMPTS = 999_999
MAX_ERROR_CHARS = 2_000
TOMBSTONE, PARTITION, PARTITION_KEY = "tombstone", "partition", "partition_key"  # its options
UNREADABLE = "unreadable"
"""The `state` of a row that cannot be converted to a record; `last_error` holds the reason.

It is never stored and never sent: the owner of its lane treats it as rejected by the destination.
"""


class State(StrEnum):
    """The state of an event as users see it, in outbox and inbox."""

    PENDING = "pending"
    PROCESSING = "processing"
    DONE = "done"
    FAILED = "failed"
    DEAD = "dead"
    EXPIRED = "expired"  # its time to be sent had passed
    CANCELLED = "cancelled"


class Stage(StrEnum):
    """Where the relay finds an event; only `ready` rows are in the index that reads use."""

    READY = "ready"
    WAITING = "waiting"  # until next_attempt_at: scheduled, or failed and backing off
    PARKED = "parked"  # behind the failed head of its key
    OVER = "over"  # done, dead, expired or cancelled


def key_hash(aggregate_type: str | None, key: str | None, event_id: str) -> bytes:
    """Return the unit of order as 16 bytes: the pair (aggregate_type, key), or the event itself.

    An event without a key is its own unit; its hash never equals the hash of a key.
    """
    if key is None:
        return md5(b"\x00\x00" + event_id.encode(), usedforsecurity=False).digest()
    text = f"{aggregate_type or ''}\x00{key}"
    return md5(text.encode(), usedforsecurity=False).digest()


def lane_of(hashed: bytes) -> int:
    """Return the lane (0 to 63) of a unit of order."""
    return hashed[0] % LANES


class Record(NamedTuple):
    """A row of the outbox. Times are microseconds since 1970; properties return datetimes.

    seq         position in the order of the stream; later writes have larger numbers
    causation_id    id of the event that caused this one
    options_json    how to send it, for some destinations only (tombstone, partition)
    expires_us      not sent from then on
    barrier     set by a read if the key is blocked: events of the key up to this `seq` may be
                sent, later ones must wait
    """

    seq: int
    id: str
    stream: str
    lane: int
    key_hash: bytes
    type: str
    topic: str
    key: str | None
    aggregate_type: str | None
    aggregate_id: str | None
    payload: bytes
    content_type: str
    headers_json: str | None
    correlation_id: str | None
    causation_json: str | None
    schema_version: int
    kseq: int | None
    causation_id: str | None
    options_json: str | None
    expires_us: int | None
    occurred_us: int
    created_us: int
    state: str
    attempts: int
    next_attempt_us: int | None = None
    last_error: str | None = None
    barrier: int | None = None

    @property
    def flaw(self) -> str | None:
        """The reason why the stored row cannot be sent, or None."""
        return (self.last_error or UNREADABLE) if self.state == UNREADABLE else None

    @property
    def headers(self) -> Mapping[str, str]:
        """The application's headers."""
        return json.loads(self.headers_json) if self.headers_json else {}

    @property
    def causation_path(self) -> tuple[tuple[str, str], ...]:
        """The [module, type] pairs that led to this event."""
        return (
            tuple((m, t) for m, t in json.loads(self.causation_json)) if self.causation_json else ()
        )

    @property
    def options(self) -> Mapping[str, Any]:
        """How to send it; empty for most events."""
        return json.loads(self.options_json) if self.options_json else {}

    @property
    def tombstone(self) -> bool:
        """Whether it has no value: its payload is empty, and its data is None."""
        return self.options_json is not None and self.options.get(TOMBSTONE) is True

    @property
    def expires_at(self) -> datetime | None:
        return None if self.expires_us is None else from_microseconds(self.expires_us)

    @property
    def occurred_at(self) -> datetime:
        return from_microseconds(self.occurred_us)

    @property
    def created_at(self) -> datetime:
        return from_microseconds(self.created_us)

    @property
    def next_attempt_at(self) -> datetime | None:
        return None if self.next_attempt_us is None else from_microseconds(self.next_attempt_us)

    @property
    def data(self) -> Any:
        """The payload: decoded if it is JSON, otherwise bytes; None for a tombstone."""
        if self.tombstone:
            return None
        return decode_json(self.payload) if self.content_type == JSON else self.payload

    @property
    def size(self) -> int:
        """Bytes that count towards the size of a batch."""
        return len(self.payload) + (len(self.headers_json.encode()) if self.headers_json else 0)


def row_id(consumer: str, event_id: str) -> str:
    """Return the row id of a stored message: `inbox/<consumer>/<message id>`.

    Events cannot have such an id. A slash in the consumer's name is escaped, so that every pair of
    consumer and id is unique. An id that would be too long is replaced by `inbox/<hash>`.
    """
    plain = f"{STORED_IDS}{_without_slash(consumer)}/{event_id}"
    if len(plain.encode()) <= MAX_ID_BYTES:
        return plain
    return f"{STORED_IDS}{sha256(plain.encode()).hexdigest()}"


def inbox_name(service: str, handler: str) -> str:
    """Return a handler's consumer name in the inbox, unique for each pair."""
    return f"{_without_slash(service)}/{handler}"


def _without_slash(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F")


def stored_error(error: BaseException | str) -> str:
    """Return an error for `last_error`: of bounded length, passwords masked."""
    return short_error(mask(short_error(error)))


def short_error(error: BaseException | str) -> str:
    """Return an error as text of bounded length that every database can store."""
    if isinstance(error, BaseException):
        name = type(error).__name__
        try:
            said = str(error)
        except Exception:  # a broken __str__ must not stop the relay
            said = "(its message cannot be printed)"
        text = f"{name}: {said}" if said else name
    else:
        text = error
    text = text.encode(errors="replace").decode().replace("\x00", "\\0")
    return text if len(text) <= MAX_ERROR_CHARS else text[: MAX_ERROR_CHARS - 1] + "…"
