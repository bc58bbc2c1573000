"""Picks from a batch the events to handle next: the first of each key, alone or together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import ceil
from typing import Literal

from postroom.record import Record

TransactionKind = Literal["async", "sync"]
Key = deque[Record]  # the events of one key, in order


class KeyBatches:
    """Returns keys whose first events may share a transaction, until all events are done.

        transaction_kind   of an event: those of one kind can share; None: it needs its own
    most               maximum number of events in a transaction
    places             number of concurrent transactions, among which the keys are divided
    """

    def __init__(
        self,
        batch: Sequence[Record],
        transaction_kind: Callable[[Record], TransactionKind | None],
        most: int,
        places: int,
    ) -> None:
        self._transaction_kind = transaction_kind
        self._waiting: dict[TransactionKind | None, deque[Key]] = {}
        self.outage = False  # start nothing more
        keys: dict[bytes, Key] = {}
        for record in batch:
            keys.setdefault(record.key_hash, deque()).append(record)
        for key in keys.values():
            self._line(key).append(key)
        self.workers = min(places, len(keys))
        self._most = min(most, ceil(len(keys) / places))

    def take(self) -> list[Key]:
        """Return keys whose first events are handled together; a single one if it needs its own
        transaction.
        """
        for transaction_kind, line in self._waiting.items():
            if line:
                most = 1 if transaction_kind is None else self._most
                return [line.popleft() for _ in range(min(most, len(line)))]
        return []

    def put_back(self, key: Key) -> None:
        """The first event of the key is done; the next one can be handled at once."""
        self._line(key).appendleft(key)

    def _line(self, key: Key) -> deque[Key]:
        return self._waiting.setdefault(self._transaction_kind(key[0]), deque())
