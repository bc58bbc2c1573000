"""The pause of a source before it reconnects: longer after each loss."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pauses:
    """Pauses between connection attempts, in seconds.

    The first pause is `first`; each further one is twice as long, up to `longest`. A new connection
    alone does not reset it: a message may end it over and over. A connection that lasts for
    `steady` does.
    """

    def __init__(
        self,
        first: float = 0.1,
        longest: float = 10.0,
        steady: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first = first
        self._longest = longest
        self._steady = steady
        self._clock = clock
        self._next = first
        self._connected_at: float | None = None

    def connected(self) -> None:
        """Record that a connection was opened."""
        self._connected_at = self._clock()

    def after_loss(self) -> float:
        """Return the next pause; call it once for each loss and each failed attempt."""
        began, self._connected_at = self._connected_at, None
        if began is not None and self._clock() - began >= self._steady:
            self._next = self._first
        pause, self._next = self._next, min(self._next * 2, self._longest)
        return pause
