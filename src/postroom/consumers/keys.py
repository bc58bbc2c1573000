"""Keys side by side, each in its order: one task for each key that has messages in hand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import takewhile
from typing import TYPE_CHECKING

from postroom.consumers.trial import Letter
from postroom.engine.service import end

if TYPE_CHECKING:
    from postroom.consumers.detours import Detours


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
        self.detours: Detours | None = None
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

    def count(self, key: bytes) -> int:
        """Return how many messages of a key are in hand."""
        return len(self._queues.get(key, ()))

    async def settle(self, seconds: float) -> None:
        """Wait for what runs; what still runs after that time is cancelled."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            await end(*late)

    async def _work(self, key: bytes) -> None:
        queue, detoured = self._queues[key], False
        try:
            while queue:
                letter = queue[0]
                if letter.keep or detoured:
                    detoured = await self._take_long_way(queue) or detoured
                    if queue and queue[0] is letter:
                        break  # it can be kept by no row, or we stop
                    continue
                # A lost message is skipped, not those behind it: they may have come since.
                done = letter.delivery.is_lost or await self._finish(letter)
                if not done and not letter.delivery.is_lost:
                    if self.detours is None or not self.detours.is_asked(key):
                        break
                    detoured = await self._take_long_way(queue)
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

    async def _take_long_way(self, queue: deque[Letter]) -> bool:
        """Have the key's messages kept in the backlog; what cannot be handled is buried in place.

        False: one of them can be kept by no row, or we stop.
        """
        letters = list(takewhile(lambda letter: not letter.problem, queue))
        if not letters:
            done = await self._finish(queue[0])
            letters = [queue[0]] if done or queue[0].delivery.is_lost else []
        elif self.detours is None or not await self.detours.keep(letters):
            return False
        for _ in letters:
            queue.popleft()
        self._on_left(len(letters))
        return bool(letters)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)
