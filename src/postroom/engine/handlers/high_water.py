"""The high-water mark of strict keys: effects happen once, without a deduplication window (I4).

A strict outbox numbers the events of a key without a gap. A consumer that stores the last number it
has done, in the transaction of the effect, needs nothing else: the next number is new, a lower one
is a repeat however old, and a higher one means that events are missing.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Literal, NamedTuple

from postroom.errors import TransactionError
from postroom.event import MAX_TOPIC_BYTES
from postroom.record import Record
from postroom.transaction import AsyncTransaction, Counter, SyncTransaction
from postroom.transactions.steps import Steps

Start = Literal["current", "first"]


class Gate(NamedTuple):
    """The number of an event, and the counter of its key."""

    counter: str
    key_hash: bytes
    number: int
    start: Start


class GapError(TransactionError):
    """Events of the key before this one are missing."""


def gate_of(consumer: str, record: Record, start: Start) -> Gate | None:
    """Return the gate of an event; None if it has no number.

    The counter belongs to (consumer, outbox, topic, key): a restored outbox counts from the
    beginning (W9), and its id is part of the name.
    """
    if record.kseq is None:
        return None
    name = f"in/{consumer}/{record.stream}/{record.topic}"
    if len(name.encode()) > MAX_TOPIC_BYTES:
        name = "in/" + sha256(name.encode()).hexdigest()
    return Gate(name, record.key_hash, record.kseq, start)


def admit(tx: AsyncTransaction | SyncTransaction, gate: Gate) -> Steps[bool]:
    """Move the mark to this event's number; False: it was done before. Raises GapError.

    The counter's row is locked until the transaction ends, so concurrent repeats take turns.
    """
    name, key_hash, number, start = gate
    (value,) = yield tx.count_up([Counter(name, key_hash, 1)])
    if value == number:
        return True
    if value > number:
        yield tx.count_up([Counter(name, key_hash, -1)])
        return False
    if value == 1 and start == "current":  # the first event of the key that this consumer receives
        yield tx.count_up([Counter(name, key_hash, number - 1)])
        return True
    raise GapError(
        f"number {number} of its key arrived after number {value - 1}: the events between "
        "are missing. "
        "Replay or skip them at the sender, and bury this message until they have arrived"
    )
