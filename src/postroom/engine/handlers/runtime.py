"""State that handlers share while they run: limiter, threads, and facts about events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from postroom.broker import REPEAT, Outcome, Verdict
from postroom.engine.handlers.commit_check import tell_committed
from postroom.engine.handlers.limiter import SharedLimiter
from postroom.engine.handlers.threads import Threads

_MOST_REMEMBERED = 10_000


class HandlerRuntime:
    """Limits and state that all bound copies of one Handlers share, on one event loop.

    run_alone   ids of events whose batch failed: they are handled individually next time
    held        ids of events whose inbox rows are held by a thread stuck past its time limit
    refused     outcomes, by id, of events whose handlers must not run again
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
        """Remember these; the oldest are dropped beyond the limit."""
        self.run_alone |= dict.fromkeys(ids)
        _cut(self.run_alone)

    def witness(self, handler: str, id: str, outcome: Outcome) -> None:  # noqa: A002
        """Log if a handler failed although its event is done.

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
        """Reset the state on another event loop: unfinished work of the last loop is gone."""
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
    """Drop the oldest entries beyond the limit."""
    while len(remembered) > _MOST_REMEMBERED:
        del remembered[next(iter(remembered))]
