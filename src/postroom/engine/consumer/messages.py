"""Conversion of a message to the record that handlers see, and to a stored row and back.

Both modes of a consumer build the record here, from the same parts: a handler cannot distinguish an
event received directly from one that was stored first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from postroom.errors import EventError
from postroom.event import INBOX_STREAM_PREFIX, MAX_NAME_BYTES, MAX_TOPIC_BYTES
from postroom.model.clock import host_microseconds
from postroom.model.codec import JSON
from postroom.model.envelope import ID, read_headers, write_headers
from postroom.model.incoming import Incoming
from postroom.model.message_id import MissingId, identify, media_type
from postroom.record import Record, key_hash, lane_of, row_id
from postroom.transaction import Row

OFFSET = "postroom-offset"
_NO_VALUE = '{"tombstone":true}'  # the options of a record whose value is null

_MAX_INT = 2**31 - 1
_LARGEST_NUMBER = 2**53
_LATEST_US = 7_258_118_400_000_000  # the year 2200

_to_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def to_record(message: Incoming, missing_id: MissingId | None = None) -> Record:
    """Return the event of a message, as `read` does.

    Without `missing_id` it always gets an id: its position in the log if there is one, so that two
    dead letters with the same body stay two, otherwise the hash.
    """
    how = missing_id or ("hash" if message.offset is None else "offset")
    return read(message, how, whatever=missing_id is None)[0]


def _number(kseq: int | None, *, whatever: bool) -> int | None:
    """Return the event's number in its key, if it is a valid one."""
    if kseq is None or kseq <= _LARGEST_NUMBER:
        return kseq
    if whatever:
        return None
    raise EventError("kseq", f"{kseq} is larger than the maximum, {_LARGEST_NUMBER}")


def read(
    message: Incoming, missing_id: MissingId, *, whatever: bool = False
) -> tuple[Record, bool]:
    """Return the event of a message, and whether its id was derived from its body.

    Raises EventError if it has no id and needs one, or if its number is above the maximum, after
    which the counter of its key could never be raised. `whatever`: accept any number.

    Other missing or invalid values are replaced: the type by the topic, the key by the broker's
    key. `stream` is the id of the outbox that the event came from, if it has a number.
    """
    envelope = read_headers(message.headers)
    event_id, from_body = identify(message, missing_id, envelope)
    key = _sound(envelope.key if envelope.key is not None else message.key)
    aggregate_type = _sound(envelope.aggregate_type)
    hashed = key_hash(aggregate_type, key, event_id)
    now = host_microseconds()
    record = Record(
        seq=0,
        id=event_id,
        stream=_clip(envelope.outbox, MAX_NAME_BYTES) or "",
        lane=lane_of(hashed),
        key_hash=hashed,
        type=_clip(envelope.type or message.topic, MAX_NAME_BYTES) or "unknown",
        topic=message.topic,
        key=key,
        aggregate_type=aggregate_type,
        aggregate_id=envelope.aggregate_id,
        payload=message.body,
        content_type=media_type(envelope, message.body),
        headers_json=_json(envelope.headers) if envelope.headers else None,
        correlation_id=_clip(envelope.correlation_id, MAX_NAME_BYTES),
        causation_json=_json(envelope.causation_path) if envelope.causation_path else None,
        schema_version=_within(envelope.schema_version, _MAX_INT, 1),
        kseq=_number(envelope.kseq, whatever=whatever),
        causation_id=_clip(envelope.causation_id, MAX_NAME_BYTES),
        options_json=_NO_VALUE if envelope.tombstone and not message.body else None,
        expires_us=None,
        occurred_us=_within(envelope.occurred_us, _LATEST_US, now),
        created_us=now,
        state="pending",
        attempts=0,
    )
    return record, from_body


def to_message(record: Record, outbox_id: str) -> Incoming:
    """Return the message that a broker would deliver for an event of an outbox."""
    headers: dict[str, str] = {}
    for name, value in write_headers(record, outbox_id):
        headers.setdefault(name, value)  # postroom's headers come first and stay
    return Incoming(record.topic, record.payload, headers, record.key)


def to_row(message: Incoming, record: Record, consumer: str, stream: str) -> Row:
    """Return the message as a stored row: its unchanged body and all its headers."""
    text = _text(record)
    headers = {**message.headers, ID: record.id}
    if message.offset is not None:
        headers[OFFSET] = message.offset
    wire = _json(headers)
    return Row(
        id=row_id(consumer, record.id),
        stream=stream,
        lane=record.lane,
        key_hash=record.key_hash,
        type=record.type,
        topic=_clip(message.topic, MAX_TOPIC_BYTES) or "unknown",
        key=_clip(record.key, MAX_NAME_BYTES),
        aggregate_type=_clip(record.aggregate_type, MAX_NAME_BYTES),
        aggregate_id=_clip(record.aggregate_id, MAX_NAME_BYTES),
        payload=text,
        payload_bytes=record.payload if text is None else None,
        content_type=_clip(record.content_type, MAX_NAME_BYTES) or JSON,
        headers=wire,
        correlation_id=record.correlation_id,
        causation_path=record.causation_json,
        schema_version=record.schema_version,
        kseq=record.kseq,  # a strict message is never buried automatically: it blocks its key
        occurred_us=record.occurred_us,
        available_us=None,
        size=len(record.payload) + len(wire.encode()),
        causation_id=record.causation_id,
    )


def restore(kept: Record) -> Record:
    """Return the event of a stored message, with the facts of its handling.

    A row that is not a message is passed on unchanged. The marker of a skipped message has its own
    type, and the message's headers, which identify the number that it replaces.
    """
    headers = kept.headers
    if ID not in headers:
        return kept
    event = to_record(Incoming(kept.topic, kept.payload, headers, kept.key, headers.get(OFFSET)))
    as_kept = row_id(kept.stream.removeprefix(INBOX_STREAM_PREFIX), event.id)
    return event._replace(
        id=event.id if kept.id == as_kept else kept.id,  # replayed under a new id: meant to be new
        type=kept.type,
        seq=kept.seq,
        lane=kept.lane,
        key_hash=kept.key_hash,
        content_type=kept.content_type,
        created_us=kept.created_us,
        state=kept.state,
        attempts=kept.attempts,
        next_attempt_us=kept.next_attempt_us,
        last_error=kept.last_error,
        barrier=kept.barrier,
    )


def _text(record: Record) -> str | None:
    """Return the payload as readable text, if it is JSON that a database accepts."""
    if record.content_type != JSON or b"\x00" in record.payload:
        return None
    try:
        return record.payload.decode()
    except UnicodeDecodeError:
        return None


def _within(number: int | None, most: int, otherwise: int) -> int:
    """Return a number from a foreign sender, if every database can hold it."""
    return number if number is not None and 0 <= number <= most else otherwise


def _sound(text: str | None) -> str | None:
    """Replace lone surrogates, which cannot be encoded."""
    if text is None or text.isascii():
        return text
    return text.encode(errors="replace").decode()


def _clean(text: str) -> str:
    """Replace characters that databases refuse: lone surrogates and NUL."""
    return text.encode(errors="replace").decode().replace("\x00", "\ufffd")


def _json(value: Any) -> str:
    """Return a foreign sender's value as JSON, without characters that databases refuse.

    NUL is replaced first: JSON writes it as an escape, which cannot be distinguished from text that
    contains that escape.
    """
    match value:
        case Mapping():
            return _to_text({_clean(name): _clean(text) for name, text in value.items()})
        case _:
            return _to_text([[_clean(part) for part in step] for step in value])


def _clip(text: str | None, limit: int) -> str | None:
    """Truncate a foreign sender's text to the width of a column."""
    if text is None:
        return None
    clean = text.replace("\x00", "\ufffd").encode(errors="replace")
    return clean[:limit].decode(errors="ignore")
