"""Counts embedded events that no relay has collected yet: they wait, too."""

from __future__ import annotations

from collections.abc import Sequence

from postroom.lookup import Stats
from postroom.record import State
from postroom.stores.mongo.connection import Connection
from postroom.stores.mongo.embedded import field_of
from postroom.stores.mongo.errors import translated
from postroom.transactions.mongo.documents import Document

_DOCUMENTS = 1_000  # documents read: with more of them waiting the exact number does not matter


async def with_embedded(
    db: Connection, collections: Sequence[str], stats: Stats, stream: str | None
) -> Stats:
    """Count embedded events of the first documents as pending; the lag includes the oldest.

    Their age is that of `occurred_at`, their only time.
    """
    counts, lag = dict(stats.counts), stats.lag_seconds
    for name in collections:
        with translated(harmless=True):
            cursor = await db.database[name].aggregate(_question(field_of(db.prefix), stream))
            for found in await cursor.to_list():
                counts[State.PENDING] += found["number"]
                lag = max(lag, found["seconds"] or 0.0)
    return stats._replace(counts=counts, lag_seconds=lag)


def _question(field: str, stream: str | None) -> list[Document]:
    ours = [{"$eq": [{"$type": "$$one.id"}, "string"]}, {"$isNumber": "$$one.occurred_us"}]
    if stream is not None:
        ours.append({"$eq": ["$$one.stream", {"$literal": stream}]})
    waiting = {"$filter": {"input": f"${field}", "as": "one", "cond": {"$and": ours}}}
    age = {"$subtract": [{"$toLong": "$$NOW"}, {"$divide": ["$oldest", 1000]}]}
    return [
        {"$match": {field: {"$type": "array"}, f"{field}.id": {"$gt": ""}}},
        {"$limit": _DOCUMENTS},
        {"$project": {"_id": 0, "waiting": waiting}},
        {"$project": {"n": {"$size": "$waiting"}, "oldest": {"$min": "$waiting.occurred_us"}}},
        {"$group": {"_id": None, "number": {"$sum": "$n"}, "oldest": {"$min": "$oldest"}}},
        {"$project": {"number": 1, "seconds": {"$divide": [age, 1000]}}},
    ]
