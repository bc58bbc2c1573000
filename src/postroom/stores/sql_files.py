"""SQL in files: one statement a file in `queries/`, numbered steps in `migrations/`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from postroom.search import INDEX_OF
from postroom.transactions.queries import DEFAULT_PREFIX

NEWEST = "_newest"
"""The end of the names of statements that begin with the newest event."""


class Migration(NamedTuple):
    """One numbered step of the schema; its file is named `0001_what_it_does.sql`."""

    version: int
    name: str
    script: str


@cache
def load_queries(package: str, prefix: str) -> Mapping[str, str]:
    """Return every statement of a store by name, with this table prefix.

    A statement with `{column}` in it exists once for each column that `postroom.search` knows:
    `find_by` becomes `find_by_key`, `find_by_correlation_id`, …. One with `{order}` in it exists in
    both directions: `find` and `find_newest`.
    """
    found: dict[str, str] = {}
    for name, text in _read_folder(package, "queries", prefix):
        if "{column}" not in text:
            found |= _directions(name, text)
            continue
        for column, index in INDEX_OF.items():
            filled = text.replace("{column}", column).replace("{index}", index)
            found |= _directions(f"{name}_{column}", filled)
    return found


def _directions(name: str, text: str) -> dict[str, str]:
    if "{order}" not in text:
        return {name: text}
    return {
        name: text.replace("{order}", "ASC").replace("{farthest}", "max"),
        f"{name}{NEWEST}": text.replace("{order}", "DESC").replace("{farthest}", "min"),
    }


@cache
def load_migrations(package: str, prefix: str) -> tuple[Migration, ...]:
    """Return the steps of a store's schema in order."""
    return tuple(
        Migration(int(name[:4]), name, text)
        for name, text in _read_folder(package, "migrations", prefix)
    )


def _read_folder(package: str, folder: str, prefix: str) -> list[tuple[str, str]]:
    store = files("postroom.stores").joinpath(package.rpartition(".")[2])  # imports no driver
    found = [f for f in store.joinpath(folder).iterdir() if f.name.endswith(".sql")]
    return [
        (f.name.removesuffix(".sql"), f.read_text(encoding="utf-8").replace(DEFAULT_PREFIX, prefix))
        for f in sorted(found, key=lambda f: f.name)
    ]
