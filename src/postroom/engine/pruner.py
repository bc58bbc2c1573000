"""The pruner removes done events that people no longer need to see, in small steps."""

from __future__ import annotations

import asyncio

from postroom.engine.office import Office
from postroom.engine.service import Service
from postroom.errors import StoreError

_STEP = 1_000


class Pruner(Service):
    """Deletes done events older than `keep_done_seconds`, a thousand at a time."""

    def __init__(self, office: Office) -> None:
        super().__init__()
        self._office = office

    async def loop(self) -> None:
        settings = self._office.settings
        while True:
            await asyncio.sleep(settings.prune_seconds)
            try:
                await self.prune()
            except StoreError as error:
                self._office.trouble("pruning done events", error)

    async def prune(self) -> int:
        """Delete all that is old enough; returns how many events went."""
        removed = 0
        while True:
            step = await self._office.store.prune(self._office.settings.keep_done_seconds, _STEP)
            removed += step
            if step < _STEP:
                return removed
            await asyncio.sleep(0)  # let the workers in between
