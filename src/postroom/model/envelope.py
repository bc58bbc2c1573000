"""The headers of a message, the same for every broker.

All values are text, readable in any language. postroom's names begin with `postroom-`; the
application's headers, such as `traceparent`, are sent unchanged beside them.
"""

from __future__ import annotations

import json
import re
from collections.abc import ItemsView, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from postroom.errors import EventError
from postroom.model.clock import from_microseconds, to_microseconds
from postroom.record import Record

ID = "postroom-id"
TYPE = "postroom-type"
KEY = "postroom-key"
AGGREGATE_TYPE = "postroom-aggregate-type"
AGGREGATE_ID = "postroom-aggregate-id"
CORRELATION_ID = "postroom-correlation-id"
CAUSATION_PATH = "postroom-causation-path"
CAUSATION_ID = "postroom-causation-id"
SCHEMA_VERSION = "postroom-schema-version"
CONTENT_TYPE = "content-type"
OCCURRED_AT = "postroom-occurred-at"
KSEQ = "postroom-kseq"
OUTBOX = "postroom-outbox"
TOMBSTONE = "postroom-tombstone"
REPLACES = "postroom-replaces"  # the id of the dead letter that was edited; stored with the event

_MAX_DIGITS = 19  # of a number that a database can hold
_LONE = re.compile(r"[\ud800-\udfff]")


def write_headers(record: Record, outbox_id: str) -> list[tuple[str, str]]:
    """Return the headers of an event, postroom's first; absent values are left out.

    Raises EventError for values that a message cannot carry. `add` validates them, but a row may
    also be written by a trigger, a script, or another language.
    """
    headers = [
        (ID, record.id),
        *_kind(record.type, record.content_type, record.schema_version),
        (OCCURRED_AT, _written(record.occurred_us)),
    ]
    if record.key is not None:
        headers.append((KEY, record.key))
    if record.aggregate_type is not None:
        headers.append((AGGREGATE_TYPE, record.aggregate_type))
    if record.aggregate_id is not None:
        headers.append((AGGREGATE_ID, record.aggregate_id))
    if record.correlation_id is not None:
        headers.append((CORRELATION_ID, record.correlation_id))
    if record.causation_json is not None:
        headers.append((CAUSATION_PATH, record.causation_json))
    if record.causation_id is not None:
        headers.append((CAUSATION_ID, record.causation_id))
    if record.kseq is not None:  # with the outbox's id: a restored database restarts its numbers
        headers += [(KSEQ, str(record.kseq)), (OUTBOX, outbox_id)]
    if record.tombstone:
        headers.append((TOMBSTONE, "true"))
    if record.headers_json is not None:
        headers.extend(_own(record.headers_json))
    return headers


class Envelope(NamedTuple):
    """postroom's headers of a message. Missing or invalid values are None."""

    id: str | None
    type: str | None
    key: str | None
    aggregate_type: str | None
    aggregate_id: str | None
    correlation_id: str | None
    causation_path: tuple[tuple[str, str], ...]
    schema_version: int | None
    content_type: str | None
    occurred_us: int | None
    kseq: int | None
    outbox: str | None
    causation_id: str | None
    tombstone: bool
    headers: Mapping[str, str]  # the application's


def read_headers(headers: Mapping[str, str]) -> Envelope:
    """Read the headers of a message from any sender; never raises."""
    return Envelope(
        headers.get(ID),
        headers.get(TYPE),
        headers.get(KEY),
        headers.get(AGGREGATE_TYPE),
        headers.get(AGGREGATE_ID),
        headers.get(CORRELATION_ID),
        tuple(_steps(headers.get(CAUSATION_PATH))),
        _number(headers.get(SCHEMA_VERSION)),
        headers.get(CONTENT_TYPE),
        _instant(headers.get(OCCURRED_AT)),
        _number(headers.get(KSEQ)),
        headers.get(OUTBOX),
        headers.get(CAUSATION_ID),
        headers.get(TOMBSTONE) == "true",
        {n: v for n, v in headers.items() if not n.startswith("postroom-") and n != CONTENT_TYPE},
    )


@lru_cache(1_000)
def _kind(kind: str, content_type: str, schema_version: int) -> tuple[tuple[str, str], ...]:
    """Return the headers of an event kind; cached, as most events share them."""
    return (TYPE, kind), (CONTENT_TYPE, content_type), (SCHEMA_VERSION, str(schema_version))


def _own(text: str) -> ItemsView[str, str]:
    """Return the application's headers; raises EventError if they are invalid."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise EventError("headers", "must be a JSON object of text values")
    for name, value in found.items():
        if not isinstance(value, str):
            raise EventError("headers", f"must be text, but {name!r} is {type(value).__name__}")
    if "\\ud" in text.lower() and _LONE.search("".join([*found, *found.values()])):
        raise EventError("headers", "contain a lone surrogate and are not valid Unicode")
    return found.items()


def _written(microseconds: int) -> str:
    """Return a time in ISO 8601. Seconds are cached, as many events share them."""
    seconds, rest = divmod(microseconds, 1_000_000)
    try:
        text = _second(seconds)
    except OverflowError:
        said = f"must be within the years 1 to 9999; it is {seconds} seconds after 1970"
        raise EventError("occurred_at", said) from None
    return f"{text}.{rest:06}+00:00" if rest else f"{text}+00:00"


@lru_cache(1_000)
def _second(seconds: int) -> str:
    return from_microseconds(seconds * 1_000_000).isoformat()[: -len("+00:00")]


def _number(text: str | None) -> int | None:
    if text is None or len(text) > _MAX_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


def _instant(text: str | None) -> int | None:
    try:
        return None if text is None else to_microseconds(datetime.fromisoformat(text))
    except (ValueError, TypeError):
        return None


def _steps(text: str | None) -> Iterator[tuple[str, str]]:
    try:
        found = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return
    for step in found if isinstance(found, list) else []:
        if isinstance(step, list) and len(step) == 2 and all(map(_is_text, step)):
            yield step[0], step[1]


def _is_text(part: object) -> bool:
    """Return whether a database accepts the text; JSON can contain lone surrogates and NUL."""
    return isinstance(part, str) and "\x00" not in part and _LONE.search(part) is None
