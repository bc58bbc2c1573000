"""Prunes old inbox rows, so that an inbox does not grow without bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from postroom.engine.relay.context import RelayContext
from postroom.engine.service import Service, is_cancelled


class InboxPruner(Service):
    """Prunes the destination's inbox rows older than `dedup_seconds`, if it has any."""

    def __init__(
        self, context: RelayContext, forget_accepted: Callable[[float], Awaitable[int]]
    ) -> None:
        super().__init__()
        self._context = context
        self._forget_accepted = forget_accepted

    async def loop(self) -> None:
        settings = self._context.settings
        while not is_cancelled():
            await asyncio.sleep(settings.prune_seconds)
            try:
                await self._forget_accepted(settings.dedup_seconds)
            except Exception as error:  # also the driver's own errors, from within the transaction
                self._context.trouble("pruning the inbox", error)
            else:
                self._context.recovered("pruning the inbox")
