"""Forgetting what was handled long ago, so that an inbox does not grow for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from postroom.engine.relay.context import RelayContext
from postroom.engine.service import Service


class InboxPruner(Service):
    """Lets the destination forget messages older than `dedup_seconds`, if it keeps an inbox."""

    def __init__(
        self, context: RelayContext, forget_accepted: Callable[[float], Awaitable[int]]
    ) -> None:
        super().__init__()
        self._context = context
        self._forget_accepted = forget_accepted

    async def loop(self) -> None:
        settings = self._context.settings
        while True:
            await asyncio.sleep(settings.prune_seconds)
            try:
                await self._forget_accepted(settings.dedup_seconds)
            except Exception as error:  # also the driver's own, from within the transaction
                self._context.trouble("forgetting old messages", error)
