"""Wakes the relay when another process has committed an event."""

from __future__ import annotations

import asyncio

from postroom.engine.relay.context import RelayContext
from postroom.engine.service import Service, is_cancelled
from postroom.errors import StoreError
from postroom.model.pauses import Pauses
from postroom.observer import Woken

_WATCH_AGAIN, _WATCH_LATER = 1.0, 10.0  # after an error, and after many


class Watcher(Service):
    """Wakes the relay when the store reports a commit."""

    def __init__(self, context: RelayContext) -> None:
        super().__init__()
        self._context = context

    async def loop(self) -> None:
        context, pauses = self._context, Pauses(_WATCH_AGAIN, _WATCH_LATER)
        while not is_cancelled():
            try:
                if await context.store.wait_for_change(60.0):
                    context.tell(Woken(context.stream, "change"))
                    context.wake()
                pauses.reset()
                context.recovered("waiting for changes")
            except StoreError as error:
                context.trouble("waiting for changes", error)
                await asyncio.sleep(pauses.grow())
