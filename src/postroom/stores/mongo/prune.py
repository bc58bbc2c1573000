"""Deletes old events that are done, expired or cancelled, old dead letters, and old operations."""

from __future__ import annotations

from collections.abc import Sequence

from bson.int64 import Int64

from postroom.operation import FINISHED
from postroom.record import LANES
from postroom.store import PrunedDead
from postroom.stores.mongo.connection import Connection
from postroom.stores.mongo.errors import translated
from postroom.stores.mongo.work_index import ORDER, lanes_with
from postroom.transactions.mongo.documents import DEAD, Document, Place, milliseconds, seq_of

_PRUNED: Document = {"$in": ["done", "expired", "cancelled"]}


async def prune(
    db: Connection, streams: Sequence[str], older_than_seconds: float, limit: int
) -> int:
    """Delete old done events, then expired and cancelled ones; two queries if there are none."""
    removed = 0
    with translated(harmless=False):
        for stream in streams:
            ids = await _old(db, stream, older_than_seconds, limit - removed)
            if len(ids) < limit - removed:
                ids += await _old_others(db, stream, older_than_seconds, limit - removed - len(ids))
            if ids:
                gone = await db.outbox.delete_many({"_id": {"$in": ids}, "status": _PRUNED})
                removed += gone.deleted_count
            if removed >= limit:
                break
    return removed


async def _old(db: Connection, stream: str, seconds: float, limit: int) -> list[str]:
    """Return the ids of the oldest done events, by the server's clock."""
    done: Document = {
        "stage": "over",
        "stream": stream,
        "awaits": {"$type": "date"},
        "status": "done",
    }
    lanes = await lanes_with(db, done)
    if not lanes:
        return []
    before = {"$subtract": ["$$NOW", Int64(milliseconds(seconds))]}
    cursor = await db.outbox.aggregate(
        [
            {"$match": {**done, "lane": {"$in": sorted(lanes)}}},
            {"$sort": {"awaits": 1, **ORDER}},
            {"$limit": limit},
            {"$project": {"old": {"$lt": ["$awaits", before]}}},
        ],
        batchSize=limit,
    )
    return [found["_id"] for found in await cursor.to_list() if found["old"]]


async def _old_others(db: Connection, stream: str, seconds: float, limit: int) -> list[str]:
    """Return the ids of old expired and cancelled events."""
    before = {"$subtract": ["$$NOW", Int64(milliseconds(seconds))]}
    over: Document = {
        "stage": "over",
        "stream": stream,
        "lane": {"$in": list(range(LANES))},
        "awaits": {"$in": ["expired", "cancelled"]},
        "$expr": {"$lt": ["$settled_at", before]},
    }
    found = await db.outbox.find(over, {"_id": 1}).limit(limit).to_list()
    return [one["_id"] for one in found]


async def prune_dead(
    db: Connection, stream: str, older_than_seconds: float, after_seq: int, limit: int
) -> PrunedDead:
    """Delete the old ones of the next dead letters of a stream."""
    before = {"$subtract": ["$$NOW", Int64(milliseconds(older_than_seconds))]}
    where: Document = {
        "stage": "over",
        "stream": stream,
        "lane": {"$in": list(range(LANES))},
        "awaits": DEAD,
    }
    if after_seq:
        after = Place.of(after_seq)
        where["ct"] = {"$gte": after.ct}
        where["$or"] = [{"ct": {"$gt": after.ct}}, {"n": {"$gt": after.n}}]
    unnumbered = {"$in": [{"$ifNull": ["$kseq", 0]}, [0]]}  # consumers wait for a number
    is_old = {"$and": [{"$lt": ["$settled_at", before]}, unnumbered]}
    facts = {"ct": 1, "n": 1, "old": is_old}
    steps: list[Document] = [
        {"$match": where},
        {"$sort": {"ct": 1, "n": 1}},
        {"$limit": limit},
        {"$project": facts},
    ]
    with translated(harmless=False):
        page = await (await db.outbox.aggregate(steps, batchSize=limit)).to_list()
        old = [one["_id"] for one in page if one["old"]]
        removed = 0
        if old:
            gone = {"_id": {"$in": old}, "awaits": DEAD, "$expr": {"$lt": ["$settled_at", before]}}
            removed = (await db.outbox.delete_many(gone)).deleted_count
    return PrunedDead(removed, seq_of(page[-1]) if len(page) == limit else None)


async def prune_operations(db: Connection, older_than_seconds: float, limit: int) -> int:
    """Delete operations that ended long ago; one query if there are none.

    They were created before they ended: the index by creation bounds the search.
    """
    before = {"$subtract": ["$$NOW", Int64(milliseconds(older_than_seconds))]}
    finished: Document = {"state": {"$in": [str(state) for state in FINISHED]}}
    old = {"$and": [{"$lt": ["$created_at", before]}, {"$lt": ["$changed_at", before]}]}
    operation = db.database[db.name("operation")]
    with translated(harmless=False):
        found = operation.find({**finished, "$expr": old}, {"_id": 1}).sort("created_at")
        ids = [one["_id"] for one in await found.limit(limit).to_list()]
        if not ids:
            return 0
        return (await operation.delete_many({"_id": {"$in": ids}, **finished})).deleted_count
