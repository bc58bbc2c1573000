"""Whether the transaction of a pymongo session is still the one in which messages were accepted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bson.int64 import Int64

from postroom.transaction import Acceptance, Counter, Proof, Standing
from postroom.transactions.mongo.documents import counter_id, inbox_id
from postroom.transactions.steps import Steps


def transaction_of(session: Any) -> int | None:
    """Return the number of the session's transaction; None if none is open."""
    if session.has_ended or not session.in_transaction:
        return None
    # pymongo shows nowhere else which transaction it is.
    return int(session._server_session.transaction_id)  # noqa: SLF001 - see above


def standing(
    session: Any, collection: Callable[[str], Any], held: int | None, proofs: Sequence[Proof]
) -> Steps[Standing]:
    """Look for what was written. The server refuses this in a transaction that it has aborted.

    One operation more for a transaction. Where the settle is part of the same transaction it can
    take the place of this one.
    """
    number = transaction_of(session)
    usable = None if session.has_ended else session
    present = yield from _are_there(usable, collection, proofs)
    if number is not None and number == held:
        return Standing.HELD if present else Standing.LOST
    return Standing.COMMITTED if present else Standing.LOOSE


def _are_there(
    session: Any, collection: Callable[[str], Any], proofs: Sequence[Proof]
) -> Steps[bool]:
    acceptances = [proof for proof in proofs if isinstance(proof, Acceptance)]
    if acceptances:
        ids = [inbox_id(each.consumer, each.id) for each in acceptances]
        done = {"_id": {"$in": ids}, "status": "done"}
        if (yield collection("inbox").count_documents(done, session=session)) < len(acceptances):
            return False
    for counter in proofs:
        if isinstance(counter, Counter):
            wanted = {
                "_id": counter_id(counter.topic, counter.key_hash),
                "last": {"$gte": Int64(counter.step)},
            }
            if (yield collection("counter").find_one(wanted, session=session)) is None:
                return False
    return True
