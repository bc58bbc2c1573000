"""Threads for sync handlers: reused, bounded, and never in the way of process exit."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
_log = logging.getLogger(__name__)
_SHORT_SECONDS = 1.0
_Job = Callable[[], None]


class NoThreadError(Exception):
    """No thread became free within the time to wait."""


class Hang(NamedTuple):
    """A run that continues in its thread past its time limit."""

    since: datetime
    doing: str
    is_running: bool  # the handler itself; otherwise a statement of postroom's


class Threads:
    """Up to `size` daemon threads.

    concurrent.futures joins its threads at interpreter exit, so one stuck handler would
    keep the process alive; these threads are abandoned. A stuck thread keeps its slot.

    hanging    events whose runs continue past their time limit, by id: they are not run again
               until then, or each attempt would take one more thread
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._free = asyncio.Semaphore(size)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._started = 0
        self._busy = 0
        self.hanging: dict[str, Hang] = {}

    def watch(
        self, event: str, future: asyncio.Future[Any], doing: str, *, is_running: bool
    ) -> None:
        """Remember that the run of an event is stuck, until it ends."""
        if future.done():
            return
        self.hanging[event] = Hang(datetime.now(UTC), doing, is_running)
        future.add_done_callback(lambda _: self.hanging.pop(event, None))
        if len(self.hanging) == self._size:
            _log.error("%s", self._exhausted())

    def _exhausted(self) -> str:
        return (
            f"all {self._size} threads for sync handlers are taken by stuck handlers; set a "
            "timeout for their calls, or restart the process"
        )

    async def start(self, call: Callable[[], T], patience_seconds: float) -> asyncio.Future[T]:
        """Start a call in a thread, with a copy of the caller's context; returns its future.

        `call` must not raise. Raises NoThreadError when no thread becomes free in time.
        """
        if len(self.hanging) >= self._size:  # others must not wait for it: async handlers can run
            patience_seconds = min(patience_seconds, _SHORT_SECONDS)
        try:
            async with asyncio.timeout(patience_seconds):
                await self._free.acquire()
        except TimeoutError:
            raise NoThreadError(self._exhausted()) from None
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()
        self._busy += 1

        def job() -> None:
            result = context.run(call)
            with suppress(RuntimeError):  # the loop is closed: the result is not awaited any more
                loop.call_soon_threadsafe(self._finish, future, result)

        self._hire()
        self._jobs.put(job)
        return future

    def close(self) -> None:
        """Let idle threads end now, and busy ones when they are done; does not wait."""
        for _ in range(self._started):
            self._jobs.put(None)
        self._jobs = SimpleQueue()  # a thread started later must not see these stop markers
        self._started = 0

    def _finish(self, future: asyncio.Future[T], result: T) -> None:
        self._busy -= 1
        self._free.release()
        if not future.done():
            future.set_result(result)

    def _hire(self) -> None:
        if self._started < self._busy:
            self._started += 1
            threading.Thread(
                target=_work, args=(self._jobs,), name=f"{self._name}-{self._started}", daemon=True
            ).start()


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
