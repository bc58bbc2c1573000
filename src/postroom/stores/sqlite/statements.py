"""The SQL of this store: one statement a file, with the table prefix put in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from sqlite3 import complete_statement
from typing import NamedTuple

from postroom.transactions.sql import DEFAULT_PREFIX


class Migration(NamedTuple):
    """One numbered step of the schema."""

    version: int
    statements: tuple[str, ...]


@cache
def load_queries(prefix: str) -> Mapping[str, str]:
    """Return every statement by its name, with the tables called by this prefix."""
    return {name.removesuffix(".sql"): text for name, text in _read_folder("queries", prefix)}


@cache
def load_migrations(prefix: str) -> tuple[Migration, ...]:
    """Return the steps of the schema in their order."""
    return tuple(
        Migration(int(name[:4]), tuple(_statements(text)))
        for name, text in _read_folder("migrations", prefix)
    )


def _read_folder(folder: str, prefix: str) -> list[tuple[str, str]]:
    found = [f for f in files(__package__).joinpath(folder).iterdir() if f.name.endswith(".sql")]
    return [
        (f.name, f.read_text(encoding="utf-8").replace(DEFAULT_PREFIX, prefix))
        for f in sorted(found, key=lambda f: f.name)
    ]


def _statements(script: str) -> Iterator[str]:
    """Cut a script; `executescript` would commit the transaction around it."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if complete_statement(statement):
            yield statement.strip()
            statement = ""
