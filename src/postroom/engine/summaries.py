"""Reports once a minute what a relay or consumer has done, if it has done anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from postroom.engine.service import Service, is_cancelled
from postroom.model.clock import Clock
from postroom.observer import Fact, Summary

EVERY_SECONDS = 60.0


class Summaries(Service):
    """Compares the counts with those of the last look.

    counts    all counts since the start
    lag       the greatest delivery lag since the last call, in seconds
    """

    def __init__(
        self,
        stream: str,
        counts: Callable[[], Mapping[str, int]],
        tell: Callable[[Fact], None],
        clock: Clock,
        lag: Callable[[], float | None] = lambda: None,
    ) -> None:
        super().__init__()
        self._stream, self._counts, self._lag = stream, counts, lag
        self._tell, self._clock = tell, clock
        self._last: Mapping[str, int] = {}
        self._at = clock.monotonic()

    async def loop(self) -> None:
        while not is_cancelled():
            await asyncio.sleep(EVERY_SECONDS)
            self.look()

    def look(self) -> None:
        """Report the changes since the last look, if there are any."""
        counts, now, lag = dict(self._counts()), self._clock.monotonic(), self._lag()
        new = {name: number - self._last.get(name, 0) for name, number in counts.items()}
        if any(new.values()):
            self._tell(Summary(self._stream, now - self._at, new, lag))
        self._last, self._at = counts, now
