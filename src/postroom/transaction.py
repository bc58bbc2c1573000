"""Transaction: the port to the caller's open transaction.

An adapter never commits, opens or closes anything (W1). It is created for one call, from the
caller's connection or session.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from enum import Enum
from typing import Any, NamedTuple, Protocol

from postroom.errors import TransactionError


class Row(NamedTuple):
    """The columns of the outbox that the writer fills."""

    id: str
    stream: str
    lane: int
    key_hash: bytes
    type: str
    topic: str
    key: str | None
    aggregate_type: str | None
    aggregate_id: str | None
    payload: str | None  # JSON as text
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
    causation_id: str | None = None
    options: str | None = None  # JSON; see Record
    expires_us: int | None = None


class Acceptance(NamedTuple):
    """An inbox row: a message accepted by a consumer."""

    consumer: str
    id: str
    type: str
    correlation_id: str | None


class Counter(NamedTuple):
    """The strict counter of a key (W9), to be advanced by `step` numbers."""

    topic: str
    key_hash: bytes
    step: int  # negative: returns unused numbers


class Standing(Enum):
    """The state, according to the database, of the transaction that accepted messages (H2).

    HELD        it is open and contains the accepted messages: commit it
    COMMITTED   it was committed; later statements are in another transaction, or in none
    LOST        it does not contain them any more, and nothing was committed: roll it back
    LOOSE       it was rolled back. Later statements may be committed: no database tells what a
                connection has committed since
    """

    HELD = "held"
    COMMITTED = "committed"
    LOST = "lost"
    LOOSE = "loose"


Proof = Acceptance | Counter
"""A row that a handler's run wrote: the accepted message, or the counter at `step` or above."""


class Claim(NamedTuple):
    """A handler reported its transaction as committed: the proof must exist in the store.

    lane, id    of the event
    """

    lane: int
    id: str
    proof: Proof


def by_place(proofs: Sequence[Proof]) -> tuple[dict[int, Acceptance], dict[int, Counter]]:
    """Return the messages and the counters among the proofs, each by position."""
    placed = list(enumerate(proofs))
    return (
        {place: proof for place, proof in placed if isinstance(proof, Acceptance)},
        {place: proof for place, proof in placed if isinstance(proof, Counter)},
    )


class SyncTransaction(Protocol):
    """The caller's open transaction, for callers without an event loop.

    An adapter of your own inherits from this class, or from AsyncTransaction, for the defaults.
    """

    def check(self) -> None:
        """Raise AutocommitError if the driver is known to be in autocommit mode (W1, W2).

        Checks the driver's state only. The writing methods below check it too, so that callers
        need not call this first.
        """

    def insert(self, rows: Sequence[Row], *, whole: bool = False) -> int:
        """Insert rows in order; returns how many were new. Existing ids are not changed (W5).

        With `whole`, all rows are inserted or none. 0 then means that an id exists, or that the
        database does not support atomic multi-row inserts: insert the rows one by one.
        """

    def count_up(self, counters: Sequence[Counter]) -> list[int]:
        """Add to each counter and return its new value; in the order given."""

    def cancel(self, event_id: str) -> str | None:  # noqa: ARG002
        """Cancel an event that waits for its first attempt; returns its stream.

        None: it was not changed, because there is no such event, or because it was due, and a relay
        may have read it. The decision and the change are atomic (L2): no relay reads it between.
        By default TransactionError.
        """
        raise _cannot(self, "cancel")

    def reschedule(self, event_id: str, at_us: int) -> str | None:  # noqa: ARG002
        """Change the time of an event that waits for its first attempt; returns its stream.

        None as with `cancel`, or because it would expire before. It waits for the stager even if
        the time has passed (R6). By default TransactionError.
        """
        raise _cannot(self, "reschedule")

    def accept(self, acceptance: Acceptance) -> bool:
        """Record the message as handled; False if it already was (I1)."""

    def count_done(self, acceptances: Sequence[Acceptance]) -> int:
        """Return how many of these messages are handled, in this transaction's snapshot."""

    def done_before(self, consumer: str, seconds: float, limit: int, skip: int) -> list[str]:
        """Return ids of messages that this consumer handled longer ago than that, oldest first.

        The first `skip` of them are left out.
        """

    def forget(self, consumer: str, ids: Sequence[str]) -> int:
        """Delete these inbox rows of a consumer; a redelivered message is then new."""

    def hold(self, earlier: Sequence[Proof]) -> bool:
        """Record the identity of this transaction, after the first `accept`, for `standing`.

        The adapter is then kept until the transaction ends. After a later `accept` it returns
        whether this is still that transaction; `earlier` is what was written before.
        """

    def is_open(self) -> bool:
        """Return whether a transaction is open, as far as the driver knows."""

    def standing(self, proofs: Sequence[Proof]) -> Standing:
        """Return whether the transaction of `hold` is still open and contains these proofs.

        Call it right before the commit. Raises if the database has aborted the transaction: its
        COMMIT may be a silent rollback.
        """

    def after_commit(self, call: Callable[[], None]) -> bool:
        """Call back after the outermost commit; returns False if the driver cannot."""

    @property
    def target(self) -> Any:
        """The object that holds the transaction, where the caller passed a proxy of it.

        By default the transaction itself.
        """
        return self

    def stored(self, ids: Sequence[str]) -> set[str] | None:
        """Return which of these ids, which `insert` did not all take, are in the outbox.

        None: this user may not look. By default all: no other reason is known.
        """
        return set(ids)

    def open(self) -> AbstractContextManager[None]:
        """Begin a transaction on the caller's object; commit at the end, or roll back on an error.

        By default TransactionError: the caller's object is a transaction itself.
        """
        raise _is_one_already(self)


class AsyncTransaction(Protocol):
    """The caller's open transaction."""

    def check(self) -> None: ...
    def insert(self, rows: Sequence[Row], *, whole: bool = False) -> Awaitable[int]: ...
    def count_up(self, counters: Sequence[Counter]) -> Awaitable[list[int]]: ...

    async def cancel(self, event_id: str) -> str | None:  # noqa: ARG002
        raise _cannot(self, "cancel")

    async def reschedule(self, event_id: str, at_us: int) -> str | None:  # noqa: ARG002
        raise _cannot(self, "reschedule")

    def accept(self, acceptance: Acceptance) -> Awaitable[bool]: ...
    def count_done(self, acceptances: Sequence[Acceptance]) -> Awaitable[int]: ...
    def done_before(
        self, consumer: str, seconds: float, limit: int, skip: int
    ) -> Awaitable[list[str]]: ...
    def forget(self, consumer: str, ids: Sequence[str]) -> Awaitable[int]: ...
    def hold(self, earlier: Sequence[Proof]) -> Awaitable[bool]: ...
    def is_open(self) -> Awaitable[bool]: ...
    def standing(self, proofs: Sequence[Proof]) -> Awaitable[Standing]: ...
    def after_commit(self, call: Callable[[], None]) -> bool: ...

    @property
    def target(self) -> Any:
        return self

    async def stored(self, ids: Sequence[str]) -> set[str] | None:
        return set(ids)

    def open(self) -> AbstractAsyncContextManager[None]:
        raise _is_one_already(self)


def _cannot(transaction: object, verb: str) -> TransactionError:
    return TransactionError(
        f"{type(transaction).__qualname__} cannot {verb} events: its adapter has no method for it"
    )


def _is_one_already(transaction: object) -> TransactionError:
    return TransactionError(
        f"{type(transaction).__qualname__} is already a transaction: add to it directly"
    )
