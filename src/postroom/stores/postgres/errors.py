"""Translates PostgreSQL's errors to those of the port: retryable, unknown, or refused."""

from __future__ import annotations

import psycopg
from psycopg import errors
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from postroom.errors import (
    PostroomError,
    SchemaError,
    StoreError,
    StoreLockedError,
    StoreRefusedError,
    StoreRetryableError,
    StoreUnknownError,
)

_MISSING = (
    errors.UndefinedTable,
    errors.UndefinedColumn,
    errors.UndefinedFunction,
    errors.InvalidSchemaName,
)
_AGAIN = ("40", "53", "57014", "55P03", "55006", "25006", "57P03", "57P04")
"""Transient states: a conflict, insufficient resources, a time limit, a server that is not yet or
no longer the primary.
"""
_LOCKED = ("40P01", "55P03")
_REFUSED = ("22", "23", "44", "54", "P0")
"""Values out of range, violated constraints, program limits, a trigger that raises."""
_RIGHTS = {
    "meta": "SELECT",
    "counter": "SELECT, INSERT, UPDATE",
    "inbox": "SELECT, INSERT, UPDATE",
    "audit": "SELECT, INSERT",  # a role that can change or delete its rows can hide audit entries
}
_ALL_RIGHTS = "SELECT, INSERT, UPDATE, DELETE"


def translate(error: BaseException, *, broken: bool = False, undone: bool = False) -> PostroomError:
    """Return the error of the port.

    broken      the connection is gone: the outcome of the statement is unknown
    undone      … but it was in a transaction whose COMMIT was not sent
    """
    match error:
        case PostroomError():
            return error
        case PoolTimeout() | TooManyRequests():
            return StoreRetryableError(f"no connection to PostgreSQL: {error}")
        case PoolClosed():
            return StoreError("the store is closed")
        case psycopg.Error():
            return _translate(error, broken=broken, undone=undone)
        case _:
            return StoreUnknownError(f"PostgreSQL: {type(error).__name__}: {error}")


def _translate(error: psycopg.Error, *, broken: bool, undone: bool) -> PostroomError:
    said = first_line(error)
    state = error.sqlstate or ""
    if isinstance(error, _MISSING):
        return SchemaError(f"{said}. Do the tables exist? Create them with: postroom migrate")
    if isinstance(error, errors.InsufficientPrivilege):
        return StoreError(f"{said}. {needed_grant(error)}")
    if broken:
        kind = StoreRetryableError if undone else StoreUnknownError
        return kind(f"the connection to PostgreSQL was lost: {said}")
    # An ERROR on a connection that stays open: the server has rolled back.
    if state in _LOCKED:
        return StoreLockedError(f"PostgreSQL: {said}")
    if state.startswith(_REFUSED) or (not state and isinstance(error, psycopg.DataError)):
        return StoreRefusedError(f"PostgreSQL: {said}" + (f" ({state})" if state else ""))
    if state.startswith(_AGAIN):
        return StoreRetryableError(f"PostgreSQL: {said}")
    return StoreError(f"PostgreSQL: {said}" + (f" ({state})" if state else ""))


def is_fatal(error: psycopg.Error) -> bool:
    """Return whether the connection ended with this error, or because of it."""
    if error.sqlstate is None:  # of the driver; for an error about values, nothing was sent
        return not isinstance(error, psycopg.DataError)
    return error.diag.severity_nonlocalized in ("FATAL", "PANIC")


def could_not_connect(error: psycopg.Error) -> StoreError:
    """Return the error for an unreachable server: no request was sent."""
    return StoreRetryableError(f"cannot connect to PostgreSQL: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """Return the driver's message, without the context that follows."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def needed_grant(error: errors.InsufficientPrivilege) -> str:
    """Return the missing privilege, as far as the server names it."""
    said = first_line(error)
    name = said.rpartition(" ")[2].strip('"')
    if "for table" in said:
        rights = next((r for end, r in _RIGHTS.items() if name.endswith(end)), _ALL_RIGHTS)
        return f"A relay needs: GRANT {rights} ON {name} TO its role"
    if "for sequence" in said:
        return f"Run: GRANT SELECT ON SEQUENCE {name} TO the role"
    if "for function" in said:
        return f"Run: GRANT EXECUTE ON FUNCTION {name} TO the role"
    if "for schema" in said:
        return f"Run: GRANT USAGE ON SCHEMA {name} TO the role (CREATE too, to migrate)"
    return "Grant it to the role that postroom connects with"
