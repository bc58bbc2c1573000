"""The steps that write rows which may exist, numbered or not, in any transaction."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal

from postroom.errors import DuplicateEventError, NumberTakenError
from postroom.transaction import AsyncTransaction, Counter, Row, SyncTransaction
from postroom.transactions.steps import Steps

OnDuplicate = Literal["raise", "ignore"]


def refuse(
    tx: AsyncTransaction | SyncTransaction, ids: Sequence[str], on_duplicate: OnDuplicate = "raise"
) -> Steps[None]:
    """Raise the error for ids that were not all new. Known duplicates may be ignored."""
    there: set[str] | None = yield tx.stored(ids)
    if there is None:
        raise DuplicateEventError(ids, certain=False)
    lost = [name for name in ids if name not in there]
    if lost:
        raise NumberTakenError(lost)
    if on_duplicate == "raise":
        raise DuplicateEventError(ids)


def insert_new(tx: AsyncTransaction | SyncTransaction, rows: list[Row]) -> Steps[list[str]]:
    """Write the rows that are new; returns the ids of the others."""
    if (yield tx.insert(rows, whole=True)):
        return []
    duplicates: list[str] = []
    for row in rows:
        is_new = len(rows) > 1 and (yield tx.insert([row]))
        if not is_new:
            duplicates.append(row.id)
    return duplicates


def insert_strict(tx: AsyncTransaction | SyncTransaction, rows: list[Row]) -> Steps[list[str]]:
    """Write rows numbered within their keys without gaps (W9); returns duplicate ids.

    All writers lock counters in the same order, which avoids deadlocks. Only written rows use a
    number: the numbers of duplicates are returned to the counter, which this transaction still
    holds locked.
    """
    tally = Tally((row.topic, row.key_hash) for row in rows)
    keys = sorted(tally)
    values: list[int] = yield tx.count_up([Counter(*key, tally[key]) for key in keys])
    last = {key: value - tally[key] for key, value in zip(keys, values, strict=True)}
    left = dict(tally)
    duplicates: list[str] = []
    try:
        if (yield tx.insert(_numbered(rows, last), whole=True)):
            return []
        for row in rows:
            key = (row.topic, row.key_hash)
            if len(rows) > 1 and (yield tx.insert([row._replace(kseq=last[key] + 1)])):
                last[key] += 1
                left[key] -= 1
            else:
                duplicates.append(row.id)
    except Exception:
        with suppress(Exception):  # the first error is the one to raise
            yield from _give_back(tx, left)
        raise
    yield from _give_back(tx, left)
    return duplicates


def _numbered(rows: list[Row], last: Mapping[tuple[str, bytes], int]) -> list[Row]:
    """Return the rows with the numbers after `last`, in their order."""
    given = dict(last)
    numbered: list[Row] = []
    for row in rows:
        key = (row.topic, row.key_hash)
        given[key] += 1
        numbered.append(row._replace(kseq=given[key]))
    return numbered


def _give_back(
    tx: AsyncTransaction | SyncTransaction, left: Mapping[tuple[str, bytes], int]
) -> Steps[None]:
    counters = [Counter(*key, -left[key]) for key in sorted(left) if left[key]]
    if counters:
        yield tx.count_up(counters)
