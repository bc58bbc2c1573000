"""Forgetting what was handled long ago, so that an inbox does not grow for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from postroom.engine.relay.context import RelayContext
from postroom.engine.service import Service
<<<<<<< HEAD
=======
from postroom.record import State, row_id
from postroom.store import Standing
from postroom.transactions import resolve, resolve_sync

_log = logging.getLogger(__name__)

STEP = 1_000

Notes = Callable[..., Awaitable[Any]]  # a method of a transaction's adapter, and its arguments


class Lookup(Protocol):
    """What is asked of a store."""

    async def look_up(self, ids: Sequence[str]) -> dict[str, Standing]: ...


def notes_in(factory: Callable[[], AbstractAsyncContextManager[Any]], prefix: str) -> Notes:
    """Return what calls a method of the adapter in a transaction of its own."""

    async def call(method: str, *arguments: Any) -> Any:
        async with factory() as tx:
            adapter = resolve(tx, prefix)
            adapter.check()
            return await getattr(adapter, method)(*arguments)

    return call


def notes_in_thread(factory: Callable[[], AbstractContextManager[Any]], prefix: str) -> Notes:
    """Do the same with transactions that block."""

    def work(method: str, *arguments: Any) -> Any:
        with factory() as tx:
            adapter = resolve_sync(tx, prefix)
            adapter.check()
            return getattr(adapter, method)(*arguments)

    async def call(method: str, *arguments: Any) -> Any:
        return await asyncio.to_thread(work, method, *arguments)

    return call


async def forget(
    consumer: str, older_than_seconds: float, notes: Notes, store: Lookup, kept_by: Sequence[str]
) -> int:
    """Forget what this consumer did longer ago than that, in small steps; returns how many.

    `kept_by` are the names under which its messages may be kept in the store. A note that no
    consumer can have written, such as one whose id is no text, is left where it is: it costs no
    other note its turn, and a line in the log tells of it.
    """
    forgotten = skipped = left = 0
    while True:
        found = await notes("done_before", consumer, older_than_seconds, STEP, skipped)
        stay = await _may_come_again(found, store, kept_by) if found else set()
        gone = [each for each in found if each not in stay]
        done = await notes("forget", consumer, gone) if gone else 0
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
    """Return which of these are unfinished or dead: an event of the outbox, or a kept message."""
    rows = {each: each for each in ids}
    for name in kept_by:
        rows.update((row_id(name, each), each) for each in ids)
    there = await store.look_up(list(rows))
    return {rows[row] for row, standing in there.items() if standing.state != State.DONE}
>>>>>>> 538a1e2 (Messages of the engines and of transactions in plain words)


class InboxPruner(Service):
    """Lets the destination forget messages older than `dedup_seconds`, if it keeps an inbox."""

    def __init__(
        self, context: RelayContext, forget_accepted: Callable[[float], Awaitable[int]]
    ) -> None:
        super().__init__()
        self._context = context
        self._forget_accepted = forget_accepted

    async def loop(self) -> None:
        settings = self._context.settings
        while True:
            await asyncio.sleep(settings.prune_seconds)
            try:
                await self._forget_accepted(settings.dedup_seconds)
            except Exception as error:  # also the driver's own, from within the transaction
                self._context.trouble("pruning the inbox", error)
