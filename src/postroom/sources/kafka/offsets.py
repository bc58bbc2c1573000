"""The offset of a partition that may be committed: everything before it is finished.

Keys are handled concurrently, so later messages may finish before earlier ones. Only the unbroken
run from the beginning counts: messages behind a gap are delivered again after a crash, and the
inbox drops them.
"""

from __future__ import annotations

import threading

_TRIES, _TRY_SECONDS = 3, 0.2  # librdkafka waits half a second between two


class Partition:
    """The offsets of one assigned partition; used by the consumer's thread and by the event loop.

    It is lost for good once revoked: a later assignment of the same partition is another object.
    """

    def __init__(self, topic: str, number: int, topic_id: str = "") -> None:
        self.topic = topic
        self.number = number
        self.topic_id = topic_id
        self.highest = -1  # the last offset that arrived
        self._unreadable = (-1, 0, 0.0)  # an offset, how often it was tried, and when last
        self.is_lost = False
        self._lock = threading.Lock()
        self._open: dict[int, bool] = {}  # offset → done, in order of arrival
        self._next: int | None = None  # the offset to commit, if not committed yet
        self._told: int | None = None

    def arrived(self, offset: int) -> None:
        with self._lock:
            self.highest = offset
            self._open[offset] = False

    def is_unreadable(self, offset: int, now: float) -> bool:
        """Record that a record could not be decoded; True after several attempts in a row.

        An immediate repeat does not count as an attempt: it was already under way.
        """
        last, tries, when = self._unreadable
        if now < when + _TRY_SECONDS:
            return False
        tries = tries + 1 if offset == last else 1
        self._unreadable = (offset, tries, now)
        return tries >= _TRIES

    def done(self, offset: int) -> None:
        """Record that a message is finished; has no effect if the partition is lost."""
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
        """Return the offset to commit, if it changed."""
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
