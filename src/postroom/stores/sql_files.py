"""SQL in files: one statement a file in `queries/`, numbered steps in `migrations/`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from postroom.transactions.queries import DEFAULT_PREFIX


class Migration(NamedTuple):
    """One numbered step of the schema; its file is named `0001_what_it_does.sql`."""

    version: int
    name: str
    script: str


@cache
def load_queries(package: str, prefix: str) -> Mapping[str, str]:
    """Return every statement of a store by name, with this table prefix."""
    return dict(_read_folder(package, "queries", prefix))


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
