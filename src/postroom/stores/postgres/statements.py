"""The SQL of this store: queries with numbered parameters, and the steps of its schema."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache

from postroom.stores import sql_files
from postroom.stores.sql_files import Migration
from postroom.transactions.queries import Query, compile_query


@cache
def load_queries(tables: str) -> Mapping[str, Query]:
    """Return every statement by name; `tables` is the prefix of the tables' names."""
    found = sql_files.load_queries(__package__, tables)
    return {name: compile_query(sql, "numeric") for name, sql in found.items()}


def load_migrations(prefix: str) -> tuple[Migration, ...]:
    """Return the steps of the schema in order; their names are resolved by the search_path."""
    return sql_files.load_migrations(__package__, prefix)


# -- arrays -----------------------------------------------------------------------------------
# As text: the driver would process every element in Python, and these are long.
def numbers(values: Iterable[int | None]) -> str:
    """Return an array of integers in PostgreSQL's syntax."""
    return "{" + str(list(values))[1:-1].replace("None", "NULL") + "}"


def texts(values: Iterable[str]) -> str:
    """Return an array of texts in PostgreSQL's syntax."""
    found = list(values)
    joined = "".join(found)
    if '"' in joined or "\\" in joined:
        found = [value.replace("\\", "\\\\").replace('"', '\\"') for value in found]
    return '{"' + '","'.join(found) + '"}' if found else "{}"


def receipt_texts(values: Sequence[str | None]) -> str:
    """Return an array of receipts, which are printable ASCII, in PostgreSQL's syntax."""
    if None in values:
        escaped = (value and value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
        return "{" + ",".join(f'"{value}"' if value else "NULL" for value in escaped) + "}"
    joined = "\n".join(values).replace("\\", "\\\\").replace('"', '\\"')  # type: ignore[arg-type]
    return '{"' + joined.replace("\n", '","') + '"}' if values else "{}"


def hashes(values: Collection[bytes]) -> str | None:
    """Return an array of bytes in PostgreSQL's syntax; None if there are none."""
    if not values:
        return None
    return '{"\\\\x' + '","\\\\x'.join(value.hex() for value in values) + '"}'
