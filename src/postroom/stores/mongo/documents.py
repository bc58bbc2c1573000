"""Documents of the outbox as records, and places in the order as numbers.

A place is (`ct`, `n`), a BSON timestamp and a 64-bit number. The engine wants one number, which
grows with the place and can be taken apart again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from operator import itemgetter
from types import NoneType
from typing import Any, NamedTuple

from bson.binary import Binary
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.timestamp import Timestamp

from postroom.model.clock import to_microseconds
from postroom.model.unreadable_rows import with_flaw
from postroom.record import UNREADABLE, Record, Stage, State, key_hash, lane_of, short_error

Document = dict[str, Any]

CODEC: CodecOptions[Document] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS,
    unicode_decode_error_handler="surrogateescape",
)
"""Dates as the milliseconds that they are: no time zones to attach, and no year is out of range.

Text that is not UTF-8 (MongoDB does not check) does not raise in the middle of a batch: `sound`
finds it.
"""

FIRST_US = to_microseconds(datetime.min.replace(tzinfo=UTC))
LAST_US = to_microseconds(datetime.max.replace(tzinfo=UTC))

HASH_BYTES = 16
DEAD = "dead"  # `awaits` of a dead letter
FLAW = "\0flaw"  # in memory only: what is wrong with a document

_TEXT, _TEXT_OR_NULL, _NUMBER = (str,), (str, NoneType), (int, Int64)
_DATE, _DATE_OR_NULL = (DatetimeMS,), (DatetimeMS, NoneType)
_NEVER_WAS = DatetimeMS(0)
_FIELDS: Mapping[str, tuple[tuple[type, ...], Any]] = {
    "_id": (_TEXT, ""),
    "stream": (_TEXT, ""),
    "lane": ((int,), 0),
    "key_hash": ((bytes,), b""),
    "event_type": (_TEXT, ""),
    "topic": (_TEXT, ""),
    "key": (_TEXT_OR_NULL, None),
    "aggregate_type": (_TEXT_OR_NULL, None),
    "aggregate_id": (_TEXT_OR_NULL, None),
    "payload": ((str, bytes, Binary), ""),
    "content_type": (_TEXT, ""),
    "headers": (_TEXT_OR_NULL, None),
    "correlation_id": (_TEXT_OR_NULL, None),
    "causation_path": (_TEXT_OR_NULL, None),
    "schema_version": (_NUMBER, 0),
    "kseq": ((*_NUMBER, NoneType), None),
    "size": ((int,), 0),
    "occurred_at": (_DATE, _NEVER_WAS),
    "occurred_us": (_NUMBER, 0),
    "created_at": (_DATE, _NEVER_WAS),
    "available_at": (_DATE_OR_NULL, None),
    "status": (_TEXT, State.PENDING.value),
    "stage": (_TEXT, Stage.READY.value),
    "attempts": (_NUMBER, 0),
    "next_attempt_at": (_DATE_OR_NULL, None),
    "last_error": (_TEXT_OR_NULL, None),
    "lease_owner": (_TEXT_OR_NULL, None),
    "lease_until": (_DATE_OR_NULL, None),
    "settled_at": (_DATE_OR_NULL, None),
    "ct": ((Timestamp,), Timestamp(0, 0)),
    "n": ((Int64,), Int64(0)),
}
"""The fields of an event: the types that a record can be made of, and a placeholder."""

_values = itemgetter(*_FIELDS)
_texts = itemgetter(
    "_id", "event_type", "topic", "key", "aggregate_type", "aggregate_id", "content_type",
    "headers", "correlation_id", "causation_path",
)  # fmt: skip
_STATES = frozenset(state.value for state in State)
_known_shapes: set[tuple[type, ...]] = set()

_fields = itemgetter(
    "_id",
    "stream",
    "lane",
    "key_hash",
    "event_type",
    "topic",
    "key",
    "aggregate_type",
    "aggregate_id",
)
_more = itemgetter(
    "content_type", "headers", "correlation_id", "causation_path", "schema_version", "kseq"
)


class Place(NamedTuple):
    """Where an event stands in the order."""

    ct: Timestamp
    n: int

    @property
    def seq(self) -> int:
        return (self.ct.time << 32 | self.ct.inc) << 64 | self.n

    @classmethod
    def of(cls, seq: int) -> Place:
        time = seq >> 64
        return cls(Timestamp(time >> 32, time & 0xFFFF_FFFF), Int64(seq & 0xFFFF_FFFF_FFFF_FFFF))


def seq_of(document: Mapping[str, Any]) -> int:
    """Return the place of a document as a number; 0 if it has none."""
    try:
        ct: Timestamp = document["ct"]
        return (ct.time << 32 | ct.inc) << 64 | int(document["n"])
    except (KeyError, AttributeError, TypeError, ValueError):
        return 0


def sound(document: Document) -> Document:
    """Return a document of which a record can be made: itself, if it has every field.

    People edit documents (S1.9). One with a missing field, or one of another type, comes back as a
    copy with placeholders, and FLAW in it names what is wrong. Nothing is written.
    """
    try:
        shape = tuple(map(type, _values(document)))
        if shape in _known_shapes and _is_utf8(document) and not _lane_complaint(document):
            return document
    except KeyError:
        pass
    wrong = [_complaint(document, name) for name in _FIELDS]
    wrong = [complaint for complaint in (*wrong, _lane_complaint(document)) if complaint]
    if not wrong:
        _known_shapes.add(tuple(map(type, _values(document))))
        return document
    fields = {name: _usable(document, name) for name in _FIELDS}
    if _complaint(document, "lane") and isinstance(document.get("lane"), (float, Int64)):
        fields["lane"] = int(document["lane"])
    if seq_of(document) == 0:  # half a place is none
        fields |= {"ct": _FIELDS["ct"][1], "n": _FIELDS["n"][1]}
    elif _complaint(document, "n"):
        fields["n"] = Int64(int(document["n"]))
    if _complaint(document, "key_hash"):
        fields["key_hash"] = key_hash(None, None, str(fields["_id"]))
    flaw = f"the document cannot be read: {'; '.join(wrong)}. Correct it, then replay it"
    return {**fields, FLAW: short_error(flaw)}


def _is_utf8(document: Document) -> bool:
    text = "".join(filter(None, _texts(document)))
    payload = document["payload"]
    return is_encodable(text) and (not isinstance(payload, str) or is_encodable(payload))


def is_encodable(text: str) -> bool:
    """Say whether it can be written as UTF-8; what was read from other bytes cannot."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
    return True


def _complaint(document: Document, name: str) -> str:
    """Return what is wrong with a field, or nothing."""
    if name not in document:
        return f"{name} is missing"
    value = document[name]
    if type(value) not in _FIELDS[name][0]:
        wanted = _FIELDS[name][0][0].__name__
        return f"{name} is {type(value).__name__}, not {wanted}"
    if isinstance(value, str) and not is_encodable(value):
        return f"{name} is not UTF-8"
    return ""


def _lane_complaint(document: Document) -> str:
    """Return what is wrong if an event is in another lane than its key: out of order (W10)."""
    hashed, lane = document.get("key_hash"), document.get("lane")
    if not isinstance(hashed, bytes) or not isinstance(lane, int):
        return ""  # that is said of the field itself
    if len(hashed) != HASH_BYTES:
        return f"key_hash has {len(hashed)} bytes instead of {HASH_BYTES}"
    if lane_of(hashed) != lane:
        return f"lane is {lane}, but its key belongs to lane {lane_of(hashed)}"
    return ""


def _usable(document: Document, name: str) -> Any:
    return _FIELDS[name][1] if _complaint(document, name) else document[name]


def record_of(document: Mapping[str, Any], barrier: int | None = None) -> Record:
    """Return a sound document of the outbox as a record."""
    payload = document["payload"]
    due = document["next_attempt_at"]
    flaw = document.get(FLAW)
    return Record._make(
        (
            seq_of(document),
            *_fields(document),
            payload.encode() if isinstance(payload, str) else bytes(payload),
            *_more(document),
            microseconds(document["occurred_at"]) + document["occurred_us"],
            microseconds(document["created_at"]),
            document["status"] if flaw is None else UNREADABLE,
            document["attempts"],
            None if due is None else microseconds(due),
            document["last_error"] if flaw is None else flaw,
            barrier,
        )
    )


def shown(document: Document) -> Record:
    """Return any document as a record for people: placeholders, and its own state and error."""
    document = sound(document)
    record = record_of(document)
    if record.state != UNREADABLE:
        return record
    state = document["status"] if document["status"] in _STATES else State.PENDING.value
    error = document["last_error"] or document[FLAW]
    return with_flaw(record._replace(state=state, last_error=error), document[FLAW])


def microseconds(date: DatetimeMS) -> int:
    """Return a date as microseconds since 1970."""
    return int(date) * 1000


def milliseconds(seconds: float) -> int:
    """Return a span as MongoDB counts it."""
    return round(seconds * 1000)


def lane_id(stream: str, lane: int) -> Document:
    """Return the `_id` of a lane's lease; the order of the fields is part of it."""
    return {"stream": stream, "lane": lane}


def key_id(stream: str, hashed: bytes) -> Document:
    """Return the `_id` of a key's block."""
    return {"stream": stream, "key_hash": hashed}
