"""Reads documents of the outbox as records, including edited ones.

The format of the documents is in `postroom.transactions.mongo.documents`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64

from postroom.model.clock import to_microseconds
from postroom.model.unreadable_rows import with_flaw
from postroom.record import UNREADABLE, Record, State, key_hash, lane_of, short_error
from postroom.transactions.mongo.documents import EXTRAS, FIELDS, HASH_BYTES, Document, seq_of

CODEC: CodecOptions[Document] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS,
    unicode_decode_error_handler="surrogateescape",
)
"""Dates as milliseconds: without time zones, and without years out of range.

Text that is not UTF-8 (MongoDB does not check) does not raise in the middle of a batch: `sound`
finds it.
"""

FIRST_US = to_microseconds(datetime.min.replace(tzinfo=UTC))
LAST_US = to_microseconds(datetime.max.replace(tzinfo=UTC))

FLAW = "\0flaw"  # in memory only: the defects of a document

_values = itemgetter(*FIELDS)
_texts = itemgetter(
    "_id", "event_type", "topic", "key", "aggregate_type", "aggregate_id", "content_type",
    "headers", "correlation_id", "causation_path",
)  # fmt: skip
_STATES = frozenset(state.value for state in State)
_known_shapes: set[tuple[type, ...]] = set()

_RECORD = ("history", "receipt", "replaced_by")  # never checked: a damaged one stops nothing

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


def sound(document: Document) -> Document:
    """Return a document that can be read as a record: itself, if it has every field.

    Operators edit documents. One with a missing field, or a field of another type, is returned as a
    copy with placeholders, and FLAW in it names the defects. Nothing is written.
    """
    try:
        shape = tuple(map(type, _values(document)))
        if (
            shape in _known_shapes
            and _is_utf8(document)
            and not _lane_complaint(document)
            and not _extra_complaints(document)
        ):
            return document
    except KeyError:
        pass
    wrong = [_complaint(document, name) for name in FIELDS]
    odd = _extra_complaints(document)
    wrong = [found for found in (*wrong, *odd.values(), _lane_complaint(document)) if found]
    if not wrong:
        _known_shapes.add(tuple(map(type, _values(document))))
        return document
    fields = {name: _usable(document, name) for name in FIELDS}
    fields |= {name: document[name] for name in EXTRAS if name in document and name not in odd}
    fields |= {name: document[name] for name in _RECORD if name in document}
    if _complaint(document, "lane") and isinstance(document.get("lane"), (float, Int64)):
        fields["lane"] = int(document["lane"])
    if seq_of(document) == 0:  # half a position counts as missing
        fields |= {"ct": FIELDS["ct"][1], "n": FIELDS["n"][1]}
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
    """Return whether it can be encoded as UTF-8; text read from other bytes cannot."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
    return True


def _complaint(document: Document, name: str) -> str:
    """Return the defect of a field, or nothing."""
    if name not in document:
        return f"{name} is missing"
    value = document[name]
    if type(value) not in FIELDS[name][0]:
        wanted = FIELDS[name][0][0].__name__
        return f"{name} is {type(value).__name__}, not {wanted}"
    if isinstance(value, str) and not is_encodable(value):
        return f"{name} is not UTF-8"
    return ""


def _extra_complaints(document: Document) -> dict[str, str]:
    """Return the defects of the fields that most events lack, by name."""
    found: dict[str, str] = {}
    for name, types in EXTRAS.items():
        value = document.get(name)
        if value is None:
            continue
        if type(value) not in types:
            found[name] = f"{name} is {type(value).__name__}, not {types[0].__name__}"
        elif isinstance(value, str) and not is_encodable(value):
            found[name] = f"{name} is not UTF-8"
        elif name == "options" and not _is_object(value):
            found[name] = "options are not a JSON object"
    return found


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _lane_complaint(document: Document) -> str:
    """Return the defect of an event in another lane than its key's: out of order (W10)."""
    hashed, lane = document.get("key_hash"), document.get("lane")
    if not isinstance(hashed, bytes) or not isinstance(lane, int):
        return ""  # reported for the field itself
    if len(hashed) != HASH_BYTES:
        return f"key_hash has {len(hashed)} bytes instead of {HASH_BYTES}"
    if lane_of(hashed) != lane:
        return f"lane is {lane}, but its key belongs to lane {lane_of(hashed)}"
    return ""


def _usable(document: Document, name: str) -> Any:
    return FIELDS[name][1] if _complaint(document, name) else document[name]


def record_of(document: Mapping[str, Any], barrier: int | None = None) -> Record:
    """Return a sound document of the outbox as a record."""
    payload = document["payload"]
    due, expires = document["next_attempt_at"], document.get("expires_at")
    flaw = document.get(FLAW)
    return Record._make(
        (
            seq_of(document),
            *_fields(document),
            payload.encode() if isinstance(payload, str) else bytes(payload),
            *_more(document),
            document.get("causation_id"),
            document.get("options"),
            None if expires is None else date_microseconds(expires),
            date_microseconds(document["occurred_at"]) + document["occurred_us"],
            date_microseconds(document["created_at"]),
            document["status"] if flaw is None else UNREADABLE,
            document["attempts"],
            None if due is None else date_microseconds(due),
            document["last_error"] if flaw is None else flaw,
            barrier,
        )
    )


def shown(document: Document) -> Record:
    """Return any document as a record for display: placeholders, and its own state and error."""
    document = sound(document)
    record = record_of(document)
    if record.state != UNREADABLE:
        return record
    state = document["status"] if document["status"] in _STATES else State.PENDING.value
    error = document["last_error"] or document[FLAW]
    return with_flaw(record._replace(state=state, last_error=error), document[FLAW])


def date_microseconds(date: DatetimeMS) -> int:
    """Return a date as microseconds since 1970."""
    return int(date) * 1000
