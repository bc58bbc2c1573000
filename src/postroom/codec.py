"""The one strict encoder: payloads become bytes at `add`, in the caller's process.

What it lets through, every consumer can read: UTF-8, no NaN, text keys, bounded size and depth.
What it refuses, it refuses with the path inside the payload, before anything is written.
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

from postroom.errors import PayloadError

MAX_PAYLOAD_BYTES = 900_000
MAX_DEPTH = 64
_MAX_INT_BITS = 13_287  # below Python's own limit of 4,300 digits, on both sides of the wire
_MAX_WRAPPINGS = 16  # an object may dump itself as an object, but not for ever

JSON = "application/json"
BINARY = "application/octet-stream"

_LEAVES = frozenset({str, bool, float, type(None)})
_LARGE = 2**63

_to_text = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
).encode


def encode(payload: Any) -> tuple[bytes, str]:
    """Return the payload as bytes, and its content type.

    bytes, bytearray and memoryview pass through unchanged. Everything else becomes compact JSON.
    Raises PayloadError for what JSON cannot say or what is larger than MAX_PAYLOAD_BYTES.
    """
    if isinstance(payload, (bytes, bytearray, memoryview)):
        body, content_type = bytes(payload), BINARY
    else:
        body, content_type = encode_json(payload), JSON
    if len(body) > MAX_PAYLOAD_BYTES:
        raise PayloadError(
            "$",
            f"{len(body):,} bytes are more than {MAX_PAYLOAD_BYTES:,}. Store the large part "
            "elsewhere and send a reference to it",
            limit=MAX_PAYLOAD_BYTES,
        )
    return body, content_type


def encode_json(value: Any) -> bytes:
    """Encode a value as strict, compact UTF-8 JSON."""
    if _is_plain(value, 0):
        with suppress(ValueError):  # NaN, a lone surrogate: the slow way says where
            return _to_text(value).encode()
    plain = _plain(value, "$", 0)
    try:
        return _to_text(plain).encode()
    except ValueError as error:  # what is left: a lower limit of digits set by the user
        raise PayloadError("$", f"cannot be written as JSON: {error}") from error


def decode_json(body: bytes | str) -> Any:
    """Read JSON back, for handlers and people; the relay itself never decodes a payload."""
    return json.loads(body)


def _is_plain(value: Any, depth: int) -> bool:
    """Say whether a value is made of plain types only, as nearly all are."""
    kind = type(value)
    if kind in _LEAVES:
        return True
    if kind is int:
        return -_LARGE < value < _LARGE  # type: ignore[no-any-return]
    if depth >= MAX_DEPTH:
        return False
    if kind is dict:
        for name, item in value.items():
            if type(name) is not str or (
                type(item) not in _LEAVES and not _is_plain(item, depth + 1)
            ):
                return False
        return True
    if kind is list or kind is tuple:
        for item in value:
            if type(item) not in _LEAVES and not _is_plain(item, depth + 1):
                return False
        return True
    return False


def _plain(value: Any, path: str, depth: int, wrappings: int = 0) -> Any:
    """Check a value and turn it into what the JSON encoder knows, naming the path on failure."""
    kind = type(value)
    if kind is str:
        if not value.isascii():
            _check_text(value, path)
        return value
    if kind is int:
        if value.bit_length() > _MAX_INT_BITS:
            raise PayloadError(path, "a whole number of more than 4,000 digits; send it as text")
        return value
    if kind is bool or value is None:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise PayloadError(path, f"{value} has no JSON form; send null or text instead")
        return value
    if isinstance(value, Mapping):
        _check_depth(path, depth)
        return {
            _field_name(name, path): _plain(item, f"{path}.{name}", depth + 1)
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        _check_depth(path, depth)
        return [_plain(item, f"{path}[{n}]", depth + 1) for n, item in enumerate(value)]
    if wrappings >= _MAX_WRAPPINGS:
        raise PayloadError(path, f"{kind.__qualname__} never becomes plain data; convert it first")
    return _plain(_unwrap(value, path), path, depth, wrappings + 1)


def _check_depth(path: str, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise PayloadError(
            path,
            f"nested deeper than {MAX_DEPTH} levels; send a flatter payload, or bytes",
            limit=MAX_DEPTH,
        )


def _field_name(name: Any, path: str) -> str:
    if not isinstance(name, str):
        raise PayloadError(
            path, f"the field name {name!r} is {type(name).__name__}, not text; use str({name!r})"
        )
    _check_text(name, path)
    return str.__str__(name)


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PayloadError(
            path, f"the text holds a lone surrogate at position {error.start}; it is no Unicode"
        ) from error


def _unwrap(value: Any, path: str) -> Any:
    """One step from a rich type towards plain data."""
    if isinstance(value, type):
        raise PayloadError(path, f"the class {value.__qualname__} itself, not an object of it")
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):  # pydantic
        try:
            return value.model_dump(mode="json")
        except Exception as error:
            problem = f"{type(value).__qualname__}.model_dump failed: {error}"
            raise PayloadError(path, problem) from error
    if hasattr(value, "__struct_fields__"):  # msgspec
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise PayloadError(path, "a time without a zone; use datetime.now(UTC)")
        return value.isoformat()
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, Decimal) and not value.is_finite():
        raise PayloadError(path, f"{value} is no number; send null or text instead")
    if isinstance(value, (UUID, Decimal)):
        return str(value)
    # Subclasses. `str.__str__`: one may print itself otherwise than it compares.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, int) else float(value)
    raise PayloadError(
        path,
        f"{type(value).__qualname__} cannot be turned into JSON; convert it first, "
        "or pass the whole payload as bytes",
    )
