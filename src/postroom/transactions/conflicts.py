"""Telling a conflict from a failure, whichever driver raised it, without importing any.

After a conflict the database has undone the whole transaction, and nothing was wrong with it:
run from its beginning it may succeed (I2). Two deliveries of one message are the usual cause.
"""

from __future__ import annotations

from postroom.errors import StoreConflictError

_SQLSTATES = frozenset({"40001", "40P01"})  # serialization failure, deadlock
_MYSQL_NUMBERS = frozenset({1213, 1205, 1020})  # deadlock, lock wait timeout, record has changed
_SQLITE_BUSY = frozenset({5, 6})  # primary codes: busy, locked
_MYSQL_MODULES = ("pymysql", "MySQLdb", "asyncmy")
_MONGO_LABEL = "TransientTransactionError"
_MAX_DEPTH = 5


def is_conflict(error: BaseException | None) -> bool:
    """Say whether the transaction lost against another one and may be run again as a whole."""
    for _ in range(_MAX_DEPTH):  # SQLAlchemy and Django wrap the driver's own error
        if error is None:
            return False
        if isinstance(error, StoreConflictError) or _is_drivers(error):
            return True
        error = getattr(error, "orig", None) or error.__cause__
    return False


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
        # A lost connection has the label as well; what became of the commit is then unknown.
        return bool(labelled and labelled(_MONGO_LABEL) and getattr(error, "code", None))
    return False
