"""A record: an event as stored, plus the facts of its delivery."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from hashlib import md5, sha256
from typing import Any, NamedTuple

from postroom.event import KEPT_IDS, MAX_ID_BYTES
from postroom.model.clock import from_microseconds
from postroom.model.codec import JSON, decode_json

LANES = 64
MAX_ATTEMPTS = 999_999
MAX_ERROR_CHARS = 2_000
UNREADABLE = "unreadable"
"""The `state` of what a read has found and cannot make a record of; `last_error` says why.

It is never stored and never sent: the owner of its lane treats it as rejected by the destination.
"""


class State(StrEnum):
    """What people see of an event, the same in both boxes."""

    PENDING = "pending"
    PROCESSING = "processing"
    DONE = "done"
    FAILED = "failed"
    DEAD = "dead"


class Stage(StrEnum):
    """Where the relay looks for an event; only `ready` rows are in the index that a read walks."""

    READY = "ready"
    WAITING = "waiting"  # until next_attempt_at: scheduled, or failed and backing off
    PARKED = "parked"  # behind the failed head of its key
    OVER = "over"  # done or dead


def key_hash(aggregate_type: str | None, key: str | None, event_id: str) -> bytes:
    """Return the unit of order as 16 bytes: the pair (aggregate_type, key), or the event itself.

    A keyless event is a unit of its own; its hash can never equal that of a key.
    """
    if key is None:
        return md5(b"\x00\x00" + event_id.encode(), usedforsecurity=False).digest()
    text = f"{aggregate_type or ''}\x00{key}"
    return md5(text.encode(), usedforsecurity=False).digest()


def lane_of(hashed: bytes) -> int:
    """Return the lane (0 to 63) of a unit of order."""
    return hashed[0] % LANES


class Record(NamedTuple):
    """One row of the outbox. Times are microseconds since 1970; properties give datetimes.

    seq         the place in the order of its stream; later writes have larger numbers
    barrier     set by a read when the key is blocked: the key's events up to this `seq` may go,
                later ones must wait
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
    occurred_us: int
    created_us: int
    state: str
    attempts: int
    next_attempt_us: int | None = None
    last_error: str | None = None
    barrier: int | None = None

    @property
    def flaw(self) -> str | None:
        """Why the row cannot be sent as it is stored; None if it can. See `flawed.FlawedRecord`."""
        return (self.last_error or UNREADABLE) if self.state == UNREADABLE else None

    @property
    def headers(self) -> Mapping[str, str]:
        """The user's own headers."""
        return json.loads(self.headers_json) if self.headers_json else {}

    @property
    def causation_path(self) -> tuple[tuple[str, str], ...]:
        """The [module, type] pairs that led to this event."""
        return (
            tuple((m, t) for m, t in json.loads(self.causation_json)) if self.causation_json else ()
        )

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
        """The payload, decoded where it is JSON, else its bytes."""
        return decode_json(self.payload) if self.content_type == JSON else self.payload

    @property
    def size(self) -> int:
        """How many bytes it weighs in a batch."""
        return len(self.payload) + (len(self.headers_json.encode()) if self.headers_json else 0)


def row_id(consumer: str, event_id: str) -> str:
    """Return the id of a message that a consumer keeps: `inbox/<consumer>/<its own>`.

    No event of an outbox has such an id. A slash in the consumer's name is escaped, so that no two
    pairs of consumer and id have the same. One that is too long is a hash, without a second slash.
    """
    plain = f"{KEPT_IDS}{_without_slash(consumer)}/{event_id}"
    if len(plain.encode()) <= MAX_ID_BYTES:
        return plain
    return f"{KEPT_IDS}{sha256(plain.encode()).hexdigest()}"


def inbox_name(service: str, handler: str) -> str:
    """Return the name by which an inbox knows a handler; no other pair has the same."""
    return f"{_without_slash(service)}/{handler}"


def _without_slash(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F")


def short_error(error: BaseException | str) -> str:
    """Return an error as one text of bounded length, fit for `last_error` (S2.1)."""
    if isinstance(error, BaseException):
        name = type(error).__name__
        try:
            said = str(error)
        except Exception:  # it must not take the relay down with it
            said = "(it cannot be printed)"
        text = f"{name}: {said}" if said else name
    else:
        text = error
    text = text.encode(errors="replace").decode().replace("\x00", "\\0")
    return text if len(text) <= MAX_ERROR_CHARS else text[: MAX_ERROR_CHARS - 1] + "…"
