"""The statements of the write side, read from `queries/<dialect>/`, one file for each method."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from postroom.errors import ConfigError

DEFAULT_PREFIX = "postroom_"
_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,30}")


class Queries(NamedTuple):
    """What a dialect says for each method; parameters are named, as in `:id`."""

    insert: str
    count_up: str
    accept: str


def check_prefix(prefix: str) -> str:
    """Return the table prefix; refuse what is not a plain lower-case identifier."""
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise ConfigError(
            f"prefix {prefix!r}: up to 31 lower-case letters, digits and underscores, "
            "not beginning with a digit"
        )
    return prefix


@cache
def load(dialect: str, prefix: str) -> Queries:
    """Return a dialect's statements for tables with this prefix."""
    check_prefix(prefix)
    folder = files("postroom.transactions") / "queries" / dialect
    return Queries(*(_read(folder / f"{name}.sql", prefix) for name in Queries._fields))


def _read(file: object, prefix: str) -> str:
    text: str = file.read_text(encoding="utf-8")  # type: ignore[attr-defined]
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(lines).strip().replace(DEFAULT_PREFIX, prefix)
