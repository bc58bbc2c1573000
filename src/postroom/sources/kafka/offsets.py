"""Which offset of a partition may be committed: everything before it is done with.

Keys are handled side by side, so later messages end before earlier ones. Only the unbroken run
from the beginning counts: what is behind a gap comes again after a crash, and the inbox drops it.
"""

from __future__ import annotations

import threading

_TRIES, _TRY_SECONDS = 3, 0.2  # librdkafka waits half a second between two


class Partition:
    """The offsets of one assigned partition; used by the consumer's thread and by the event loop.

    Lost for good once it is revoked: an assignment of the same partition later is another object.
    """

    def __init__(self, topic: str, number: int, topic_id: str = "") -> None:
        self.topic = topic
        self.number = number
        self.topic_id = topic_id
        self.highest = -1  # the last offset that has arrived
        self._unreadable = (-1, 0, 0.0)  # an offset, how often it was tried, and when last
        self.is_lost = False
        self._lock = threading.Lock()
        self._open: dict[int, bool] = {}  # offset → done, in the order of arrival
        self._next: int | None = None  # the offset to commit, if it was not yet
        self._told: int | None = None

    def arrived(self, offset: int) -> None:
        with self._lock:
            self.highest = offset
            self._open[offset] = False

    def is_unreadable(self, offset: int, now: float) -> bool:
        """Note that a record could not be unpacked; True after several tries in a row.

        What is told of it at once again is no try of its own: it was under way already.
        """
        last, tries, when = self._unreadable
        if now < when + _TRY_SECONDS:
            return False
        tries = tries + 1 if offset == last else 1
        self._unreadable = (offset, tries, now)
        return tries >= _TRIES

    def done(self, offset: int) -> None:
        """Note that a message is done with; nothing happens if the partition is lost."""
        with self._lock:
            if self.is_lost or offset not in self._open:
                return
            self._open[offset] = True
            while self._open:
                first = next(iter(self._open))
                if not self._open[first]:
                    break
                del self._open[first]
                self._next = first + 1

    def to_commit(self) -> int | None:
        """Return the offset that is to be committed, if there is news."""
        with self._lock:
            if self._next is None or self._next == self._told:
                return None
            self._told = self._next
            return self._next

    def not_committed(self) -> None:
        """The commit failed: it is due again."""
        with self._lock:
            self._told = None

    def lose(self) -> None:
        with self._lock:
            self.is_lost = True
            self._open.clear()
