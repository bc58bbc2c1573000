"""The sequence of one key: the events that went, its head, and the events behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from postroom.admin.texts import instant
from postroom.lookup import Filter
from postroom.record import Stage
from postroom.search import Outline
from postroom.store import Store

SCAN_LIMIT = 10_000


class KeySequence(NamedTuple):
    """The events of a key in one stream, with one aggregate type: one order.

    went        finished events, oldest first
    waiting     the others, oldest first; the first one is the head
    barrier     set if the key is blocked: events after this `seq` wait
    is_whole    whether all its events were looked at
    """

    stream: str
    aggregate_type: str | None
    went: tuple[Outline, ...]
    waiting: tuple[Outline, ...]
    barrier: int | None
    is_whole: bool


async def sequences(
    store: Store, key: str, stream: str | None, scan_limit: int
) -> list[KeySequence]:
    """Return the sequences of a key, by stream and aggregate type."""
    newest = await store.search.outline("key", key, scan_limit)
    groups: dict[tuple[str, str], list[Outline]] = {}
    for one in reversed(newest):
        if stream in (None, one.stream):
            groups.setdefault((one.stream, one.aggregate_type or ""), []).append(one)
    is_whole = len(newest) < scan_limit
    return [
        await _sequence(store, key, rows, is_whole=is_whole) for _, rows in sorted(groups.items())
    ]


async def _sequence(
    store: Store, key: str, rows: Sequence[Outline], *, is_whole: bool
) -> KeySequence:
    waiting = [one for one in rows if one.stage != Stage.OVER]
    barrier = None
    if waiting:
        details = await store.details(waiting[0].id)
        barrier = None if details is None else details.barrier
        if barrier is not None and barrier < waiting[0].seq:  # the head is older than all of these
            place = Filter(
                key=key, stream=rows[0].stream, after_seq=barrier - 1, until_seq=barrier, limit=1
            )
            head = await store.search.outlines([one.id for one in await store.find(place)])
            waiting = [*(one for one in head if one.stage != Stage.OVER), *waiting]
    return KeySequence(
        rows[0].stream,
        rows[0].aggregate_type,
        tuple(one for one in rows if one.stage == Stage.OVER),
        tuple(waiting),
        barrier,
        is_whole,
    )


def sequence_facts(found: KeySequence, limit: int) -> dict[str, Any]:
    """Return a sequence for JSON, with at most this many events before and behind its head."""
    went, waiting = found.went, found.waiting
    return {
        "stream": found.stream,
        "aggregate_type": found.aggregate_type,
        "went": {
            "counts": dict(sorted(Counter(one.state for one in went).items())),
            "last": [outline_facts(one) for one in went[-limit:]],
        },
        "blocked_after": None if found.barrier is None else str(found.barrier),
        "head": outline_facts(waiting[0]) if waiting else None,
        "behind": {
            "count": len(waiting[1:]),
            "first": [outline_facts(one) for one in waiting[1 : 1 + limit]],
        },
        "complete": found.is_whole,
    }


def outline_facts(one: Outline) -> dict[str, Any]:
    """Return an event without its payload, for JSON."""
    return {
        "seq": str(one.seq),
        "id": one.id,
        "state": one.state,
        "stage": one.stage,
        "type": one.type,
        "topic": one.topic,
        "attempts": one.attempts,
        "created_at": instant(one.created_us),
        "next_attempt_at": instant(one.next_attempt_us),
        "settled_at": instant(one.settled_us),
        "last_error": one.last_error,
    }
