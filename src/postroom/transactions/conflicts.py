"""Distinguishes conflicts and full databases from failures, for every driver.

After a conflict the database has rolled back the whole transaction, and nothing was wrong with it:
repeated from its beginning it may succeed (I2). Two deliveries of one message are the usual cause.
A full disk is not the event's fault either, but an operator has to free space.
"""

from __future__ import annotations

from collections.abc import Iterator

from postroom.errors import StoreError, StoreRefusedError, StoreRetryableError

_SQLSTATES = frozenset({"40001", "40P01"})  # serialization failure, deadlock
_MYSQL_NUMBERS = frozenset({1213, 1205, 1020})  # deadlock, lock wait timeout, record has changed
_SQLITE_BUSY = frozenset({5, 6})  # primary codes: busy, locked
_NO_ROOM_STATES = ("53", "25006")  # no disk, memory or connections; read only
_NO_ROOM_NUMBERS = frozenset({1021, 1114, 1290, 1836})  # disk full, table full, read only (two)
_SQLITE_NO_ROOM = frozenset({7, 8, 10, 13})  # primary codes: memory, read only, I/O error, full
_MONGO_NO_ROOM = 14031
_REFUSED_STATES = ("22", "23")  # data exceptions, violated constraints
# Out of range (four), too long, wrong text, null, constraints (five), a trigger that signals. The
# drivers call some of them operational errors.
_REFUSED_NUMBERS = frozenset(
    {1264, 1441, 1690, 1916, 1406, 1366, 1048, 1062, 1451, 1452, 3819, 4025, 1644}
)
_SQLITE_REFUSED = frozenset({18, 19, 20})  # primary codes: too big, constraint, mismatch
_MONGO_REFUSED = frozenset({2, 9, 14, 121, 11000, 17280, 10334})  # bad value, type, validation, …
_MYSQL_MODULES = ("pymysql", "MySQLdb", "asyncmy")
_TOO_MUCH_STATE = "54"  # PostgreSQL: a program limit exceeded
_TOO_MUCH_NUMBERS = frozenset({1118, 1153, 1267, 1292, 3988})  # row, packet, collation, value
# Names of the DB-API and of pymongo; errors of values are DataError, ProgrammingError and others.
_PASSING = frozenset({"OperationalError", "InterfaceError", "ConnectionFailure"})
_MONGO_LABEL = "TransientTransactionError"
_MAX_DEPTH = 5


def is_conflict(error: BaseException | None) -> bool:
    """Return whether the transaction lost against another one and may be repeated as a whole."""
    return any(isinstance(e, StoreRetryableError) or _is_drivers(e) for e in _causes(error))


def has_no_room(error: BaseException | None) -> bool:
    """Return whether the database accepts no writes at present: it is full, or read-only."""
    return any(_is_short(e) for e in _causes(error))


def refuses_values(error: BaseException | None) -> bool:
    """Return whether the database received these values and refuses them."""
    return any(map(_is_refusal, _causes(error)))


def _is_refusal(error: BaseException) -> bool:
    if isinstance(error, StoreRefusedError) or _is_too_much(error):
        return True
    state = getattr(error, "sqlstate", None)  # psycopg and asyncpg
    if isinstance(state, str):
        return state.startswith(_REFUSED_STATES)
    module = type(error).__module__.partition(".")[0]
    if module == "sqlite3":
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_REFUSED
    if module in _MYSQL_MODULES:
        return bool(error.args) and error.args[0] in _REFUSED_NUMBERS
    if module == "pymongo":
        return getattr(error, "code", None) in _MONGO_REFUSED
    return module == "bson" or type(error) is OverflowError  # a number that a driver cannot send


def is_passing(error: BaseException | None) -> bool:
    """Return whether the same statements may succeed later: nothing is wrong with their values."""
    dead_causes = list(_causes(error))
    return not any(map(_is_refusal, dead_causes)) and any(
        isinstance(e, (StoreError, OSError))
        or _is_short(e)
        or _is_drivers(e)
        or any(kind.__name__ in _PASSING for kind in type(e).__mro__)
        for e in dead_causes
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and those it wraps: SQLAlchemy and Django wrap the driver's own."""
    for _ in range(_MAX_DEPTH):
        if error is None:
            return
        yield error
        error = getattr(error, "orig", None) or error.__cause__


def _is_too_much(error: BaseException) -> bool:
    """Return whether a value is too large, or of the wrong type, whatever class the driver
    chose.
    """
    if str(getattr(error, "sqlstate", None)).startswith(_TOO_MUCH_STATE):
        return True
    is_mysql = type(error).__module__.partition(".")[0] in _MYSQL_MODULES
    return is_mysql and bool(error.args) and error.args[0] in _TOO_MUCH_NUMBERS


def _is_short(error: BaseException) -> bool:
    state = getattr(error, "sqlstate", None)  # psycopg and asyncpg
    if isinstance(state, str) and state.startswith(_NO_ROOM_STATES):
        return True
    module = type(error).__module__.partition(".")[0]
    if module == "sqlite3":
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_NO_ROOM
    if module in _MYSQL_MODULES:
        return bool(error.args) and error.args[0] in _NO_ROOM_NUMBERS
    return module == "pymongo" and getattr(error, "code", None) == _MONGO_NO_ROOM


def _is_drivers(error: BaseException) -> bool:
    if getattr(error, "sqlstate", None) in _SQLSTATES:  # psycopg and asyncpg
        return True
    module = type(error).__module__.partition(".")[0]
    if module == "sqlite3":
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_BUSY
    if module in _MYSQL_MODULES:
        return bool(error.args) and error.args[0] in _MYSQL_NUMBERS
    if module == "pymongo":
        labelled = getattr(error, "has_error_label", None)
        # A lost connection has the label as well; the outcome of the commit is then unknown.
        return bool(labelled and labelled(_MONGO_LABEL) and getattr(error, "code", None))
    return False
