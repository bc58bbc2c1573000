"""The schema's steps as SQL for other tools: `postroom migrate sql`, Alembic. Needs no driver.

The same input gives the same text, so that it can be kept under version control: the outbox's id is
made by the database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from postroom.errors import ConfigError
from postroom.stores.sql_files import Migration, load_migrations

_TOKEN = re.compile(
    r"--[^\n]*|'(?:[^']|'')*'|\"[^\"]*\"|`[^`]*`|\$(\w*)\$.*?\$\1\$|;|[^;'\"`$-]+|.", re.DOTALL
)
_CREATED = re.compile(
    r"^CREATE (?:OR REPLACE )?(?:SQL SECURITY INVOKER )?(TABLE|VIEW|FUNCTION) (?:IF NOT EXISTS )?"
    r"(\w+)",
    re.MULTILINE,
)
_BYTES = "lower(hex(randomblob({})))"


class Dialect(NamedTuple):
    """A kind of SQL: the folder of its steps, and an expression for a new UUID."""

    folder: str
    new_id: str


DIALECTS = {
    "postgres": Dialect("postgres", "gen_random_uuid()::text"),
    "mysql": Dialect("mysql", "UUID()"),
    "sqlite": Dialect(
        "sqlite",
        " || ".join(
            [
                _BYTES.format(4), "'-'", _BYTES.format(2), "'-4'",
                f"substr({_BYTES.format(2)}, 2)", "'-'", "substr('89ab', 1 + (random() & 3), 1)",
                f"substr({_BYTES.format(2)}, 2)", "'-'", _BYTES.format(6),
            ]
        ),
    ),
}  # fmt: skip


class Place(NamedTuple):
    """Where the tables are: the kind of database, their prefix, and on PostgreSQL their schema."""

    dialect: str
    prefix: str
    schema: str | None = None


def script(place: Place, after: int, *, transaction: bool = True) -> str:
    """Return the SQL of the steps after a version, to be run by hand; empty if there are none.

    transaction   wrap it in a transaction; MySQL has none for its DDL, so nothing is added there
    """
    steps = _steps(place, after)
    if not steps:
        return ""
    text = "\n".join(
        [
            *(f"-- {step.name}\n{step.script}" for step in steps),
            *(f"{statement};" for statement in _marks(place, steps[-1].version)),
        ]
    )
    before, behind = _around(place, local=transaction)
    inner = [*(f"{line};" for line in before), text, *(f"{line};" for line in behind)]
    if transaction and place.dialect != "mysql":
        first = ["PRAGMA journal_mode = WAL;"] if place.dialect == "sqlite" else []
        inner = [*first, "BEGIN;", *inner, "COMMIT;"]
    return "".join(f"{part}\n" for part in inner)


def upgrade_statements(place: Place, after: int, to: int) -> list[str]:
    """Return the statements of the steps after one version up to another, for a transaction."""
    steps = [step for step in _steps(place, after) if step.version <= to]
    if not steps:
        return []
    before, behind = _around(place, local=False)
    inner = [statement for step in steps for statement in cut(step.script)]
    return [*before, *inner, *_marks(place, steps[-1].version), *behind]


def drop_statements(place: Place) -> list[str]:
    """Return the statements that remove everything the steps have created."""
    created = list(dict.fromkeys(_created(place)))
    before, behind = _around(place, local=False, create=False)
    order = ("VIEW", "FUNCTION", "TABLE")
    drops = [
        f"DROP {kind} IF EXISTS {name}"
        for wanted in order
        for kind, name in reversed(created)
        if kind == wanted
    ]
    return [*before, *drops, *behind]


def table_names(prefix: str) -> frozenset[str]:
    """Return the names of all tables and views that postroom has in any kind of SQL database."""
    return frozenset(
        name
        for dialect in DIALECTS
        for kind, name in _created(Place(dialect, prefix))
        if kind != "FUNCTION"
    )


def newest(dialect: str) -> int:
    """Return the version that this code expects."""
    return load_migrations(DIALECTS[dialect].folder, "x_")[-1].version


def cut(text: str) -> list[str]:
    """Split a script at its semicolons, except in texts, comments and bodies of functions."""
    found, statement = [], ""
    for token in _TOKEN.finditer(text):
        if token[0] == ";":
            found.append(statement)
            statement = ""
        elif not token[0].startswith("--"):
            statement += token[0]
    return [one.strip() for one in [*found, statement] if one.strip()]


# -- parts ------------------------------------------------------------------------------------
def _steps(place: Place, after: int) -> list[Migration]:
    found = load_migrations(DIALECTS[place.dialect].folder, place.prefix)
    return [step for step in found if step.version > after]


def _created(place: Place) -> Iterator[tuple[str, str]]:
    for step in _steps(place, 0):
        yield from _CREATED.findall(step.script)


def _marks(place: Place, version: int) -> list[str]:
    """Return the statements that write the version, and the outbox's id if there is none."""
    meta = f"{place.prefix}meta"
    known = f"SELECT 1 FROM {meta} WHERE name = 'outbox_id'"
    return [
        f"DELETE FROM {meta} WHERE name = 'schema_version'",
        f"INSERT INTO {meta} (name, value) VALUES ('schema_version', '{version}')",
        (
            f"INSERT INTO {meta} (name, value) "
            f"SELECT 'outbox_id', {DIALECTS[place.dialect].new_id} FROM (SELECT 1) AS once "
            f"WHERE NOT EXISTS ({known})"
        ),
    ]


def _around(place: Place, *, local: bool, create: bool = True) -> tuple[list[str], list[str]]:
    """Return what goes before and behind: on PostgreSQL, names are resolved in one schema.

    Functions remember the search_path of their creation. Inside of a foreign transaction it is set
    back, so that statements behind find their own tables.
    """
    if place.dialect != "postgres":
        if place.schema is not None:
            raise ConfigError("only PostgreSQL has schemas; on other databases use a prefix")
        return [], []
    before, wanted = [], "quote_ident(current_schema())"
    if place.schema is not None:
        wanted = f"quote_ident('{place.schema}')"
        missing = f"to_regnamespace('{place.schema}') IS NULL"
        make = f'CREATE SCHEMA "{place.schema}"'
        before = [f"DO $body$ BEGIN IF {missing} THEN {make}; END IF; END $body$"] * create
    scope = str(local).lower()
    use = f"SELECT set_config('search_path', {wanted} || ', pg_temp', {scope})"
    if local:
        return [*before, use], []
    keep = "SELECT set_config('postroom.search_path', current_setting('search_path'), false)"
    back = "SELECT set_config('search_path', current_setting('postroom.search_path'), false)"
    return [*before, keep, use], [back]
