"""A background loop with a start and a stop; both may be called twice."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

_AGAIN_SECONDS = 6.0  # psycopg gives a server 5 s to cancel a query
_log = logging.getLogger(__name__)


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks until they have ended.

    A single cancel may not be enough: a driver whose connection breaks while it is cancelled raises
    that error instead, and code that catches it continues as if it had not been cancelled.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_AGAIN_SECONDS)


def crash_of(task: asyncio.Task[Any]) -> BaseException | None:
    """Return the error that ended a task; None if it returned, or was cancelled by request."""
    if not task.cancelled():
        return task.exception()
    if task.cancelling():
        return None
    # Not requested: a future of the driver was cancelled.
    return RuntimeError(f"{task.get_name()} was ended by a cancelled call")


class Service(ABC):
    """Runs `loop` in a task. `stop` cancels it; `on_error` of `start` receives its errors."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    def task_name(self) -> str:
        return type(self).__name__

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self, on_error: Callable[[BaseException], None] | None = None) -> None:
        """Begin; an error that ends the loop is a bug, reported to `on_error` or logged."""
        if self.is_running:
            return

        def ended(task: asyncio.Task[None]) -> None:
            if (error := crash_of(task)) is not None:
                (on_error or self.crashed)(error)

        self._task = asyncio.create_task(self.loop(), name=self.task_name)
        self._task.add_done_callback(ended)

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await end(task)

    def crashed(self, error: BaseException) -> None:
        """Log the error of a service that runs without a relay around it."""
        _log.error("%s crashed and has stopped", type(self).__name__, exc_info=error)

    @abstractmethod
    async def loop(self) -> None: ...


class Loop(Service):
    """A service whose loop is a function."""

    def __init__(self, run: Callable[[], Awaitable[None]], name: str) -> None:
        super().__init__()
        self._run, self._name = run, name

    @property
    def task_name(self) -> str:
        return self._name

    async def loop(self) -> None:
        await self._run()


def is_cancelled() -> bool:
    """Return whether this task was asked to end. If not, a CancelledError comes from a driver,
    whose own future was cancelled when its connection closed.

    A driver may also swallow the request (`asyncio.wait_for` of Python 3.11 does, if its result
    comes at that moment): the loop of a service therefore asks before each turn.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def wait_for(event: asyncio.Event, timeout_seconds: float | None) -> bool:
    """Wait until the event is set; False after the time limit.

    A task that was cancelled, and whose driver swallowed that, ends here: see `end`.
    """
    if is_cancelled():
        raise asyncio.CancelledError
    if event.is_set():
        return True
    try:
        async with asyncio.timeout(timeout_seconds):
            return await event.wait()
    except TimeoutError:
        return False
