"""The pruner deletes old done events, in small steps."""

from __future__ import annotations

import asyncio

from postroom.engine.relay.context import RelayContext
from postroom.engine.service import Service, is_cancelled
from postroom.errors import StoreError

_STEP = 1_000


class Pruner(Service):
    """Deletes done events older than `keep_done_seconds`, a thousand at a time."""

    def __init__(self, context: RelayContext) -> None:
        super().__init__()
        self._context = context

    async def loop(self) -> None:
        settings = self._context.settings
        while not is_cancelled():
            await asyncio.sleep(settings.prune_seconds)
            try:
                await self.prune()
            except StoreError as error:
                self._context.trouble("pruning done events", error)
            else:
                self._context.recovered("pruning done events")

    async def prune(self) -> int:
        """Delete everything that is old enough; returns the number of events."""
        removed = 0
        while True:
            step = await self._context.store.prune(self._context.settings.keep_done_seconds, _STEP)
            removed += step
            if step < _STEP:
                return removed
            await asyncio.sleep(0)  # let the workers in between
