"""The stager brings what has become due, and asks the one question of an idle relay."""

from __future__ import annotations

import asyncio

from postroom.engine.office import Office, wait_for
from postroom.engine.pauses import Pauses
from postroom.engine.service import Service
from postroom.errors import StoreError
from postroom.observer import Alarm, Woke

_STEP = 1_000
_SHORTEST = 0.005
_SLOWEST = 0.1  # looks that take long make it no slower than this
_PART = 20  # one part in so many of the time may go into looking
_WATCH_AGAIN, _WATCH_LATER = 1.0, 10.0  # after an error, and after many


class Stager(Service):
    """Looks often while there is work, and ever less often, up to the poll interval, when not."""

    def __init__(self, office: Office) -> None:
        super().__init__()
        self._office = office

    async def loop(self) -> None:
        office = self._office
        longest = office.settings.poll_seconds
        pause = _SHORTEST
        while True:
            began = office.clock.monotonic()
            try:
                wait = await self._look()
            except StoreError as error:
                office.trouble("looking for due events", error)
                wait = None
            if office.nudge.is_set():
                office.nudge.clear()
                pause = _SHORTEST
            else:
                pause = min(pause * 2, longest)
            nap = min(pause if wait is None else min(pause, max(wait, _SHORTEST)), longest)
            # With a backlog the workers find what to do by themselves: the database is for them.
            took = office.clock.monotonic() - began
            rest = max(min(nap, _SHORTEST), min((_PART - 1) * took, _SLOWEST, longest))
            await asyncio.sleep(rest)
            if nap > rest:  # an event that failed just now may be due long before the poll
                await wait_for(office.nudge, nap - rest)

    async def _look(self) -> float | None:
        """Move what is due; returns the seconds until the next one, if any."""
        office = self._office
        lanes = list(office.keeper.held)
        if not lanes or office.stopping:
            return None
        staged = await office.store.stage(office.stream, lanes, _STEP)
        office.events_seen = staged.ready
        for about, error in getattr(office.store, "complaints", tuple)():
            office.tell(Alarm(office.stream, about, error))
        if staged.moved or staged.ready:
            office.tell(Woke(office.stream, "poll"))
            office.wake()
        return 0.0 if staged.moved == _STEP else staged.next_due_seconds


class Watcher(Service):
    """Wakes the relay when the store says that something was committed."""

    def __init__(self, office: Office) -> None:
        super().__init__()
        self._office = office

    async def loop(self) -> None:
        office, pauses = self._office, Pauses(_WATCH_AGAIN, _WATCH_LATER)
        while True:
            try:
                if await office.store.wait_for_change(60.0):
                    office.tell(Woke(office.stream, "change"))
                    office.wake()
                pauses.reset()
            except StoreError as error:
                office.trouble("waiting for changes", error)
                await asyncio.sleep(pauses.grow())
