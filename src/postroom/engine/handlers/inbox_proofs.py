"""Whether the inbox rows of handlers are in the store that settles their events.

If they are, a settle checks them, so that an effect that the database has lost does not count as
done. The store's own transactions always write there. Transactions from the user may belong to
another database: postroom asks the store for the first inbox rows to find out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from postroom.broker import Outcome, Verdict
from postroom.engine.handlers.high_water import Gate
from postroom.errors import StoreError
from postroom.transaction import Acceptance, Counter, Proof

_QUESTIONS = 3

NOT_THERE = Outcome(
    Verdict.UNKNOWN, "the database has lost the transaction that its handler committed"
)


class Store(Protocol):
    """The part of a store that is used here."""

    async def holds(self, proofs: Sequence[Proof]) -> set[int]: ...


class Home:
    """Whether async and sync handlers' own transactions write to the store."""

    def __init__(self) -> None:
        self._known: dict[bool, bool] = {}
        self._asked: dict[bool, int] = {}

    def is_known(self, is_async: bool) -> bool:
        """Return whether the answer is known."""
        return is_async in self._known

    async def knows(self, is_async: bool, proof: Proof, store: Store | None) -> bool:
        """Return whether the store holds these handlers' inbox rows; asks a few times at most."""
        known = self._known.get(is_async)
        if known is not None or store is None:
            return bool(known)
        try:
            found = bool(await store.holds([proof]))
        except StoreError:  # no permission to look there, or temporarily impossible
            found = False
        self._asked[is_async] = self._asked.get(is_async, 0) + 1
        if found or self._asked[is_async] >= _QUESTIONS:
            self._known[is_async] = found
        return found


def proof_of(acceptance: Acceptance | Gate) -> Proof:
    """Return what a run writes for an event."""
    return (
        Counter(acceptance.counter, acceptance.key_hash, acceptance.number)
        if isinstance(acceptance, Gate)
        else acceptance
    )
