"""The SQL of this store, split into statements, since SQLite accepts one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from sqlite3 import complete_statement
from typing import NamedTuple

from postroom.stores import sql_files


class Migration(NamedTuple):
    """One numbered step of the schema."""

    version: int
    statements: tuple[str, ...]


def load_queries(prefix: str) -> Mapping[str, str]:
    """Return every statement by name, with this table prefix."""
    return sql_files.load_queries(__package__, prefix)


@cache
def load_migrations(prefix: str) -> tuple[Migration, ...]:
    """Return the steps of the schema in order."""
    return tuple(
        Migration(step.version, tuple(_cut(step.script)))
        for step in sql_files.load_migrations(__package__, prefix)
    )


def _cut(script: str) -> Iterator[str]:
    """Split a script; `executescript` would commit the transaction around it."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if complete_statement(statement):
            yield statement.strip()
            statement = ""
