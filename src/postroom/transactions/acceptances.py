"""The rows of an inbox, read and pruned in their own transactions.

A message that is delivered again after its row was pruned takes effect a second time. Each consumer
therefore prunes only its own rows, after its own retention, and a row stays while its message can
still come from the store: while it waits in a durable inbox, or is a dead letter that may be
replayed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, cast

from postroom.lookup import Standing
from postroom.record import State, row_id
from postroom.transaction import Acceptance
from postroom.transactions.adapters import resolve, resolve_sync

_log = logging.getLogger(__name__)

STEP = 1_000

Question = Callable[[Any], Any]  # of a transaction's adapter, sync or async


class Lookup(Protocol):
    """The part of a store that reports which events can still come."""

    async def look_up(self, ids: Sequence[str]) -> dict[str, Standing]: ...


class Acceptances:
    """The inbox rows that transactions of a factory reach; each call is a transaction."""

    def __init__(self, ask: Callable[[Question], Awaitable[Any]]) -> None:
        self._ask = ask

    @classmethod
    def in_transactions(
        cls, factory: Callable[[], AbstractAsyncContextManager[Any]], prefix: str
    ) -> Acceptances:
        """Return the rows in the tables with this prefix, over async transactions."""

        async def ask(question: Question) -> Any:
            async with factory() as tx:
                adapter = resolve(tx, prefix)
                return await question(adapter)

        return cls(ask)

    @classmethod
    def in_threads(
        cls, factory: Callable[[], AbstractContextManager[Any]], prefix: str
    ) -> Acceptances:
        """Return the same rows over transactions that block: each runs in a thread."""

        def work(question: Question) -> Any:
            with factory() as tx:
                adapter = resolve_sync(tx, prefix)
                return question(adapter)

        return cls(lambda question: asyncio.to_thread(work, question))

    async def count_done(self, acceptances: Sequence[Acceptance]) -> int:
        return cast("int", await self._ask(lambda tx: tx.count_done(acceptances)))

    async def done_before(self, consumer: str, seconds: float, limit: int, skip: int) -> list[str]:
        found = await self._ask(lambda tx: tx.done_before(consumer, seconds, limit, skip))
        return cast("list[str]", found)

    async def forget(self, consumer: str, ids: Sequence[str]) -> int:
        return cast("int", await self._ask(lambda tx: tx.forget(consumer, ids)))


async def forget_old(
    acceptances: Acceptances,
    consumer: str,
    older_than_seconds: float,
    store: Lookup,
    kept_by: Sequence[str],
) -> int:
    """Delete rows of this consumer that are older than that, in small steps; returns how many.

    `kept_by` are the consumers whose durable inboxes may hold its messages. A row that no consumer
    can have written, such as one whose id is not text, stays where it is: it does not hold up other
    rows, and is logged.
    """
    forgotten = skipped = left = 0
    while True:
        found = await acceptances.done_before(consumer, older_than_seconds, STEP, skipped)
        stay = await _may_come_again(found, store, kept_by) if found else set()
        gone = [each for each in found if each not in stay]
        done = await acceptances.forget(consumer, gone) if gone else 0
        forgotten += done
        left += len(gone) - done
        skipped += len(found) - done
        if len(found) < STEP:
            _tell_left(consumer, left)
            return forgotten
        await asyncio.sleep(0)  # let others in between


def _tell_left(consumer: str, left: int) -> None:
    if left:
        _log.warning(
            "%d old inbox rows of %s cannot be pruned. If this repeats, look at its "
  "oldest rows: a row whose id is not text was not written by a consumer, and can be deleted",
            left, consumer,
        )  # fmt: skip


async def _may_come_again(ids: Sequence[str], store: Lookup, kept_by: Sequence[str]) -> set[str]:
    """Return which of these are unfinished or dead: an event of the outbox, or a stored message."""
    rows = {each: each for each in ids}
    for name in kept_by:
        rows.update((row_id(name, each), each) for each in ids)
    there = await store.look_up(list(rows))
    return {rows[row] for row, standing in there.items() if standing.state != State.DONE}
