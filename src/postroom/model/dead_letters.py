"""Grouping of dead letters by cause: type and error, ignoring ids and numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import md5
from typing import NamedTuple

MAX_PATTERN_CHARS = 200
_LOOKED_AT_CHARS = 1_000  # of an error: the rest does not distinguish causes
DIGITS = 8

_PARTS = (
    # The order matters: longer patterns first.
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (
        re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"),
        "<time>",
    ),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "<address>"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "<n>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{12,}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\d+(?:[.,]\d+)*"), "<n>"),
    (re.compile(r"\s+"), " "),
)


class DeadCause(NamedTuple):
    """Dead letters of one type with one error, with the times of the first and the last."""

    type: str
    error: str
    how_many: int
    first_us: int
    last_us: int


class Group(NamedTuple):
    """Dead letters with the same cause. `example` is the unchanged error of one of them."""

    id: str
    type: str
    pattern: str
    example: str
    how_many: int
    first_us: int
    last_us: int


def pattern(error: str | None) -> str:
    """Return an error with ids, times and numbers replaced by placeholders."""
    text = (error or "")[:_LOOKED_AT_CHARS]
    for part, stand_in in _PARTS:
        text = part.sub(stand_in, text)
    text = text.strip()
    return text if len(text) <= MAX_PATTERN_CHARS else text[: MAX_PATTERN_CHARS - 1] + "…"


def fingerprint(event_type: str, error: str | None) -> str:
    """Return a short id of a cause, the same in every process and release."""
    text = f"{event_type}\x00{pattern(error)}"
    return md5(text.encode(errors="replace"), usedforsecurity=False).hexdigest()[:DIGITS]


def group(dead_causes: Iterable[DeadCause]) -> list[Group]:
    """Merge causes with the same fingerprint, most frequent first."""
    found: dict[str, Group] = {}
    for cause in dead_causes:
        name = fingerprint(cause.type, cause.error)
        new = Group(
            name, cause.type, pattern(cause.error), cause.error, cause.how_many,
            cause.first_us, cause.last_us,
        )  # fmt: skip
        old = found.get(name)
        found[name] = new if old is None else _joined(old, new)
    return sorted(found.values(), key=lambda g: (-g.how_many, g.id))


def _joined(old: Group, new: Group) -> Group:
    latest = new if new.last_us > old.last_us else old
    return latest._replace(
        how_many=old.how_many + new.how_many,
        first_us=min(old.first_us, new.first_us),
        last_us=max(old.last_us, new.last_us),
    )
