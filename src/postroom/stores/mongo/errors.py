"""What an error of pymongo means for the caller: nothing happened, nobody knows, or a refusal."""

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
"""The server goes down, steps down or comes up, or the cursor went with it."""

UNFIT: tuple[type[Exception], ...] = (BSONError, UnicodeError, OverflowError)
"""What the driver raises of its own, before or after the server: data that is no BSON, or too big.

`DocumentTooLarge` is one of them; no PyMongoError is.
"""


_REFUSED = frozenset({2, 14, 34, 121, 10334, 11000, 17280, 17419, 17420})
"""Wrong types, the collection's validator, documents that are too large, keys that are there."""


def is_transient(error: PyMongoError) -> bool:
    """Say whether a transaction that met this error has changed nothing, and may be repeated."""
    if error.has_error_label(TRANSIENT) or isinstance(error, ConnectionFailure):
        return True
    # During an election no server may be known that has sessions: pymongo then says that there
    # are none at all.
    if isinstance(error, ConfigurationError):
        return "Sessions are not supported" in str(error)
    return isinstance(error, OperationFailure) and error.code in {WRITE_CONFLICT, *_FAIL_OVER}


def translate(error: PyMongoError, *, harmless: bool) -> StoreError:
    """Return the error of the port. Harmless: whatever was asked, nothing has been changed."""
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
    """Say whether the server, or the driver, will not store these values."""
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
    """Say whether a single write was turned down before it did anything."""
    refused = isinstance(error, OperationFailure) and error.code == WRITE_CONFLICT
    return refused or isinstance(error, ConfigurationError)


def _words(error: PyMongoError) -> str:
    """Return what an error says, without the description of the whole topology behind it."""
    text = str(error).partition(", full error:")[0].partition(", Timeout:")[0]
    return f"{type(error).__name__}: {text}"
