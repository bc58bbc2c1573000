"""Errors of sqlite3, translated."""

from __future__ import annotations

import sqlite3

from postroom.errors import StoreError, StoreRefusedError, StoreRetryableError

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether SQLite only asks for a retry: nothing was changed."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _BUSY


def is_not_text(error: sqlite3.Error) -> bool:
    """Return whether a returned text is not UTF-8: SQLite stores any bytes."""
    return "Could not decode to UTF-8" in str(error)


def translate(error: sqlite3.Error) -> StoreError:
    """Return the error of the port for one that changed nothing."""
    if is_busy(error):
        return StoreRetryableError(f"the database is busy: {error}")
    if isinstance(error, (sqlite3.IntegrityError, sqlite3.DataError)):
        return StoreRefusedError(f"SQLite: {error}")
    return StoreError(f"SQLite: {error}")
