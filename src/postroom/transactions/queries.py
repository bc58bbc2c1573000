"""The statements of the write side, read from `queries/<dialect>/`, one file per method.

In the files parameters have names, as in `:id`. Drivers get values by position, in their own
parameter style; a query knows the names of its values, in order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from postroom.errors import ConfigError

DEFAULT_PREFIX = "postroom_"
_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,30}")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")

Style = Literal["qmark", "format", "numeric"]  # ?, %s, $1


class Query(NamedTuple):
    """A statement in a driver's parameter style, and the names of its values, in order."""

    sql: str
    names: tuple[str, ...]

    def picker(self, fields: Sequence[str]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
        """Return a function that takes this query's values out of a tuple with these fields."""
        places = [fields.index(name) for name in self.names]
        if len(places) == 1:
            return lambda source: (source[places[0]],)
        return itemgetter(*places)


def check_prefix(prefix: str) -> str:
    """Return the table prefix; refuse anything but a plain lower-case identifier."""
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise ConfigError(
            f"prefix {prefix!r}: use up to 31 lower-case letters, digits and underscores, "
            "not beginning with a digit"
        )
    return prefix


def qualify(prefix: str, schema: str | None) -> str:
    """Return the prefix qualified by the schema; refuse anything but plain identifiers."""
    check_prefix(prefix)
    if schema is None:
        return prefix
    if not isinstance(schema, str) or not _SCHEMA.fullmatch(schema):
        raise ConfigError(
            f"schema {schema!r}: use up to 63 lower-case letters, digits and underscores, "
            "not beginning with a digit"
        )
    return f"{schema}.{prefix}"


@cache
def load(dialect: str, style: Style, prefix: str) -> Mapping[str, Query]:
    """Return a dialect's statements by name, for tables with this prefix (`schema.prefix` too)."""
    schema, _, rest = prefix.rpartition(".")
    qualify(rest, schema or None)
    quote = "`" if dialect == "mysql" else '"'
    shown = f"{quote}{schema}{quote}.{rest}" if schema else rest
    folder = files("postroom.transactions") / "queries" / dialect
    return {
        file.name.removesuffix(".sql"): compile_query(_read(file, shown), style)
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    }


def compile_query(sql: str, style: Style) -> Query:
    """Turn the named parameters of a statement into a driver's parameter style."""
    names: list[str] = []

    def mark(match: re.Match[str]) -> str:
        name = match[1]
        if style != "numeric":
            names.append(name)
            return "?" if style == "qmark" else "%s"
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    if style == "format":
        sql = sql.replace("%", "%%")
    return Query(_PARAMETER.sub(mark, sql), tuple(names))


def _read(file: Any, prefix: str) -> str:
    lines = file.read_text(encoding="utf-8").splitlines()
    kept = [line.strip() for line in lines if not line.lstrip().startswith("--")]
    return " ".join(kept).strip().replace(DEFAULT_PREFIX, prefix)
