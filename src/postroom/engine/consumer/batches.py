"""Messages that wait for a handler at the same time share a transaction.

Batches are never waited for: a batch is whatever queued up while all handlers were busy. Each key
contributes only its first message, so the messages of a batch have different keys, and the next
message of a key is handled after the commit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from postroom.broker import Outcome, Verdict
from postroom.engine.handlers.handlers import Handlers
from postroom.engine.handlers.key_batches import TransactionKind
from postroom.engine.service import end
from postroom.record import Record
from postroom.source import Delivery

if TYPE_CHECKING:
    from postroom.engine.consumer.context import ConsumerCounts


class _Waiting(NamedTuple):
    delivery: Delivery
    record: Record
    transaction_kind: TransactionKind
    told: asyncio.Future[Outcome | None]


class Batches:
    """Passes up to `size` messages at once to the handlers; a single one goes to `handle_one`."""

    def __init__(
        self,
        handlers: Handlers,
        handle_one: Callable[[Record], Awaitable[Outcome]],
        size: int,
        stopping: asyncio.Event,
        counts: ConsumerCounts,
    ) -> None:
        self._handlers = handlers
        self._handle_one = handle_one
        self._size = size
        self._stopping = stopping
        self._counts = counts
        self._waiting: deque[_Waiting] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._workers = self._running = 0

    async def handle(self, delivery: Delivery, record: Record) -> Outcome | None:
        """Handle a message together with others that wait. None: it must be handled individually.

        None does not mean that the message failed: it cannot be batched, or its batch failed.
        """
        transaction_kind = self._handlers.transaction_kind(record.type)
        if transaction_kind is None:
            return None
        told: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(delivery, record, transaction_kind, told))
        if self._workers < self._handlers.places:
            self._workers += 1
            task = asyncio.create_task(self._work(), name="batches")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await told

    async def close(self) -> None:
        """Cancel what still runs; its transactions are rolled back."""
        await end(*self._tasks)
        self._workers = 0

    async def _work(self) -> None:
        try:
            while batch := self._gather():
                self._running += 1
                try:
                    await self._run(batch)
                finally:
                    self._running -= 1
        finally:
            self._workers -= 1

    def _gather(self) -> list[_Waiting]:
        """Take the messages that can share a transaction with the first one; the others keep their
        places.

        At most a fair share: ten parallel transactions are faster than one long one.
        """
        idle = self._handlers.places - self._running
        most = min(self._size, -(-len(self._waiting) // idle))
        batch: list[_Waiting] = []
        ids: set[str] = set()
        passed: list[_Waiting] = []
        while self._waiting and len(batch) < most:
            one = self._waiting.popleft()
            if one.told.done():
                continue
            if one.delivery.is_lost or self._stopping.is_set():
                one.told.set_result(None)
            elif batch and (
                one.transaction_kind != batch[0].transaction_kind or one.record.id in ids
            ):
                passed.append(one)
            else:
                batch.append(one)
                ids.add(one.record.id)
        self._waiting.extendleft(reversed(passed))
        return batch

    async def _run(self, batch: Sequence[_Waiting]) -> None:
        outcomes: Sequence[Outcome | None] = [None] * len(batch)
        try:
            if len(batch) == 1:
                outcomes = [await self._handle_one(batch[0].record)]
            else:
                outcomes = await self._together(batch) or outcomes
        except Exception as error:  # a bug: raised in every message that waits for the outcome
            for one in batch:
                if not one.told.done():
                    one.told.set_exception(error)
        except BaseException:
            for one in batch:
                one.told.cancel()
            raise
        for one, outcome in zip(batch, outcomes, strict=True):
            if not one.told.done():
                one.told.set_result(outcome)
        await asyncio.sleep(0)  # let their keys offer their next messages

    async def _together(self, batch: Sequence[_Waiting]) -> Sequence[Outcome] | None:
        records = [one.record for one in batch]
        outcomes = await self._handlers.handle_together(records)
        if outcomes is None:
            self._counts.split += len(batch)
        elif outcomes[0].verdict is Verdict.CONFIRMED:
            self._counts.batched += len(batch)
        return outcomes
