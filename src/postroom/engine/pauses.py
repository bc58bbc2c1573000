"""Growing pauses between attempts that fail, without input or output."""

from __future__ import annotations


class Pauses:
    """Each pause is twice the last, up to the longest; a success begins again with the first."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first, self._longest = first_seconds, longest_seconds
        self._next = first_seconds

    def grow(self) -> float:
        """Return the seconds to pause after one more failure."""
        pause, self._next = self._next, min(self._next * 2, self._longest)
        return pause

    def reset(self) -> None:
        """An attempt has succeeded."""
        self._next = self._first
