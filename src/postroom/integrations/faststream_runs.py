"""Runs of FastStream subscribers in transactions, and the handling of their failures.

Believe the database, not the subscriber (see `engine.handlers.commit_check`). A message that fails
is nacked, and RabbitMQ and FastStream redeliver it immediately. Therefore:

    the subscriber raises, or the        nacked after a pause that grows with each failure of this
    database is unreachable              message, up to LONGEST_PAUSE
    it swallowed an error, and the       nacked in the same way; rejected at the fifth failure
    database aborted its transaction
    its transaction was rolled back      rejected immediately: later statements may be committed,
                                         and a second run could repeat them
    the subscriber committed             done, or rejected if an error followed

Failures are counted in this process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from faststream.exceptions import HandlerException, NackMessage, RejectMessage

from postroom import transactions
from postroom.engine.handlers.commit_check import (
    AFTERWARDS,
    OutsideTransactionError,
    RolledBackError,
    is_outside_transaction,
    may_commit,
    outside_transaction_error,
    tell_committed,
)
from postroom.errors import TransactionEndedError, TransactionError
from postroom.model.incoming import Incoming
from postroom.record import short_error
from postroom.retry import RetryPolicy
from postroom.transaction import Acceptance, AsyncTransaction

Factory = Callable[[], AbstractAsyncContextManager[Any]]

_log = logging.getLogger("postroom.integrations.faststream")
FIRST_PAUSE, LONGEST_PAUSE = (
    0.1,
    1.0,
)  # a subscriber with a small prefetch count is blocked meanwhile
REJECT_SECONDS = 1.0  # a flood of rejected messages must not fill the log
_MOST_TRIES = RetryPolicy().max_attempts
_MOST_REMEMBERED = 10_000
_LEAVE = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)


class Run:
    """Runs a subscriber in a transaction, if the message is new."""

    def __init__(self, mark: Acceptance) -> None:
        self.mark = mark
        self.is_repeat = False
        self.is_committing = False
        self.result: Any = None

    async def go(
        self, transaction: Factory, prefix: str, call: Callable[[Any], Awaitable[Any]]
    ) -> None:
        """Accept the message, call the subscriber with the transaction, and commit."""
        committed_itself = False
        try:
            async with transaction() as tx:
                adapter = transactions.resolve(tx, prefix)
                self.is_repeat = not await adapter.accept(self.mark)
                if not self.is_repeat:
                    await adapter.hold([])
                    self.result = await self._called(adapter, call, tx)
                    committed_itself = await self._look_back(adapter)
                self.is_committing = True
        except Exception as error:
            if not committed_itself:
                raise
            if not isinstance(error, TransactionEndedError):  # else nothing was left to commit
                raise OutsideTransactionError(
                    AFTERWARDS.format(error=short_error(error))
                ) from error

    async def _called(
        self, adapter: AsyncTransaction, call: Callable[[Any], Awaitable[Any]], tx: Any
    ) -> Any:
        try:
            return await call(tx)
        except _LEAVE:
            raise
        except BaseException as error:  # includes panics of Rust extensions
            if is_outside_transaction(adapter, error):
                found = await adapter.standing([self.mark])
                raise outside_transaction_error(found, [self.mark.consumer], error) from error
            if isinstance(error, Exception):
                raise
            # It would end FastStream's loop.
            raise RuntimeError(f"the subscriber raised {type(error).__qualname__}") from error

    async def _look_back(self, adapter: AsyncTransaction) -> bool:
        """Check with the database before the commit; True: the subscriber has committed."""
        try:
            return not may_commit(await adapter.standing([self.mark]), [self.mark.consumer])
        except OutsideTransactionError:
            raise
        except (
            TransactionError
        ) as error:  # PostgreSQL aborts the transaction after a failed statement
            raise RolledBackError(str(error)) from error


class Failures:
    """Counts failures of messages, and decides between redelivery and rejection."""

    def __init__(self) -> None:
        # Subscriber and id → number of failures, and whether the last one preceded the commit.
        self._failed: dict[tuple[str, str], tuple[int, bool]] = {}

    def done(self, run: Run) -> None:
        """Remove the failures of a handled message."""
        _, before_commit = self._failed.pop(run.mark[:2], (0, False))
        if run.is_repeat and before_commit:  # the subscriber had committed it
            tell_committed([run.mark.consumer])

    async def judge(self, run: Run, message: Incoming, error: Exception) -> None:
        """Return after a pause if the message may be redelivered; otherwise raise RejectMessage."""
        key = run.mark[:2]
        tries = self._failed.pop(key, (0, False))[0] + 1
        if isinstance(error, OutsideTransactionError):
            raise await rejection(message, str(error), run.mark.id)
        if isinstance(error, RolledBackError) and tries >= _MOST_TRIES:
            raise await rejection(message, f"{error} (attempts: {tries})", run.mark.id)
        if isinstance(error, HandlerException) and not isinstance(error, NackMessage):
            return  # the subscriber decided itself
        self._failed[key] = tries, not run.is_committing
        if len(self._failed) > _MOST_REMEMBERED:
            del self._failed[next(iter(self._failed))]
        await asyncio.sleep(min(FIRST_PAUSE * 2 ** min(tries - 1, 10), LONGEST_PAUSE))


async def rejection(message: Incoming, why: str, message_id: str = "") -> RejectMessage:
    """Log that a message is rejected; return the exception to raise, after a pause."""
    if message.offset is None:
        where = "It goes to the queue's dead-letter exchange; without one it is lost"
    else:
        where = f"Its offset is committed; it stays in the topic at {message.offset}"
    name = f" {message_id}" if message_id else ""
    _log.error("a message%s of %r is rejected: %s. %s", name, message.topic, why, where)
    await asyncio.sleep(REJECT_SECONDS)
    return RejectMessage()
