"""Texts of rows: the driver returns them as bytes, which may be no text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postroom.model.unreadable_rows import TYPES, decode

_TEXTS = tuple(
    place for place, (name, kinds) in enumerate(TYPES.items()) if str in kinds and name != "state"
)


def decoded(row: Sequence[Any]) -> list[Any]:
    """Return a row of `columns.sql` with its texts decoded."""
    fields = list(row)
    for place in _TEXTS:
        stored = fields[place]
        if stored is not None:
            fields[place] = decode(stored)
    return fields
