"""Pauses between attempts to change rows that another transaction has locked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from postroom.errors import StoreLockedError
from postroom.model.pauses import Pauses

_FIRST_SECONDS = 0.002
_LONGEST_SECONDS = 0.1
_MOST_SECONDS = 5.0
_LEAVE_SECONDS = 2.0


class LockPauses:
    """Growing pauses, until this many seconds after the first attempt; 5 seconds at most."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + min(seconds, _MOST_SECONDS)
        self._pauses = Pauses(_FIRST_SECONDS, _LONGEST_SECONDS)

    async def next(self) -> bool:
        """Wait for the next attempt; False at once if it would come too late."""
        pause = self._pauses.grow()
        if self._loop.time() + pause > self._until:
            return False
        await asyncio.sleep(pause)
        return True


async def until_released(release: Callable[[], Awaitable[Collection[int]]]) -> None:
    """Call `release`, which returns the lanes that are still locked, until there are none.

    The call of a relay that stops may have been cancelled: the server needs a moment to notice that
    the connection is closed, and holds the locks until then. Raises StoreLockedError after 2 s.
    """
    pauses = LockPauses(_LEAVE_SECONDS)
    while left := await release():
        if not await pauses.next():
            raise still_locked(left)


def still_locked(lanes: Collection[int]) -> StoreLockedError:
    """Return the error of a `leave` that could not release these lanes."""
    listed = ", ".join(map(str, sorted(lanes)))
    return StoreLockedError(f"lanes {listed} are locked by another transaction")
