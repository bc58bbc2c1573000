"""The circuit breaker of a stream: while its destination is unreachable, no attempts are spent."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal

BreakerState = Literal["closed", "open", "trying"]


class Breaker:
    """closed: events are sent. open: nothing is sent before `retry_at`. trying: each worker may
    send one event.

    Decisions only; the caller passes the time.
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
        """Report that the destination is unreachable; True if this is a change."""
        self.error = error
        if self.state == "open":
            return False
        news = self.state == "closed"
        self.failed_again(now)
        return news

    def failed_again(self, now: float) -> None:
        """Report that an attempt failed: wait, longer each time."""
        self._trips += 1
        pause = min(self._longest, self._first * 2.0 ** min(self._trips - 1, 32))
        self.retry_at = now + pause * (0.5 + self._jitter() / 2)
        self.state = "open"

    def answered(self) -> bool:
        """Report that the destination answered; True if this is a change."""
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
            self.retry_at = now + self._longest  # in case the current try never ends
            self._tried.clear()
        if self.state == "trying" and who not in self._tried:
            self._tried.add(who)
            return 1
        return 0

    def untried(self, who: int) -> None:
        """The worker had no event to try, or learned nothing from it: another worker may try."""
        self._tried.discard(who)

    @property
    def is_closed(self) -> bool:
        return self.state == "closed"
