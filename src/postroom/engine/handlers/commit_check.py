"""Checks with the database, before the commit, that a handler's transaction is intact.

A handler may swallow a database error, commit, roll back, or roll back and go on. Before the
commit postroom therefore asks the transaction whether it is the one that accepted the event, and
whether the inbox row is in it. PostgreSQL answers the COMMIT of an aborted transaction with
a rollback that no driver reports: the check fails there, so such a COMMIT is never sent.

    still open            commit: CONFIRMED
    committed by handler  its effect and the row are durable: CONFIRMED, and an error is logged,
                          once for each handler. If work after its commit is lost: REJECTED
    rolled back           by the handler or by the database. Later effects may be committed, in
                          another transaction or in none, and no database tells what a connection
                          has committed since: REJECTED, so that they happen at most once
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from postroom.errors import AutocommitError, TransactionError
from postroom.record import short_error
from postroom.transaction import AsyncTransaction, Standing, SyncTransaction
from postroom.transactions.conflicts import has_no_room, is_conflict

_log = logging.getLogger(__name__)
_told: set[str] = set()
_SQLITE_CONSTRAINT = 19

ADVICE = (
    "Let postroom commit or roll back; to ignore a database error, run the statement in a savepoint"
)
ROLLED_BACK = (
    "the handler's transaction does not contain the inbox row any more, so it is rolled back: "
    f"nothing was committed. {ADVICE}"
)
LOOSE = (
    "the handler's transaction was rolled back before the handler returned, by the handler or by "
    "the database (a deadlock): later effects may have been committed without an inbox row, so the "
    "event is not retried. "
    f"Check its effects before you replay it. {ADVICE}"
)
AFTERWARDS = (
    "the handler committed its transaction itself, and its later work was lost: {error}. "
    f"Its inbox row is committed, so a replay does nothing. Repair the rest by hand. {ADVICE}"
)


class RolledBackError(TransactionError):
    """The run's transaction has ended, and nothing of it can have been committed."""


class OutsideTransactionError(TransactionError):
    """The run's transaction has ended, and a part of the run may have been committed."""


def may_commit(standing: Standing, names: Iterable[str]) -> bool:
    """Return whether the transaction is still the run's; False: the handler has committed it.

    Raises if it was rolled back. `names` are the handlers that ran in it.
    """
    match standing:
        case Standing.HELD:
            return True
        case Standing.COMMITTED:
            tell_committed(names)
            return False
        case Standing.LOST:
            raise RolledBackError(ROLLED_BACK)
        case Standing.LOOSE:
            raise OutsideTransactionError(LOOSE)


def is_outside_transaction(
    adapter: AsyncTransaction | SyncTransaction, error: BaseException
) -> bool:
    """Return whether a handler that raised had already left its transaction for autocommit mode.

    Asks only the driver. Databases also end transactions on their own: then the error that the
    handler received decides.
    """
    if is_conflict(error) or has_no_room(error) or _breaks_constraint(error):
        return False
    try:
        adapter.check()
    except AutocommitError:
        return True
    except Exception:  # cannot be determined; the handler's error decides
        return False
    return False


def _breaks_constraint(error: BaseException) -> bool:
    """Return whether SQLite refused a row: with ON CONFLICT ROLLBACK that ends the transaction."""
    found = getattr(error, "orig", None) or error
    return getattr(found, "sqlite_errorcode", 0) & 0xFF == _SQLITE_CONSTRAINT


def outside_transaction_error(
    standing: Standing, names: Iterable[str], error: BaseException
) -> OutsideTransactionError:
    """Return the error for a handler that ended its transaction, went on, and raised this."""
    if standing is Standing.COMMITTED:
        tell_committed(names)
        return OutsideTransactionError(AFTERWARDS.format(error=short_error(error)))
    return OutsideTransactionError(LOOSE)


def tell_committed(names: Iterable[str]) -> None:
    """Log, once per handler, that one of these handlers commits."""
    fresh = sorted(set(names) - _told)
    if fresh:
        _told.update(fresh)
        _log.error(
            "a handler commits its own transaction (%s): if it fails after that, the rest of its "
            "work is lost, because the event counts as done. %s",
            ", ".join(fresh),
            ADVICE,
        )
