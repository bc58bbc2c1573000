"""Growing pauses between attempts that fail, without input or output."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pauses:
    """Each pause is twice the last, up to the longest; a success begins again with the first.

    A connection alone may be no success: what it brings may end it, over and over. `connected`
    begins again only if the connection lasts for `steady_seconds`.
    """

    def __init__(
        self,
        first_seconds: float,
        longest_seconds: float,
        *,
        steady_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first, self._longest = first_seconds, longest_seconds
        self._next = first_seconds
        self._steady, self._clock = steady_seconds, clock
        self._connected_at: float | None = None

    def grow(self) -> float:
        """Return the seconds to pause after one more failure."""
        began, self._connected_at = self._connected_at, None
        if began is not None and self._clock() - began >= self._steady:
            self._next = self._first
        pause, self._next = self._next, min(self._next * 2, self._longest)
        return pause

    def reset(self) -> None:
        """An attempt has succeeded."""
        self._next = self._first

    def connected(self) -> None:
        """A connection has been made; how long it lasts is seen at the next failure."""
        self._connected_at = self._clock()
