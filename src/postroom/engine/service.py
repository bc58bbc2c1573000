"""A background loop with a start and a stop; both may be called twice."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod


class Service(ABC):
    """Runs `loop` in a task. `stop` cancels it; a loop that ends by an error is not restarted."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        if not self.is_running:
            self._task = asyncio.create_task(self.loop(), name=type(self).__name__)

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    @abstractmethod
    async def loop(self) -> None: ...
