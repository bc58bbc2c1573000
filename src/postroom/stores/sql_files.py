"""SQL in files: one statement a file in `queries/`, numbered steps in `migrations/`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple
from uuid import uuid4

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


def script_after(package: str, prefix: str, version: int) -> str:
    """Return the SQL of the steps after a version, to be run by hand.

    The last lines write the new version, and the outbox' own id if there is none yet.
    """
    steps = [step for step in load_migrations(package, prefix) if step.version > version]
    if not steps:
        return ""
    meta = f"{prefix}meta"
    known = f"SELECT 1 FROM {meta} WHERE name = 'outbox_id'"
    identity = f"SELECT 'outbox_id', '{uuid4()}' FROM (SELECT 1) AS once WHERE NOT EXISTS ({known})"
    return "\n".join(
        [
            *(f"-- {step.name}\n{step.script}" for step in steps),
            f"DELETE FROM {meta} WHERE name = 'schema_version';",
            f"INSERT INTO {meta} (name, value) VALUES ('schema_version', '{steps[-1].version}');",
            f"INSERT INTO {meta} (name, value) {identity};",
        ]
    )


def _read_folder(package: str, folder: str, prefix: str) -> list[tuple[str, str]]:
    found = [f for f in files(package).joinpath(folder).iterdir() if f.name.endswith(".sql")]
    return [
        (f.name.removesuffix(".sql"), f.read_text(encoding="utf-8").replace(DEFAULT_PREFIX, prefix))
        for f in sorted(found, key=lambda f: f.name)
    ]
