"""Keys side by side, each in its order: one task for each key that has messages in hand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from postroom.consumers.trial import Letter
from postroom.engine.service import end


class Keys:
    """Hands each key's messages to `finish`, one after the other.

    When one could not be brought to its end, those behind it are dropped: they belong to another
    consumer now, or come again.
    """

    def __init__(
        self,
        finish: Callable[[Letter], Awaitable[bool]],
        on_left: Callable[[int], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._finish = finish
        self._on_left = on_left
        self._on_error = on_error
        self._queues: dict[bytes, deque[Letter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, letter: Letter) -> None:
        """Take a message in, behind those of its key."""
        key = letter.record.key_hash
        queue = self._queues.get(key)
        if queue is not None:
            queue.append(letter)
            return
        self._queues[key] = deque((letter,))
        task = asyncio.create_task(self._work(key), name="key")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def settle(self, seconds: float) -> None:
        """Wait for what runs; what still runs after that time is cancelled."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            await end(*late)

    async def _work(self, key: bytes) -> None:
        queue = self._queues[key]
        try:
            while queue:
                letter = queue[0]
                # A lost message is skipped, not those behind it: they may have come since.
                done = letter.delivery.is_lost or await self._finish(letter)
                if not done and not letter.delivery.is_lost:
                    break
                queue.popleft()
                self._on_left(1)
        finally:
            del self._queues[key]
            if queue:
                self._on_left(len(queue))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)
