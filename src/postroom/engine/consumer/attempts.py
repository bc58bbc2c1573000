"""Attempts of messages that the broker took back before they finished, by event id.

After a lost connection, or RabbitMQ's `consumer_timeout` while a message waits for its retry, the
broker delivers the message again as if it were new. Without this memory it would never reach its
maximum of attempts.
"""

from __future__ import annotations

from collections import OrderedDict

from postroom.model.clock import Clock
from postroom.record import Record


class Attempts:
    """Remembers the last `most` such messages, in this process only."""

    def __init__(self, clock: Clock, most: int = 10_000) -> None:
        self._clock = clock
        self._most = most
        self._kept: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def keep(self, record: Record, wait_seconds: float) -> None:
        """Remember a message that was lost, and how long it still had to wait."""
        if record.attempts == 0 and wait_seconds <= 0:
            return
        self._kept[record.id] = record.attempts, self._clock.monotonic() + wait_seconds
        self._kept.move_to_end(record.id)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def recall(self, record: Record) -> tuple[Record, float]:
        """Return a message with its attempts, and the seconds it still has to wait."""
        attempts, due = self._kept.pop(record.id, (0, 0.0))
        if not attempts and not due:
            return record, 0.0
        waiting = max(0.0, due - self._clock.monotonic())
        return record._replace(attempts=max(record.attempts, attempts)), waiting
