"""Edited dead letters: the changes are validated as `add` validates an event."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from postroom.commands import Edit
from postroom.errors import NotFoundError, PayloadError, ReplacedError
from postroom.event import Event
from postroom.model.codec import JSON, encode
from postroom.model.envelope import ID, REPLACES
from postroom.model.incoming import BODY_BYTES
from postroom.outbox import to_row
from postroom.record import PARTITION, PARTITION_KEY, Record, State

_RESERVED = "postroom-"
_to_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Edited(NamedTuple):
    """The columns that an edit may change, as they are stored."""

    payload: str | None
    payload_bytes: bytes | None
    content_type: str
    headers: str
    size: int
    options: str | None


def check_editable(event_id: str, record: Record | None, replaced_by: str | None) -> Record:
    """Return the dead letter; raises NotFoundError or ReplacedError if it cannot be edited."""
    if record is None:
        raise NotFoundError(f"no event with id {event_id!r}; see: postroom list --state dead")
    if replaced_by is not None:
        raise ReplacedError(event_id, replaced_by)
    if record.state != State.DEAD:
        raise NotFoundError(
            f"cannot edit event {event_id!r}: it is {record.state}, and only dead letters can be "
            "edited"
        )
    if record.flaw is not None:
        raise NotFoundError(f"cannot edit event {event_id!r}: {record.flaw}. Correct the row first")
    return record


def edited(record: Record, edit: Edit, new_id: str) -> Edited:
    """Return what is sent instead of a dead letter.

    Raises EventError or PayloadError, as `add` does. The header `postroom-replaces` names the dead
    letter. A message that a consumer stored keeps the headers that postroom needs of it. JSON is
    checked and stored as it was written.
    """
    kept: dict[str, str] = {}
    own: dict[str, str] = {}
    for name, value in record.headers.items():
        (kept if name.lower().startswith(_RESERVED) else own)[name] = value
    if edit.payload is not None:
        kept.pop(BODY_BYTES, None)  # the body was too large to be stored; now there is one
    tombstone = edit.tombstone or (record.tombstone and edit.payload is None)
    content_type = record.content_type if edit.content_type is None else edit.content_type
    body = record.payload if edit.payload is None else _stripped(bytes(edit.payload), content_type)
    checked: Any = b""  # an unchanged payload was checked when it was added
    if edit.payload is not None or content_type != record.content_type:
        checked = _checked(body, content_type)
    options, unchanged = record.options, _unchanged(record, is_message=ID in kept)
    event = Event(
        unchanged.pop("type"),
        None if tombstone and edit.payload is None else checked,
        id=new_id,
        headers=own if edit.headers is None else edit.headers,
        content_type=content_type,
        tombstone=tombstone,
        partition=options.get(PARTITION),
        partition_key=options.get(PARTITION_KEY),
        **unchanged,
    )
    row = to_row(event, record.topic)  # encodes, and refuses what cannot be encoded
    if tombstone:
        body = b""
    text = _text(body) if _is_json(content_type) and not tombstone else None
    headers = _to_text({**kept, REPLACES: record.id, **event.headers})
    size = len(body) + len(headers.encode())
    stored = body if text is None else None
    return Edited(text, stored, content_type, headers, size, row.options)


def _unchanged(record: Record, *, is_message: bool) -> dict[str, Any]:
    """Return the other fields of the event; those of a received message are a foreign sender's."""
    if is_message:
        return {"type": "message", "key": "message"}
    return {
        "type": record.type,
        "key": record.key,
        "aggregate_type": record.aggregate_type,
        "aggregate_id": record.aggregate_id,
        "stream": record.stream,
        "topic": record.topic,
        "correlation_id": record.correlation_id,
        "causation_path": record.causation_path,
        "causation_id": record.causation_id,
        "schema_version": record.schema_version,
        "occurred_at": record.occurred_at,
    }


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or kind.endswith("+json")


def _stripped(body: bytes, content_type: str) -> bytes:
    """Return JSON without the line break that editors put at the end of a file."""
    return body.strip() if _is_json(content_type) else body


def _checked(body: bytes, content_type: str) -> Any:
    """Return the payload for the checks of an event; JSON is decoded strictly."""
    encode(body)  # refuses one that is too large before it is decoded
    if not _is_json(content_type):
        return body
    try:
        return json.loads(
            body.decode(), parse_constant=_refuse_constant, object_pairs_hook=_distinct
        )
    except (ValueError, RecursionError) as error:
        raise PayloadError(
            "$", f"is not valid JSON, which its content type {content_type!r} requires: {error}"
        ) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field occurs twice in an object")
    return found


def _text(body: bytes) -> str | None:
    """Return the payload as readable text, if a database accepts it."""
    try:
        return None if b"\x00" in body else body.decode()
    except UnicodeDecodeError:
        return None
