"""The SQL of this store, with its parameters in the driver's style."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from postroom.stores import sql_files

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)


class Migration(NamedTuple):
    """One numbered step of the schema; each of its statements can be repeated."""

    version: int
    statements: tuple[str, ...]


@cache
def load_queries(prefix: str) -> Mapping[str, str]:
    """Return every statement by name, with this table prefix."""
    found = {n: _bare(text) for n, text in sql_files.load_queries(__package__, prefix).items()}
    columns = found.pop("columns")
    return {
        name: _PARAMETER.sub(r"%(\1)s", text.replace("{columns}", columns))
        for name, text in found.items()
    }


@cache
def load_migrations(prefix: str) -> tuple[Migration, ...]:
    """Return the steps of the schema in order, split into statements."""
    return tuple(
        Migration(step.version, tuple(cut(step.script)))
        for step in sql_files.load_migrations(__package__, prefix)
    )


def cut(script: str) -> list[str]:
    """Split a script at its semicolons; texts in it must not contain one."""
    return [part.strip() for part in _bare(script).split(";") if part.strip()]


def _bare(text: str) -> str:
    return _COMMENT.sub("", text).strip()
