"""Reports calls to the store that fail, and the first success after that, by the name of the call.

The engine retries a failed call with growing pauses. Observers are told of every failure, and once
that the call works again: a log needs one line for the beginning and one for the end.
"""

from __future__ import annotations

from collections.abc import Callable

from postroom.observer import Fact, StoreRecovered, StoreTrouble
from postroom.record import short_error


class StoreCalls:
    """The calls of one relay or consumer that are failing."""

    def __init__(self, tell: Callable[[Fact], None]) -> None:
        self._tell = tell
        self._failing: dict[str, None] = {}

    def failed(self, stream: str, doing: str, error: BaseException) -> None:
        self._failing[doing] = None
        self._tell(StoreTrouble(stream, doing, short_error(error)))

    def succeeded(self, stream: str, doing: str) -> None:
        """Report that calls whose name begins with this work again, if any of them failed."""
        if not self._failing:
            return
        for each in [name for name in self._failing if name.startswith(doing)]:
            del self._failing[each]
            self._tell(StoreRecovered(stream, each))
