"""Delivery: waits until events are done, by looking at the store, and by what a relay reports.

An event that was seen and is gone counts as done: with `keep_done_seconds=0` done events are
deleted at once. An event that was never seen is an error: most likely its transaction was not
committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from postroom.errors import NotDeliveredError, NotFoundError, StoreError
from postroom.lookup import Standing
from postroom.model.durations import Seconds, to_seconds
from postroom.model.pauses import Pauses
from postroom.record import State

_STEP = 500  # ids of one query
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5
_ENDED = (State.DEAD, State.EXPIRED, State.CANCELLED)


class LookUp(Protocol):
    """A store, as far as it is asked here."""

    async def look_up(self, ids: Sequence[str]) -> Mapping[str, Standing]: ...


class Watch:
    """The events that one caller waits for.

    open        id → last known state, of events that have not ended
    ended       id → state, of events that ended without being done
    """

    def __init__(self, ids: Iterable[str]) -> None:
        names = [ids] if isinstance(ids, str) else list(ids)
        if not all(isinstance(name, str) for name in names):
            raise TypeError("ids must be texts: [event.id for event in events]")
        self.open: dict[str, str] = dict.fromkeys(names, "")
        self.ended: dict[str, str] = {}
        self._changed = asyncio.Event()

    def confirm(self, ids: Iterable[str]) -> None:
        """These events are done; ids that are not watched are ignored."""
        for name in ids:
            if self.open.pop(name, None) is not None:
                self._changed.set()

    async def look(self, store: LookUp, *, committed: bool) -> None:
        """Look at the open events once. Raises NotFoundError if one of them was never seen."""
        names = list(self.open)
        for start in range(0, len(names), _STEP):
            step = names[start : start + _STEP]
            found = await store.look_up(step)
            for name in step:
                if name not in self.open:  # confirmed meanwhile
                    continue
                state = found[name].state if name in found else None
                if state is None and not committed and not self.open[name]:
                    raise NotFoundError(_NEVER_SEEN.format(name))
                if state in _ENDED:
                    self.ended[name] = str(state)
                if state in (None, State.DONE, *_ENDED):
                    del self.open[name]
                else:
                    self.open[name] = str(state)

    async def pause(self, seconds: float) -> None:
        """Wait this long, or until an event is confirmed."""
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()


_NEVER_SEEN = (
    "there is no event with id {!r} in the outbox. Wait for it after the commit of its "
    "transaction, with the store of that database. If done events are deleted at once "
    "(keep_done_seconds=0), pass committed=True: an event that is gone then counts as done"
)


async def until_done(
    store: LookUp,
    watch: Watch,
    timeout: Seconds | None,  # noqa: ASYNC109 - the error names the events that still wait
    *,
    committed: bool,
) -> None:
    """Return when all events are done. Raises NotDeliveredError and NotFoundError.

    While the store is unreachable, it is asked again, with growing pauses, until the timeout.
    """
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + to_seconds(timeout)
    pauses = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
    trouble: StoreError | None = None
    while True:
        try:
            await watch.look(store, committed=committed)
            trouble = None
        except StoreError as error:
            trouble = error
        left = None if deadline is None else deadline - loop.time()
        if not watch.open or (left is not None and left <= 0):
            break
        pause = pauses.grow()
        await watch.pause(pause if left is None else min(pause, left))
    if watch.open or watch.ended:
        raise NotDeliveredError({**watch.ended, **watch.open}, waiting=watch.open) from trouble
