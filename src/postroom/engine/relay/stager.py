"""The stager makes due events ready, with the only query of an idle relay."""

from __future__ import annotations

import asyncio

from postroom.engine.relay.context import RelayContext
from postroom.engine.service import Service, is_cancelled, wait_for
from postroom.errors import StoreError
from postroom.observer import Alarm, Woken

_STEP = 1_000
_SHORTEST = 0.005
_SLOWEST = 0.1  # slow looks do not slow it down beyond this
_LOCKED = 0.1  # until due events are tried again that an application's transaction has locked
_PART = 20  # at most one part in this many of the time is spent looking


class Stager(Service):
    """Looks often while there is work, otherwise less and less often, up to the poll interval."""

    def __init__(self, context: RelayContext) -> None:
        super().__init__()
        self._context = context

    async def loop(self) -> None:
        context = self._context
        longest = context.settings.poll_seconds
        pause = _SHORTEST
        while not is_cancelled():
            began = context.clock.monotonic()
            try:
                wait = await self._look()
            except StoreError as error:
                context.trouble("looking for due events", error)
                wait = None
            else:
                context.recovered("looking for due events")
            if context.look_soon.is_set():
                context.look_soon.clear()
                pause = _SHORTEST
            else:
                pause = min(pause * 2, longest)
            nap = min(pause if wait is None else min(pause, max(wait, _SHORTEST)), longest)
            # With a backlog the workers find work without the stager: leave the database to them.
            took = context.clock.monotonic() - began
            rest = max(min(nap, _SHORTEST), min((_PART - 1) * took, _SLOWEST, longest))
            await asyncio.sleep(rest)
            if nap > rest:  # an event that just failed may be due long before the poll
                await wait_for(context.look_soon, nap - rest)

    async def _look(self) -> float | None:
        """Move due events; returns the seconds until the next one, if any."""
        context = self._context
        lanes = list(context.keeper.held)
        if not lanes or context.stopping:
            return None
        staged = await context.store.stage(context.stream, lanes, _STEP)
        context.events_seen = staged.ready
        for about, error in context.store.complaints():
            context.tell(Alarm(context.stream, about, error))
        if staged.moved or staged.ready:
            context.tell(Woken(context.stream, "poll"))
            context.wake()
        if staged.moved == _STEP:
            return 0.0
        if not staged.moved and staged.next_due_seconds == 0:
            return _LOCKED
        return staged.next_due_seconds
