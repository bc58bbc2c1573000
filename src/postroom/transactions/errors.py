"""Translates drivers' errors, also when SQLAlchemy or Django wraps them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from postroom.errors import PostroomError, SchemaError, TransactionError

FAILED = (
    "a statement in this block has failed, and PostgreSQL rolls back the whole block. Let the "
    "error propagate, or run the statement in its own `with conn.transaction():`"
)
OPEN_ALREADY = (
    "a transaction is already open on this connection. Add to it with outbox.add(conn, …), commit "
    "it where it was begun, and call outbox.kick() after that"
)
_MISSING_TABLE = {"42P01", 1146}
_FORBIDDEN = {"42501", 1142, 1143}
_DUPLICATE_ENTRY = 1062


def code_of(error: BaseException) -> str | int | None:
    """Return the number of a MySQL error, or PostgreSQL's SQLSTATE; SQLite has neither."""
    for one in _layers(error):
        if one.args and type(one.args[0]) is int:
            return one.args[0]
        state = getattr(one, "sqlstate", None)
        if isinstance(state, str):
            return state
    return None


def is_duplicate(error: BaseException, key: str) -> bool:
    """Return whether MySQL refused a row because of this unique key, and no other."""
    return code_of(error) == _DUPLICATE_ENTRY and f"{key}'" in str(error)


def explain(error: BaseException, prefix: str, need: str) -> PostroomError | None:
    """Return a better error, where postroom knows the remedy."""
    said, code = str(error), code_of(error)
    table = prefix.rpartition(".")[2]
    if table not in said and code not in _FORBIDDEN:
        return None
    if code in _MISSING_TABLE or f"no such table: {table}" in said:
        return SchemaError(
            f"the tables {prefix}… do not exist in this connection's search path. Create them with "
            "`postroom migrate up` or `await migrate(url)`, in the same database as the business "
            "data, and give the outbox and the inbox the same prefix and schema"
        )
    if code in _FORBIDDEN:
        return TransactionError(
            f"this database user lacks privileges: GRANT {need}. The server reported: {said}"
        )
    return None


def _layers(error: BaseException) -> Iterator[Any]:
    """Yield the error and those it wraps: SQLAlchemy's `orig`, and the causes of both."""
    seen: set[int] = set()
    stack: list[Any] = [error]
    while stack:
        one = stack.pop()
        if isinstance(one, BaseException) and id(one) not in seen:
            seen.add(id(one))
            yield one
            stack += [one.__cause__, getattr(one, "orig", None)]
