"""Pauses between attempts to change rows that another transaction has locked."""

from __future__ import annotations

import asyncio

_FIRST_SECONDS = 0.002
_LONGEST_SECONDS = 0.1
_MOST_SECONDS = 5.0


class Pauses:
    """Growing pauses, five at most, within this many seconds of the first attempt."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + min(seconds, _MOST_SECONDS)
        self._pause = _FIRST_SECONDS

    async def next(self) -> bool:
        """Wait for the next attempt; False at once if it would be too late."""
        if self._loop.time() + self._pause > self._until:
            return False
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, _LONGEST_SECONDS)
        return True
