"""Pauses between attempts to change rows that another transaction has locked."""

from __future__ import annotations

import asyncio

from postroom.model.pauses import Pauses

_FIRST_SECONDS = 0.002
_LONGEST_SECONDS = 0.1
_MOST_SECONDS = 5.0


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
