"""One task for each key with messages in flight: keys run concurrently, each key in its order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import takewhile
from typing import TYPE_CHECKING

from postroom.engine.consumer.context import Received
from postroom.engine.service import crash_of, end

if TYPE_CHECKING:
    from postroom.engine.consumer.detours import Detours


class KeyQueues:
    """Passes each key's messages to `finish`, one after the other.

    When a message could not be finished, those behind it are dropped: they belong to another
    consumer now, or are delivered again.
    """

    def __init__(
        self,
        finish: Callable[[Received], Awaitable[bool]],
        on_left: Callable[[int], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._finish = finish
        self.detours: Detours | None = None
        self._on_left = on_left
        self._on_error = on_error
        self._queues: dict[bytes, deque[Received]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, received: Received) -> None:
        """Queue a message behind those of its key."""
        key = received.record.key_hash
        queue = self._queues.get(key)
        if queue is not None:
            queue.append(received)
            return
        self._queues[key] = deque((received,))
        task = asyncio.create_task(self._work(key), name="key")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def count(self, key: bytes) -> int:
        """Return how many messages of a key are in flight."""
        return len(self._queues.get(key, ()))

    async def wait(self) -> None:
        """Wait for the messages in flight."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def stop(self) -> None:
        """Cancel the handlers that still run."""
        await end(*self._tasks)

    async def _work(self, key: bytes) -> None:
        queue, detoured = self._queues[key], False
        try:
            while queue:
                received = queue[0]
                if received.keep or detoured:
                    detoured = await self._store_queue(queue) or detoured
                    if queue and queue[0] is received:
                        break  # no row can hold it, or the consumer stops
                    continue
                # Skip a lost message, but not those behind it: they may have been delivered since.
                done = received.delivery.is_lost or await self._finish(received)
                if not done and not received.delivery.is_lost:
                    if self.detours is None or not self.detours.is_asked(key):
                        break
                    detoured = await self._store_queue(queue)
                    if not detoured:
                        self.detours.refuse(key)
                    continue
                queue.popleft()
                self._on_left(1)
        finally:
            del self._queues[key]
            if self.detours is not None:
                self.detours.left(key, kept=detoured)
            if queue:
                self._on_left(len(queue))

    async def _store_queue(self, queue: deque[Received]) -> bool:
        """Store the key's messages in the durable inbox; bury in place what cannot be handled.

        False: no row can hold one of them, or the consumer stops.
        """
        messages = list(takewhile(lambda received: not received.problem, queue))
        if not messages:
            done = await self._finish(queue[0])
            messages = [queue[0]] if done or queue[0].delivery.is_lost else []
        elif self.detours is None or not await self.detours.keep(messages):
            return False
        for _ in messages:
            queue.popleft()
        self._on_left(len(messages))
        return bool(messages)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if (error := crash_of(task)) is not None:
            self._on_error(error)
