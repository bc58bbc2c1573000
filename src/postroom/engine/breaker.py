"""The circuit breaker of a stream: when its destination is away, nobody's attempts are spent."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal

BreakerState = Literal["closed", "open", "trying"]


class Breaker:
    """closed: all goes. open: nothing before `retry_at`. trying: each worker may send one event.

    Decisions only; the caller brings the time.
    """

    def __init__(
        self, first: float, longest: float, jitter: Callable[[], float] = random.random
    ) -> None:
        self._first = first
        self._longest = longest
        self._jitter = jitter
        self._trips = 0
        self.state: BreakerState = "closed"
        self.retry_at = 0.0
        self.error = ""
        self._tried: set[int] = set()

    def outage(self, error: str, now: float) -> bool:
        """Report that the destination is away; True if this is news."""
        self.error = error
        if self.state == "open":
            return False
        news = self.state == "closed"
        self.failed_again(now)
        return news

    def failed_again(self, now: float) -> None:
        """A try has failed, or was the first to: wait, longer each time."""
        self._trips += 1
        pause = min(self._longest, self._first * 2.0 ** min(self._trips - 1, 32))
        self.retry_at = now + pause * (0.5 + self._jitter() / 2)
        self.state = "open"

    def answered(self) -> bool:
        """Report that the destination gave an answer; True if this is news."""
        if self.state == "closed":
            return False
        self.state, self._trips, self.error = "closed", 0, ""
        return True

    def room(self, wanted: int, now: float, who: int) -> int:
        """Return how many events worker `who` may send now: all, none, or one to try."""
        if self.state == "closed":
            return wanted
        if now >= self.retry_at:
            self.state = "trying"
            self.retry_at = now + self._longest  # if what is tried now never comes back
            self._tried.clear()
        if self.state == "trying" and who not in self._tried:
            self._tried.add(who)
            return 1
        return 0

    def untried(self, who: int) -> None:
        """The worker found no event to try with, or its end told nothing: the next one may go."""
        self._tried.discard(who)

    @property
    def is_closed(self) -> bool:
        return self.state == "closed"
