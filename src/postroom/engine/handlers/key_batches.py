"""What of a batch can be handled now: the first event of each key, alone or with company."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import ceil
from typing import Literal

from postroom.record import Record

TransactionKind = Literal["async", "sync"]
Key = deque[Record]  # the events of one key, in order


class KeyBatches:
    """Hands out keys, whose first events may share a transaction, until all of them are done.

    company     with whom an event can share; None: it needs its own transaction
    most        so many share one
    places      so many transactions go on side by side: the keys are shared out among them
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
        self.outage = False  # nothing further is to be begun
        keys: dict[bytes, Key] = {}
        for record in batch:
            keys.setdefault(record.key_hash, deque()).append(record)
        for key in keys.values():
            self._line(key).append(key)
        self.workers = min(places, len(keys))
        self._most = min(most, ceil(len(keys) / places))

    def take(self) -> list[Key]:
        """Return keys whose first events go together: one, if it needs its own transaction."""
        for transaction_kind, line in self._waiting.items():
            if line:
                most = 1 if transaction_kind is None else self._most
                return [line.popleft() for _ in range(min(most, len(line)))]
        return []

    def put_back(self, key: Key) -> None:
        """Its first event is done; the next of them can go at once."""
        self._line(key).appendleft(key)

    def _line(self, key: Key) -> deque[Key]:
        return self._waiting.setdefault(self._transaction_kind(key[0]), deque())
