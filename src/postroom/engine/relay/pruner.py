"""The pruner deletes old done events, operations that ended long ago and, if it is configured, old
dead letters, in small steps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from postroom.engine.relay.context import RelayContext
from postroom.engine.service import Service, is_cancelled
from postroom.errors import StoreError
from postroom.operation import KEEP_SECONDS

_log = logging.getLogger(__name__)

_STEP = 1_000
_STEPS = 10  # of dead letters in one round; the next round continues behind them


class Pruner(Service):
    """Deletes done events older than `keep_done_seconds`, a thousand at a time, dead letters of the
    stream older than `keep_dead_seconds`, and operations that ended 30 days ago.
    """

    def __init__(self, context: RelayContext) -> None:
        super().__init__()
        self._context = context
        self._after_seq = 0

    async def loop(self) -> None:
        settings = self._context.settings
        while not is_cancelled():
            await asyncio.sleep(settings.prune_seconds)
            await self._try("pruning done events", self.prune())
            if settings.keep_dead_seconds is not None:
                await self._try("pruning dead letters", self.prune_dead(settings.keep_dead_seconds))
            old = self._context.store.prune_operations(KEEP_SECONDS, _STEP)
            await self._try("pruning operations", old)

    async def _try(self, doing: str, work: Awaitable[int]) -> None:
        """Do one part of a round; an error does not keep the others back."""
        try:
            await work
        except StoreError as error:
            self._context.trouble(doing, error)
        else:
            self._context.recovered(doing)

    async def prune(self) -> int:
        """Delete everything that is old enough; returns the number of events."""
        removed = 0
        while True:
            step = await self._context.store.prune(self._context.settings.keep_done_seconds, _STEP)
            removed += step
            if step < _STEP:
                return removed
            await asyncio.sleep(0)  # let the workers in between

    async def prune_dead(self, keep_seconds: float) -> int:
        """Look at up to ten thousand dead letters and delete the old ones; returns how many.

        No index has their age: a stream with a million of them is walked in many rounds.
        """
        removed = 0
        for _ in range(_STEPS):
            step = await self._context.store.prune_dead(
                self._context.stream, keep_seconds, self._after_seq, _STEP
            )
            removed += step.removed
            self._after_seq = step.next_seq or 0
            if step.next_seq is None:
                break
            await asyncio.sleep(0)  # let the workers in between
        if removed:
            _log.info(
                "deleted %d dead letters of stream %s that were older than %g s",
                removed, self._context.stream, keep_seconds,
            )  # fmt: skip
        return removed
