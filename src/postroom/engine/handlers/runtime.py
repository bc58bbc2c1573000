"""What handlers share while they run: limiter, threads, and what is known of events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from postroom.broker import REPEAT, Outcome, Verdict
from postroom.engine.handlers.commit_check import tell_committed
from postroom.engine.handlers.limiter import SharedLimiter
from postroom.engine.handlers.threads import Threads

_MOST_PARTED = 10_000


class HandlerRuntime:
    """Where handlers run: the limits that all twins of one Handlers share, on one event loop.

    parted      ids of events whose company failed: they are handled by themselves the next time
    held        ids of events whose notes a thread holds that hangs past its limit
    refused     what became of events, by id, whose handlers must not run again
    """

    def __init__(self, concurrency: int, name: str) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._concurrency = concurrency
        self._name = name
        self.run_alone: dict[str, None] = {}
        self.held: set[str] = set()
        self.refused: dict[str, Outcome] = {}
        self._failed: dict[tuple[str, str], None] = {}
        self._renew()

    def part(self, ids: Iterable[str]) -> None:
        """Remember these; the oldest are forgotten when there are too many of them."""
        self.run_alone |= dict.fromkeys(ids)
        _cut(self.run_alone)

    def witness(self, handler: str, id: str, outcome: Outcome) -> None:  # noqa: A002
        """Log if a handler has failed and the event is done all the same.

        Then it committed before it failed, and the rest of its work is lost.
        """
        if outcome.verdict is Verdict.FAILED:
            self._failed[handler, id] = None
            _cut(self._failed)
        elif (handler, id) in self._failed:
            del self._failed[handler, id]
            if outcome == REPEAT:
                tell_committed([handler])

    def enter(self) -> None:
        """Begin afresh on another event loop: what the last one left undone is gone with it."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self.threads.close()
            self._renew()
            self._loop = loop

    def close(self) -> None:
        self.threads.close()

    def _renew(self) -> None:
        self.limiter = SharedLimiter(self._concurrency)
        self.threads = Threads(self._concurrency, self._name)


def _cut(remembered: dict[Any, None]) -> None:
    """Forget the oldest where there are too many of them."""
    while len(remembered) > _MOST_PARTED:
        del remembered[next(iter(remembered))]
