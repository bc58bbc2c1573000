"""The port to the caller's transaction: run our statement on what the caller already has.

An adapter never commits, never opens and never closes anything (W1). It is made for one call, from
the object that the caller gave.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol


class Row(NamedTuple):
    """An event as it is written: the columns of the outbox that the writer fills."""

    id: str
    stream: str
    lane: int
    key_hash: bytes
    type: str
    topic: str
    key: str | None
    aggregate_type: str | None
    aggregate_id: str | None
    payload: str | None  # JSON, as text that a person can read
    payload_bytes: bytes | None  # anything else
    content_type: str
    headers: str | None
    correlation_id: str | None
    causation_path: str | None
    schema_version: int
    kseq: int | None
    occurred_us: int
    available_us: int | None
    size: int


class Acceptance(NamedTuple):
    """A message as the inbox remembers it (S3.3, S5.4)."""

    consumer: str
    id: str
    type: str
    correlation_id: str | None


class Counter(NamedTuple):
    """The strict counter of a key (W9): `step` further numbers are wanted."""

    topic: str
    key_hash: bytes
    step: int  # negative: numbers that were not used go back


class Standing(Enum):
    """What the database says of the transaction in which messages were accepted (H2).

    HELD        it is open, and what was accepted is in it: commit it
    COMMITTED   it has been committed; what came after that is in another transaction, or in none
    LOST        it was rolled back, and another one is open: roll that back too
    LOOSE       it was rolled back, and no other is open: what came after may be committed already
    """

    HELD = "held"
    COMMITTED = "committed"
    LOST = "lost"
    LOOSE = "loose"


Proof = Acceptance | Counter
"""What a run has written: the message as done, or the counter at its number (`step`) or above."""


class Claim(NamedTuple):
    """A relay was told that a handler's transaction is committed: the proof must be in the store.

    lane, id    of the event
    """

    lane: int
    id: str
    proof: Proof


def by_place(proofs: Sequence[Proof]) -> tuple[dict[int, Acceptance], dict[int, Counter]]:
    """Return the messages and the counters among the proofs, each by its place."""
    placed = list(enumerate(proofs))
    return (
        {place: proof for place, proof in placed if isinstance(proof, Acceptance)},
        {place: proof for place, proof in placed if isinstance(proof, Counter)},
    )


class SyncTransaction(Protocol):
    """The caller's open transaction, for callers without an event loop."""

    def check(self) -> None:
        """Raise AutocommitError if the next statement is known to commit by itself (W1, W2).

        Asks nobody but the driver. Every method below that writes refuses this by itself; nothing
        has to be checked before it.
        """

    def insert(self, rows: Sequence[Row], *, whole: bool = False) -> int:
        """Write the rows in order; returns how many were new. An id that exists is left alone (W5).

        Whole: all of them, or none. 0 then says that an id exists, or that this database does not
        write several rows as one: they can still be written one by one.
        """

    def count_up(self, counters: Sequence[Counter]) -> list[int]:
        """Add to each counter and return its new value; in the order given."""

    def accept(self, acceptance: Acceptance) -> bool:
        """Record the message as done; False if it was done before (I1)."""

    def count_done(self, acceptances: Sequence[Acceptance]) -> int:
        """Return how many of these messages are done, as this transaction sees it."""

    def done_before(self, consumer: str, seconds: float, limit: int, skip: int) -> list[str]:
        """Return messages that this consumer did longer ago than that, oldest first.

        `skip` of them are passed over.
        """

    def forget(self, consumer: str, ids: Sequence[str]) -> int:
        """Forget that this consumer did these messages: after it a repeat is new."""

    def hold(self) -> None:
        """Remember which transaction this is, after the first `accept`; ask `standing` at the end.

        The adapter is then kept for as long as the transaction lasts.
        """

    def is_open(self) -> bool:
        """Say whether a transaction is open at this moment, as far as the driver knows."""

    def standing(self, proofs: Sequence[Proof]) -> Standing:
        """Say whether the transaction of `hold` is still open and has all of this in it.

        To be asked right before the commit. Raises if the database has aborted the transaction:
        the COMMIT of such a transaction may be a rollback that nobody is told of.
        """

    def after_commit(self, call: Callable[[], None]) -> bool:
        """Call back after the outermost commit, if the driver can; say whether it can."""


class AsyncTransaction(Protocol):
    """The caller's open transaction."""

    def check(self) -> None: ...
    def insert(self, rows: Sequence[Row], *, whole: bool = False) -> Awaitable[int]: ...
    def count_up(self, counters: Sequence[Counter]) -> Awaitable[list[int]]: ...
    def accept(self, acceptance: Acceptance) -> Awaitable[bool]: ...
    def count_done(self, acceptances: Sequence[Acceptance]) -> Awaitable[int]: ...
    def done_before(
        self, consumer: str, seconds: float, limit: int, skip: int
    ) -> Awaitable[list[str]]: ...
    def forget(self, consumer: str, ids: Sequence[str]) -> Awaitable[int]: ...
    def hold(self) -> Awaitable[None]: ...
    def is_open(self) -> Awaitable[bool]: ...
    def standing(self, proofs: Sequence[Proof]) -> Awaitable[Standing]: ...
    def after_commit(self, call: Callable[[], None]) -> bool: ...
