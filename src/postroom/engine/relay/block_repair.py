"""Repairs blocks from the stored state, beside the heartbeat, because it may take long (B4)."""

from __future__ import annotations

import asyncio
import math

from postroom.engine.relay.context import RelayContext
from postroom.engine.service import Service, is_cancelled
from postroom.errors import StoreError
from postroom.model.pauses import Pauses

_STEP = 100
_TRIES = 5
_FIRST_PAUSE = 0.2


class BlockRepair(Service):
    """Repairs the lanes that the heartbeat asks for: those just taken, and all of them
    periodically.

    Until a lane is repaired, a key that could go on may wait there; nothing is sent too early.
    """

    def __init__(self, context: RelayContext) -> None:
        super().__init__()
        self._context = context

    async def loop(self) -> None:
        context = self._context
        while not is_cancelled():
            await context.repair_blocks.wait()
            context.repair_blocks.clear()
            lanes, context.to_repair = context.to_repair, set()
            context.repairing = True
            await self._repair_patiently(lanes)
            context.repairing = False
            context.wake()

    async def _repair_patiently(self, lanes: set[int]) -> None:
        """Repair; after several errors in a row it is left to the next time."""
        context, pauses = self._context, Pauses(_FIRST_PAUSE, math.inf)
        for _ in range(_TRIES):
            try:
                await self._repair(lanes)
            except StoreError as error:
                context.trouble("mending blocks", error)
                await asyncio.sleep(pauses.grow())
            else:
                context.recovered("mending blocks")
                return

    async def _repair(self, lanes: set[int]) -> None:
        context = self._context
        while tokens := context.keeper.tokens(lanes):
            if (
                await context.store.repair_blocks(context.stream, context.owner, tokens, _STEP)
                < _STEP
            ):
                return
