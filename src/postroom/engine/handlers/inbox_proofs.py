"""Whether the notes of handlers are in the store that settles their events.

Where they are, a settle asks for them, so that an effect which the database has lost since is not
taken for done. In the store's own transactions they are. With transactions of your own they may be
in another database: the first effects tell, by a question to the store.
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
    """What is asked."""

    async def holds(self, proofs: Sequence[Proof]) -> set[int]: ...


class Home:
    """What is known of the transactions that async and sync handlers were given."""

    def __init__(self) -> None:
        self._known: dict[bool, bool] = {}
        self._asked: dict[bool, int] = {}

    def is_known(self, is_async: bool) -> bool:
        """Say whether nothing needs to be asked any more."""
        return is_async in self._known

    async def knows(self, is_async: bool, proof: Proof, store: Store | None) -> bool:
        """Say whether the store holds what these handlers write; asks at most a few times."""
        known = self._known.get(is_async)
        if known is not None or store is None:
            return bool(known)
        try:
            found = bool(await store.holds([proof]))
        except StoreError:  # it may not look there, or cannot now
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
