"""Event: the object that applications create; validated on construction."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from postroom.errors import CausationError, EventError, shown
from postroom.model.text import EMPTY, TextError, check_text

if sys.version_info >= (3, 14):
    from uuid import uuid7
else:
    from uuid_utils import uuid7  # only its text is used; `compat` would be slower

MAX_ID_BYTES = 100
STORED_IDS = "inbox/"  # prefix of the row ids of stored messages; refused for events
MAX_NAME_BYTES = 255
MAX_TOPIC_BYTES = 249  # Kafka's limit
MAX_STREAM_BYTES = 64
MAX_HEADERS_BYTES = 16_384
MAX_CAUSATION = 32
MAX_PARTITION = 2**31 - 1

DEFAULT_STREAM = "main"
INBOX_STREAM_PREFIX = "inbox."  # of consumers' streams: stored messages and dead letters
DEFAULT_TOPIC = "outbox_events"

_NAMES = (
    "aggregate_id", "key", "aggregate_type", "correlation_id", "causation_id", "content_type",
    "partition_key",
)  # fmt: skip
_NO_VALUE = "is empty; omit it or set a value"
_RESERVED_HEADER = "postroom-"


def new_id() -> str:
    """Create an event id: a UUIDv7, so that later ids of one host sort later."""
    return str(uuid7())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fields:
    id: str = field(default_factory=new_id)
    key: str | None = None
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    stream: str = DEFAULT_STREAM
    topic: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    correlation_id: str | None = None
    causation_path: Sequence[tuple[str, str]] = ()
    causation_id: str | None = None
    schema_version: int = 1
    content_type: str | None = None
    occurred_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    available_at: datetime | None = None
    deliver_by: datetime | None = None
    tombstone: bool = False
    partition: int | None = None
    partition_key: str | None = None


@dataclass(frozen=True, slots=True)
class Event(_Fields):
    """An event to be delivered.

    type            event type, such as `order.created`
    payload         JSON-serialisable data, a dataclass, a pydantic or msgspec object, or bytes
    id              text of at most 100 bytes that does not begin with "inbox/"; default: a UUIDv7
    key             with `aggregate_type`, the unit of order within a stream, and the broker's
                    message key; default: `aggregate_id`. None: the event has no order
    stream          the independent queue that holds the event
    topic           topic at the broker; default: the outbox's route for the type, then
                    `outbox_events`
    causation_id    id of the event that caused this one; set by a handler's context
    available_at    earliest delivery time; the event takes its place in the order when due
    deliver_by      if it was not sent by then, it expires: it is never sent, and later events of
                    its key go on
    tombstone       send no value: on Kafka, compaction then deletes the key. Needs a key
    partition       Kafka: the partition, instead of the one that the key chooses
    partition_key   Kafka: chooses the partition instead of the key, which stays the message key

    Raises EventError, which names the field, if the event cannot be stored or sent.
    """

    type: str
    payload: Any = None

    def __post_init__(self) -> None:
        try:
            self._check_texts()
        except TextError as error:
            raise _refused(error) from error
        if isinstance(self.schema_version, bool) or not isinstance(self.schema_version, int):
            raise EventError(
                "schema_version", f"must be a whole number, not {shown(self.schema_version)}"
            )
        if not 0 <= self.schema_version < 2**31:
            raise EventError("schema_version", "must be from 0 to 2147483647", limit=2**31 - 1)
        check_instant("occurred_at", self.occurred_at)
        if self.available_at is not None:
            check_instant("available_at", self.available_at)
        if self.deliver_by is not None:
            check_instant("deliver_by", self.deliver_by)
            if self.available_at is not None and self.deliver_by <= self.available_at:
                raise EventError("deliver_by", "must be after available_at")
        # Copies: the caller may change the originals after validation.
        object.__setattr__(self, "headers", _check_headers(self.headers))
        if self.causation_path != ():
            object.__setattr__(self, "causation_path", check_causation(self.causation_path))
        if self.tombstone is not False:
            self._check_tombstone()
        if self.partition is not None:
            self._check_partition()

    def _check_tombstone(self) -> None:
        if self.tombstone is not True:
            raise EventError("tombstone", f"must be True or False, not {shown(self.tombstone)}")
        if self.payload is not None:
            raise EventError("tombstone", "has no payload; omit the payload, or tombstone=True")
        if self.key is None:
            raise EventError("tombstone", "needs a key: it deletes the key's earlier messages")

    def _check_partition(self) -> None:
        number = self.partition
        if isinstance(number, bool) or not isinstance(number, int):
            raise EventError("partition", f"must be a whole number, not {shown(number)}")
        if not 0 <= number <= MAX_PARTITION:
            raise EventError("partition", f"must be from 0 to {MAX_PARTITION}", limit=MAX_PARTITION)
        if self.partition_key is not None:
            raise EventError("partition_key", "has no effect with a partition; omit one of them")

    def _check_texts(self) -> None:
        check_text("type", self.type, MAX_NAME_BYTES)
        check_text("id", self.id, MAX_ID_BYTES)
        if self.id.startswith(STORED_IDS):
            raise EventError(
                "id",
                f"begins with {STORED_IDS!r}, which is reserved for stored messages; change it",
            )
        check_text("stream", self.stream, MAX_STREAM_BYTES)
        if self.topic is not None:
            check_text("topic", self.topic, MAX_TOPIC_BYTES)
        if self.key is None and self.aggregate_id is not None:
            object.__setattr__(self, "key", self.aggregate_id)
        # aggregate_id first: an error must name the given field, not the key derived from it
        for name in _NAMES:
            value = getattr(self, name)
            if value is not None:
                check_text(name, value, MAX_NAME_BYTES)


def check_field(name: str, value: object, limit: int) -> None:
    """Check the text of an event's field. Raises EventError."""
    try:
        check_text(name, value, limit)
    except TextError as error:
        raise _refused(error) from error


def _refused(error: TextError) -> EventError:
    problem = _NO_VALUE if error.problem is EMPTY else error.problem
    return EventError(error.what, problem, limit=error.limit)


def check_instant(name: str, value: object) -> None:
    """Check an instant of an event. Raises EventError."""
    if type(value) is datetime and value.tzinfo is UTC:  # as nearly all are
        return
    if not isinstance(value, datetime):
        raise EventError(name, f"must be a datetime, not {type(value).__name__}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise EventError(name, "has no time zone; use datetime.now(UTC) or .astimezone()")
    try:
        value.astimezone(UTC)
    except OverflowError as error:
        raise EventError(name, "must be within the years 1 to 9999 in UTC") from error


def _check_headers(headers: object) -> dict[str, str]:
    if headers == {}:
        return {}
    if not isinstance(headers, Mapping):
        raise EventError(
            "headers", f"must be a mapping of text to text, not {type(headers).__name__}"
        )
    total = 0
    for name, value in headers.items():
        check_field("headers (a name)", name, MAX_NAME_BYTES)
        if name.lower().startswith(_RESERVED_HEADER):
            raise EventError(
                "headers", f"{name!r}: names that begin with 'postroom-' are reserved; rename it"
            )
        if not isinstance(value, str):
            raise EventError(
                "headers", f"{name!r} is {type(value).__name__}, not text; use str(...)"
            )
        try:
            total += len(name.encode()) + len(value.encode())
        except UnicodeEncodeError as error:
            raise EventError(
                "headers", f"{name!r} contains a lone surrogate and is not valid Unicode"
            ) from error
        if "\x00" in value:
            raise EventError("headers", f"{name!r} contains a NUL character; remove it")
    if total > MAX_HEADERS_BYTES:
        raise EventError(
            "headers",
            f"have {total} bytes; the limit is {MAX_HEADERS_BYTES}. "
            "Move large values into the payload",
            limit=MAX_HEADERS_BYTES,
        )
    return dict(headers)


def check_causation(path: Sequence[Any]) -> tuple[tuple[str, str], ...]:
    """Return the path as tuples; raises CausationError for a wrong shape, cycle or length."""
    if isinstance(path, str) or not isinstance(path, Sequence):
        raise CausationError(f"must be a list of [module, type] pairs, not {type(path).__name__}")
    checked: list[tuple[str, str]] = []
    for step in path:
        if isinstance(step, str) or not isinstance(step, Sequence) or len(step) != 2:
            raise CausationError(f"must contain [module, type] pairs, not {shown(step)}")
        for part in step:
            check_field("causation_path", part, MAX_NAME_BYTES)
        pair = (step[0], step[1])
        if pair in checked:
            raise CausationError(
                f"contains a cycle: {pair[0]}:{pair[1]} caused itself. Break the loop between "
                "these modules"
            )
        checked.append(pair)
    if len(checked) > MAX_CAUSATION:
        raise CausationError(
            f"has {len(checked)} steps; the limit is {MAX_CAUSATION}", limit=MAX_CAUSATION
        )
    return tuple(checked)
