"""Translates the server's errors to those of the port (1213 and similar)."""

from __future__ import annotations

from asyncmy import errors

from postroom.errors import (
    PostroomError,
    SchemaError,
    StoreError,
    StoreLockedError,
    StoreRefusedError,
    StoreRetryableError,
)

_DRIVERS = ("asyncmy", "pymysql")
_CONFLICTS = {
    1020: "another transaction changed the row",
    1205: "another transaction holds a required lock",
    1213: "a deadlock",
    1317: "the statement was interrupted",
    1969: "a statement timed out",  # MariaDB
    3024: "a statement timed out",  # MySQL
    3572: "a row is locked",
}
"""Nothing was changed once the transaction is rolled back, and the same call may be repeated."""

_LOCKED = {1205, 1213, 3572}
_REFUSED = {
    1048,  # NULL in a NOT NULL column
    1062,  # duplicate key
    1153,  # statement too long: a part of it may be short enough
    1264,  # out of range
    1265,
    1292,
    1365,
    1366,
    1406,  # too long
    1411,
    1441,  # an instant out of range
    1451,
    1452,
    1644,  # a trigger that signals
    1690,  # out of range, in an expression
    3140,
    3819,  # a CHECK, on MySQL
    4025,  # a CHECK, on MariaDB
    4038,
}
"""The values are refused, and would be again."""

_LOST = {
    0,  # asyncmy: no longer connected
    1053,  # the server shuts down
    1077,
    1152,
    1159,
    1161,
    1927,  # KILL on MariaDB
    2006,
    2013,
    2014,
    2055,
    3169,  # KILL on MySQL 8
    4031,  # MySQL 8: idle too long
}
_DENIED = {1044, 1045, 1142, 1143, 1227, 1370, 1698, 3159}
_READ_ONLY = {1290, 1792, 1836, 3100}
_FULL = {1021, 1030, 1114}
_NO_TABLE = 1146
_NO_DATABASE = 1049
_TOO_BIG = 1153
_BINLOG = 1665

GRANT = "GRANT SELECT, INSERT, UPDATE, DELETE ON `{database}`.* TO {user}"


def code_of(error: BaseException) -> int | None:
    """Return the server's code of an error of asyncmy or PyMySQL, if it has one."""
    if type(error).__module__.partition(".")[0] not in _DRIVERS or not error.args:
        return None
    return error.args[0] if isinstance(error.args[0], int) else None


def is_lost(error: BaseException) -> bool:
    """Return whether the connection was lost with this error: it can no longer be used."""
    if isinstance(error, (OSError, EOFError, TimeoutError)):
        return True
    code = code_of(error)
    return code in _LOST or (code is None and isinstance(error, errors.MySQLError))


def is_conflict(error: BaseException) -> bool:
    """Return whether the same work may be repeated, once it was rolled back."""
    return code_of(error) in _CONFLICTS


def translate(error: BaseException, database: str) -> PostroomError:
    """Return the error of the port for one that changed nothing."""
    code = code_of(error)
    said = str(error.args[-1]) if error.args else type(error).__name__
    if code in _CONFLICTS:
        kind = StoreLockedError if code in _LOCKED else StoreRetryableError
        return kind(f"{_CONFLICTS[code]}: {said}")
    if code == _NO_TABLE:
        return SchemaError(f"{said}; create the tables with: postroom migrate up")
    if code == _NO_DATABASE:
        return SchemaError(f"{said}; create it with: CREATE DATABASE `{database}`")
    if code in _DENIED:
        grant = GRANT.format(database=database, user="…")
        return StoreError(
            f"{said}. Check user and password; a relay needs: {grant}; to create the tables also "
            "CREATE, ALTER, INDEX, DROP, REFERENCES and CREATE VIEW"
        )
    if code in _READ_ONLY:
        return StoreError(f"{said}. Is this a replica? Connect to the primary server")
    if code in _FULL:
        return StoreError(f"{said}. The server's disk is full; no event is lost. Free some space")
    if code == _TOO_BIG:
        return StoreRefusedError(f"{said}. Raise max_allowed_packet on the server")
    if code in _REFUSED:
        return StoreRefusedError(f"MySQL: {said} ({code})")
    if code == _BINLOG:
        return StoreError(f"{said}. Set binlog_format to ROW: the relay uses READ COMMITTED")
    if is_lost(error):
        return StoreError(f"the connection to the database was lost: {said}")
    return StoreError(f"MySQL: {said} ({code})" if code else f"MySQL: {said}")
