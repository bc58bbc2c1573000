"""The strict payload encoder; runs at `add`, in the caller's process.

Every consumer can read its output: UTF-8, no NaN, text keys, bounded size and depth. Other payloads
are refused before anything is written, with an error that names the path inside the payload.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from postroom.errors import PayloadError, shown

MAX_PAYLOAD_BYTES = 900_000
MAX_DEPTH = 64
_MAX_INT_BITS = 13_287  # below Python's limit of 4,300 digits, which also applies to consumers
_MAX_WRAPPINGS = 16  # an object may convert itself to another object, but not endlessly

JSON = "application/json"
BINARY = "application/octet-stream"

_HIDDEN = (
    "is a secret, which would be sent as asterisks; omit it, or send .get_secret_value() if every "
    "consumer of the event may read it"
)
_LEAVES = frozenset({str, bool, float, type(None)})
_NUMBERS = frozenset({bool, int, float})
_LARGE = 2**63

_to_text = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
).encode


def encode(payload: Any) -> tuple[bytes, str]:
    """Return the payload as bytes, and its content type.

    bytes, bytearray and memoryview are not changed. All other values become compact JSON. Raises
    PayloadError for values without a JSON form and payloads above MAX_PAYLOAD_BYTES.
    """
    if isinstance(payload, (bytes, bytearray, memoryview)):
        body, content_type = bytes(payload), BINARY
    else:
        body, content_type = encode_json(payload), JSON
    if len(body) > MAX_PAYLOAD_BYTES:
        raise PayloadError(
            "$",
            f"{len(body):,} bytes exceed the limit of {MAX_PAYLOAD_BYTES:,}. Store the large part "
            "elsewhere and send a reference to it",
            limit=MAX_PAYLOAD_BYTES,
        )
    return body, content_type


def encode_json(value: Any) -> bytes:
    """Encode a value as strict, compact UTF-8 JSON.

    A value that occurs in several places is counted at each of them during the walk: a payload that
    would expand beyond MAX_PAYLOAD_BYTES is refused before it is encoded.
    """
    if _is_plain(value, 0, _Room()):
        with suppress(ValueError):  # NaN, a lone surrogate: the slow path finds the place
            return _to_text(value).encode()
    plain = _plain(value, "$", 0, _Room())
    try:
        return _to_text(plain).encode()
    except ValueError as error:  # the application lowered Python's limit of digits
        raise PayloadError("$", f"cannot be encoded as JSON: {error}") from error


def decode_json(body: bytes | str) -> Any:
    """Decode JSON for handlers and the CLI; the relay never decodes a payload."""
    return json.loads(body)


class _Room:
    """The remainder of MAX_PAYLOAD_BYTES, by the minimum size of each value."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_PAYLOAD_BYTES

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise PayloadError(
                "$",
                f"exceeds the limit of {MAX_PAYLOAD_BYTES:,} bytes. Store the large part elsewhere "
                "and send a reference to it",
                limit=MAX_PAYLOAD_BYTES,
            )


def _is_plain(value: Any, depth: int, room: _Room) -> bool:
    """Return whether a value consists of plain types only, as nearly all do."""
    kind = type(value)
    if kind in _LEAVES:
        if kind is str:
            room.take(len(value))
        return True
    if kind is int:
        return -_LARGE < value < _LARGE  # type: ignore[no-any-return]
    if depth >= MAX_DEPTH:
        return False
    size = 0
    if kind is dict:
        for name, item in value.items():
            if type(name) is not str:
                return False
            size += len(name) + 5  # quotes, colon, comma, and a digit
            if type(item) is str:
                size += len(item)
            elif type(item) not in _LEAVES and not _is_plain(item, depth + 1, room):
                return False
    elif kind is list or kind is tuple:
        size = 2 * len(value)
        for item in value:
            if type(item) is str:
                size += len(item)
            elif type(item) not in _LEAVES and not _is_plain(item, depth + 1, room):
                return False
    else:
        return False
    room.take(max(0, size - 1))  # the last one has no comma
    return True


def _plain(value: Any, path: str, depth: int, room: _Room, wrappings: int = 0) -> Any:
    """Check a value and convert it to plain types; raises PayloadError with the path."""
    kind = type(value)
    if kind is str:
        room.take(len(value) + 2)
        if not value.isascii():
            _check_text(value, path)
        return value
    if kind in _NUMBERS or value is None:
        room.take(1)
    if kind is int:
        if value.bit_length() > _MAX_INT_BITS:
            raise PayloadError(path, "an integer with more than 4,000 digits; send it as text")
        return value
    if kind is bool or value is None:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise PayloadError(path, f"{value} has no JSON form; send null or text instead")
        return value
    if isinstance(value, Mapping):
        _check_depth(path, depth)
        room.take(2)
        return _fields(value, path, depth, room)
    if isinstance(value, (list, tuple)):
        _check_depth(path, depth)
        room.take(2)
        return [_plain(item, f"{path}[{n}]", depth + 1, room) for n, item in enumerate(value)]
    if wrappings >= _MAX_WRAPPINGS:
        raise PayloadError(
            path, f"{kind.__qualname__} cannot be converted to plain data; convert it first"
        )
    return _plain(_unwrap(value, path), path, depth, room, wrappings + 1)


def _fields(value: Mapping[Any, Any], path: str, depth: int, room: _Room) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for given, item in value.items():
        name = _field_name(given, path)
        if name in found:  # a multidict, or names with the same text that compare as different
            raise PayloadError(
                path, f"the field {name!r} occurs twice and JSON readers keep one; use a list"
            )
        room.take(len(name) + 3)
        found[name] = _plain(item, f"{path}.{name}", depth + 1, room)
    return found


def _check_depth(path: str, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise PayloadError(
            path,
            f"nested deeper than {MAX_DEPTH} levels; send a flatter payload, or bytes",
            limit=MAX_DEPTH,
        )


def _field_name(name: Any, path: str) -> str:
    if not isinstance(name, str):
        said = shown(name)
        raise PayloadError(
            path, f"the field name {said} is {type(name).__name__}, not text; use str({said})"
        )
    _check_text(name, path)
    return str.__str__(name)


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PayloadError(
            path, f"contains a lone surrogate at position {error.start} and is not valid Unicode"
        ) from error


def _unwrap(value: Any, path: str) -> Any:
    """Convert a rich type one step towards plain data."""
    if isinstance(value, type):
        raise PayloadError(path, f"is the class {value.__qualname__}; pass an instance")
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):  # pydantic
        return _dumped(value, path)
    if hasattr(value, "__struct_fields__"):  # msgspec
        return _struct(value)
    if hasattr(value, "get_secret_value"):  # pydantic's SecretStr and SecretBytes
        raise PayloadError(path, _HIDDEN)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise PayloadError(path, "is a datetime without a time zone; use datetime.now(UTC)")
        return value.isoformat()
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, Decimal) and not value.is_finite():
        raise PayloadError(path, f"{value} is not a number; send null or text instead")
    if isinstance(value, (UUID, Decimal)):
        return str(value)
    # Subclasses. `str.__str__`: a subclass may override __str__.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (int, float)):
        # A subclass may override the conversion.
        return int.__int__(value) if isinstance(value, int) else float.__float__(value)
    raise PayloadError(
        path,
        f"{type(value).__qualname__} has no JSON form; convert it first, or pass the whole payload "
        "as bytes",
    )


def _struct(value: Any) -> Any:
    """Return the fields of a msgspec struct as msgspec would encode them: renamed, tagged."""
    config = getattr(value, "__struct_config__", None)
    written = getattr(value, "__struct_encode_fields__", value.__struct_fields__)
    items = [getattr(value, field) for field in value.__struct_fields__]
    tag = getattr(config, "tag", None)
    if getattr(config, "array_like", False):
        return items if tag is None else [tag, *items]
    fields = {
        name: item
        for name, item in zip(written, items, strict=True)
        if type(item).__name__ != "UnsetType"
    }
    return fields if tag is None else {config.tag_field: tag, **fields}  # type: ignore[union-attr]


def _dumped(value: Any, path: str) -> Any:
    """Return a pydantic model's JSON form; raises for values that the form would hide."""
    try:
        dumped, inside = value.model_dump(mode="json"), value.model_dump(mode="python")
    except Exception as error:
        problem = f"{type(value).__qualname__}.model_dump failed: {error}"
        raise PayloadError(path, problem) from error
    _refuse_hidden(dumped, inside, path, 0)
    return dumped


def _refuse_hidden(dumped: Any, inside: Any, path: str, depth: int) -> None:
    """Raise for a NaN that became text, and for a secret that became asterisks."""
    if isinstance(inside, Decimal) and not inside.is_finite() and isinstance(dumped, str):
        raise PayloadError(path, f"{inside} is not a number; send null or text instead")
    if hasattr(inside, "get_secret_value") and not str(dumped).strip("*"):
        raise PayloadError(path, _HIDDEN)
    if depth >= MAX_DEPTH:
        return  # the walk that follows raises
    if isinstance(inside, Mapping) and isinstance(dumped, Mapping):
        if len(inside) == len(dumped):
            for name, left, right in zip(dumped, dumped.values(), inside.values(), strict=True):
                _refuse_hidden(left, right, f"{path}.{name}", depth + 1)
    elif isinstance(dumped, list) and isinstance(inside, (list, tuple, set, frozenset)):
        for n, (left, right) in enumerate(zip(dumped, inside, strict=False)):
            _refuse_hidden(left, right, f"{path}[{n}]", depth + 1)
