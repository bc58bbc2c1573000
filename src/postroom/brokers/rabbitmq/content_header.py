r"""Decodes the properties of a message from RabbitMQ. Never raises, whatever a sender wrote.

RabbitMQ passes on strings that are not UTF-8, timestamps of any size, and tables nested to any
depth. pamqp refuses such a frame, which costs the connection and every other message on it. Here
each part is decoded separately: text that is not UTF-8 keeps its readable part, the rest becomes
`\xNN`, and `problem` names it. Tables and arrays inside the headers are skipped by their length,
never entered.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import NamedTuple

_FLAGS = Struct(">H").unpack_from
_LONG = Struct(">I").unpack_from
_TIMESTAMP = Struct(">Q").unpack_from
_FIRST_FLAGS = 12  # after class, weight and the size of the body
_MORE_FLAGS = 0x0001
_SHORT, _TABLE, _OCTET, _INSTANT = range(4)
_PROPERTIES = (  # in the order of the wire
    (0x8000, "content type", _SHORT),
    (0x4000, "content encoding", _SHORT),
    (0x2000, "headers", _TABLE),
    (0x1000, "delivery mode", _OCTET),
    (0x0800, "priority", _OCTET),
    (0x0400, "correlation id", _SHORT),
    (0x0200, "reply to", _SHORT),
    (0x0100, "expiration", _SHORT),
    (0x0080, "message id", _SHORT),
    (0x0040, "timestamp", _INSTANT),
    (0x0020, "type", _SHORT),
    (0x0010, "user id", _SHORT),
    (0x0008, "app id", _SHORT),
    (0x0004, "cluster id", _SHORT),
)
_USED = frozenset({"content type", "correlation id", "message id", "type"})
_NUMBERS = {
    ord(kind): Struct(form)
    for kind, form in (
        ("b", ">b"), ("B", ">B"), ("s", ">h"), ("u", ">H"), ("I", ">i"), ("i", ">I"),
        ("l", ">q"), ("L", ">q"), ("f", ">f"), ("d", ">d"),
    )
}  # fmt: skip
_TEXT, _BYTES, _BOOLEAN, _TIME, _DECIMAL = b"SxtTD"
_NESTED, _VOID = b"FA", b"V\x00"
_MILLISECONDS_FROM = 0xFFFFFFFF  # a larger timestamp is in milliseconds, as for pamqp
_MOST_PROBLEMS = 5


class Content(NamedTuple):
    """A message without its body. An empty property is None.

    headers     as text, without tables, arrays and decimals
    problem     which parts could not be decoded; empty if all could
    """

    routing_key: str
    message_id: str | None
    type: str | None
    correlation_id: str | None
    content_type: str | None
    headers: Mapping[str, str]
    problem: str = ""


class _MalformedError(ValueError):
    """The lengths in a header frame are inconsistent: RabbitMQ itself never sends that."""


def read_content(routing_key: bytes, payload: bytes) -> Content:
    """Decode the payload of a content header frame."""
    problems: list[str] = []
    found: dict[str, str] = {}
    headers: dict[str, str] = {}
    try:
        _read_properties(payload, found, headers, problems)
    except (IndexError, StructError, _MalformedError):
        problems.insert(0, "the properties are malformed")
    return Content(
        _text(routing_key, "routing key", problems),
        found.get("message id") or None,
        found.get("type") or None,
        found.get("correlation id") or None,
        found.get("content type") or None,
        headers,
        _told(problems),
    )


def _read_properties(
    data: bytes, found: dict[str, str], headers: dict[str, str], problems: list[str]
) -> None:
    at = _FIRST_FLAGS
    (flags,) = first = _FLAGS(data, at)
    at += 2
    while first[0] & _MORE_FLAGS:  # AMQP allows more flag words, but none are defined
        first = _FLAGS(data, at)
        at += 2
    for flag, name, kind in _PROPERTIES:
        if not flags & flag:
            continue
        if kind == _SHORT:
            end = at + 1 + data[at]
            if name in _USED:
                found[name] = _text(_part(data, at + 1, end), name, problems)
            at = end
        elif kind == _TABLE:
            end = at + 4 + _LONG(data, at)[0]
            _read_table(data, at + 4, end, headers, problems)
            at = end
        else:
            at += 1 if kind == _OCTET else 8
    if at > len(data):
        raise _MalformedError


def _read_table(
    data: bytes, at: int, end: int, headers: dict[str, str], problems: list[str]
) -> None:
    if end > len(data):
        raise _MalformedError
    while at < end:
        start = at + 1
        at = start + data[at]
        name = _text(_part(data, start, at), "name of a header", problems)
        kind = data[at]
        at, value = _read_value(data, kind, at + 1)
        if value is not None:
            headers[name] = value
    if at > end:
        raise _MalformedError


def _read_value(data: bytes, kind: int, at: int) -> tuple[int, str | None]:
    """Return where the value ends, and its text."""
    if kind in (_TEXT, _BYTES):
        end = at + 4 + _LONG(data, at)[0]
        return end, _part(data, at + 4, end).decode(errors="replace")
    if (number := _NUMBERS.get(kind)) is not None:
        return at + number.size, str(number.unpack_from(data, at)[0])
    if kind in _NESTED:
        return at + 4 + _LONG(data, at)[0], None
    if kind == _BOOLEAN:
        return at + 1, "true" if data[at] else "false"
    if kind == _TIME:
        return at + 8, _instant(_TIMESTAMP(data, at)[0])
    if kind == _DECIMAL:
        return at + 5, None
    if kind in _VOID:
        return at, None
    raise _MalformedError


def _part(data: bytes, at: int, end: int) -> bytes:
    if end > len(data):
        raise _MalformedError
    return data[at:end]


def _text(data: bytes, what: str, problems: list[str]) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        readable = data.decode(errors="backslashreplace")
        problems.append(f"the {what} is not UTF-8: {readable[:80]!r}")
        return readable


def _instant(timestamp: int) -> str:
    """Return a time in ISO 8601; the number itself if it is outside the calendar."""
    seconds = timestamp / 1_000 if timestamp > _MILLISECONDS_FROM else timestamp
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    return str(timestamp)


def _told(problems: list[str]) -> str:
    more = len(problems) - _MOST_PROBLEMS
    told = "; ".join(problems[:_MOST_PROBLEMS])
    return f"{told}; and {more} more" if more > 0 else told
