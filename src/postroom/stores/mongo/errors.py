"""Translates pymongo's errors to those of the port: retryable, unknown, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bson.errors import BSONError
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    ExecutionTimeout,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
    WTimeoutError,
)

from postroom.errors import (
    StoreError,
    StoreLockedError,
    StoreRefusedError,
    StoreRetryableError,
    StoreUnknownError,
)
from postroom.record import short_error

TRANSIENT = "TransientTransactionError"
UNKNOWN_COMMIT = "UnknownTransactionCommitResult"
WRITE_CONFLICT = 112
TOO_LATE = 50  # MaxTimeMSExpired
EXISTS = 48  # NamespaceExists
DUPLICATE = 11000
_FAIL_OVER = frozenset(
    {6, 7, 43, 89, 91, 133, 134, 175, 189, 237, 262, 9001, 10058, 10107, 11600, 11602, 13435, 13436}
)
"""The server shuts down, steps down or starts, or the cursor was lost with it."""

UNFIT: tuple[type[Exception], ...] = (BSONError, UnicodeError, OverflowError)
"""Errors raised by the driver itself: data that is not valid BSON, or too large.

`DocumentTooLarge` is one of them; no PyMongoError is.
"""


_REFUSED = frozenset({2, 14, 34, 121, 10334, 11000, 17280, 17419, 17420})
"""Wrong types, the collection's validator, documents that are too large, duplicate keys."""


def is_transient(error: PyMongoError) -> bool:
    """Return whether a transaction that met this error has changed nothing, and may be repeated."""
    if error.has_error_label(TRANSIENT) or isinstance(error, ConnectionFailure):
        return True
    # During an election no server with sessions may be known: pymongo then reports that sessions
    # are not supported.
    if isinstance(error, ConfigurationError):
        return "Sessions are not supported" in str(error)
    return isinstance(error, OperationFailure) and error.code in {WRITE_CONFLICT, *_FAIL_OVER}


def translate(error: PyMongoError, *, harmless: bool) -> StoreError:
    """Return the error of the port. Harmless: nothing has been changed in any case."""
    said = f"MongoDB: {_words(error)}"
    if isinstance(error, InvalidOperation) and "after close" in str(error):
        return StoreError("the store is closed; call `await store.open()` first")
    if is_transient(error) or isinstance(error, (WTimeoutError, ExecutionTimeout)):
        if harmless or _was_refused(error):
            locked = isinstance(error, OperationFailure) and error.code == WRITE_CONFLICT
            return StoreLockedError(said) if locked else StoreRetryableError(said)
        return StoreUnknownError(said)
    return StoreRefusedError(said) if _refuses_values(error) else StoreError(said)


def _refuses_values(error: PyMongoError) -> bool:
    """Return whether the server, or the driver, refuses to store these values."""
    if isinstance(error, BulkWriteError):
        codes = {one.get("code") for one in error.details.get("writeErrors", ())}
        return bool(codes & _REFUSED)
    return isinstance(error, OperationFailure) and error.code in _REFUSED


@contextmanager
def translated(*, harmless: bool) -> Iterator[None]:
    """Raise the errors of the port in place of pymongo's."""
    try:
        yield
    except PyMongoError as error:
        raise translate(error, harmless=harmless) from error
    except UNFIT as error:
        raise unfit(error) from error


def unfit(error: Exception) -> StoreError:
    """Return the error of the port for data that cannot be written or read."""
    return StoreRefusedError(f"MongoDB: {short_error(error)}")


def _was_refused(error: PyMongoError) -> bool:
    """Return whether a single write was refused before it had any effect."""
    refused = isinstance(error, OperationFailure) and error.code == WRITE_CONFLICT
    return refused or isinstance(error, ConfigurationError)


def _words(error: PyMongoError) -> str:
    """Return an error's message, without the description of the whole topology."""
    text = str(error).partition(", full error:")[0].partition(", Timeout:")[0]
    return f"{type(error).__name__}: {text}"
