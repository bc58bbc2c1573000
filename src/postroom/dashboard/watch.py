"""Watches one store for all viewers: samples on demand, shares them, and remembers a history.

Nothing runs between requests: a store is sampled when a viewer asks and the last sample is old.
Then one sample serves all viewers. The next one waits for `refresh_seconds`, and for a multiple of
the time that the last one took, so that viewers use a small part of the store's time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from postroom.admin.diagnosis import diagnose
from postroom.dashboard import sample
from postroom.dashboard.sample import Sample, StreamNow
from postroom.engine.sharing import close_shared, open_shared
from postroom.model.dead_letters import Group
from postroom.model.diagnostics import Finding
from postroom.record import short_error
from postroom.settings import RelaySettings
from postroom.store import Store

REST = 50  # a sample of 20 ms is at least a second old before the next one
_GROUPS_SECONDS = 15.0
_DOCTOR_SECONDS = 60.0
_PATIENCE_SECONDS = 2.0
_POINTS = 2_160  # three hours at five seconds
_MARKS = 200
_FAILED_SECONDS = 5.0

_log = logging.getLogger("postroom.dashboard")
T = TypeVar("T")


class Point(NamedTuple):
    """The figures of a stream in one sample that are remembered."""

    at: float
    added: float | None
    confirmed: float | None
    waiting: int
    lag_seconds: float
    p50: float | None
    p99: float | None


class Mark(NamedTuple):
    """A change that explains a curve: outage, recovered, pause, resume, relays."""

    at: float
    stream: str
    what: str


class Shared(Generic[T]):
    """A value that is read again when it is asked for and old; one reader at a time.

    A viewer waits for it at most `_PATIENCE_SECONDS` if there is an older one.
    """

    def __init__(self, read: Callable[[], Awaitable[T]], every_seconds: float) -> None:
        self._read = read
        self._every = every_seconds
        self._task: asyncio.Task[T] | None = None
        self._due = 0.0
        self.value: T | None = None
        self.read_at: float | None = None
        self._failure: Exception | None = None

    @property
    def error(self) -> str | None:
        """The error of the last read; None: it succeeded."""
        return None if self._failure is None else short_error(self._failure)

    async def get(self, *, fresh: bool = False) -> T:
        """Return the value, at most as old as the interval; raises the error of the first read."""
        if self._task is not None and self._task.get_loop() is not asyncio.get_running_loop():
            self._task = None  # of a test, or of a server that was restarted
        if self._task is None and (fresh or time.monotonic() >= self._due):
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(_heard)
        task = self._task
        if task is not None:
            if self.value is None:
                return await asyncio.shield(task)
            await asyncio.wait({task}, timeout=_PATIENCE_SECONDS)
        if self.value is None:  # the last read failed, and it is not yet time for another
            assert self._failure is not None
            raise self._failure
        return self.value

    async def _run(self) -> T:
        began = time.monotonic()
        try:
            self.value = await self._read()
        except Exception as error:
            if self._failure is None:
                _log.warning("the dashboard cannot read its store: %s", short_error(error))
            self._failure = error
            self._due = time.monotonic() + min(self._every, _FAILED_SECONDS)
            raise
        finally:
            self._task = None
        self._failure, self.read_at = None, time.time()
        took = time.monotonic() - began
        self._due = time.monotonic() + max(self._every, REST * took)
        return self.value

    def expire(self) -> None:
        """Read again at the next request: an action has changed something."""
        self._due = 0.0

    async def stop(self) -> None:
        """End a read that is running."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})


def _heard(task: asyncio.Task[T]) -> None:
    """Take note of an error that no viewer waits for; `_run` has logged it."""
    if not task.cancelled():
        task.exception()


class StoreWatch:
    """A store under its name, opened at the first request."""

    def __init__(self, name: str, store: Store, every_seconds: float) -> None:
        self.name = name
        self.store = store
        self._is_open = False
        self._opening = asyncio.Lock()
        self._last: Sample | None = None
        self.history: dict[str, deque[Point]] = {}
        self.marks: deque[Mark] = deque(maxlen=_MARKS)
        self.samples = Shared(self._sample, every_seconds)
        self.groups: Shared[list[Group]] = Shared(
            self._groups, max(every_seconds, min(_GROUPS_SECONDS, 3 * every_seconds))
        )
        self.findings: Shared[list[Finding]] = Shared(
            self._diagnose, max(every_seconds, min(_DOCTOR_SECONDS, 12 * every_seconds))
        )

    async def open(self) -> Store:
        """Return the open store. Raises StoreError or SchemaError."""
        if not self._is_open:
            async with self._opening:
                if not self._is_open:
                    try:
                        await open_shared(self.store)
                    except BaseException:
                        await asyncio.shield(close_shared(self.store))
                        raise
                    self._is_open = True
        return self.store

    async def close(self) -> None:
        """End reads, and close the store unless others use it; safe to call twice."""
        for one in (self.samples, self.groups, self.findings):
            await one.stop()
        if self._is_open:
            self._is_open = False
            await close_shared(self.store)

    def changed(self) -> None:
        """Let the next request read again."""
        self.samples.expire()
        self.groups.expire()

    async def _sample(self) -> Sample:
        found = await sample.take(await self.open(), self._last)
        self._remember(found)
        self._last = found
        return found

    async def _groups(self) -> list[Group]:
        return await sample.take_groups(await self.open())

    async def _diagnose(self) -> list[Finding]:
        return await diagnose(await self.open(), {}, RelaySettings().dedup_seconds)

    def _remember(self, found: Sample) -> None:
        for now in found.streams:
            points = self.history.setdefault(now.name, deque(maxlen=_POINTS))
            points.append(
                Point(
                    found.at, now.added, now.confirmed, now.waiting, now.lag_seconds, now.p50,
                    now.p99,
                )
            )  # fmt: skip
            old = self._last.stream(now.name) if self._last is not None else None
            if old is not None:
                self.marks.extend(Mark(found.at, now.name, what) for what in changes(old, now))
        for gone in set(self.history) - {now.name for now in found.streams}:
            del self.history[gone]


def changes(old: StreamNow, now: StreamNow) -> Sequence[str]:
    """Return the changes between two samples that a chart marks."""
    found = []
    if old.health != now.health and "unhealthy" in (old.health, now.health):
        found.append("outage" if now.health == "unhealthy" else "recovered")
    if (old.pause is None) != (now.pause is None):
        found.append("pause" if now.pause is not None else "resume")
    before = {relay.owner for relay in old.relays if relay.state != "gone"}
    after = {relay.owner for relay in now.relays if relay.state != "gone"}
    if before and after and before != after:
        found.append("relays changed")
    return found
