"""Deletes old events that are done, expired or cancelled."""

from __future__ import annotations

from collections.abc import Sequence

from bson.int64 import Int64

from postroom.record import LANES
from postroom.stores.mongo.connection import Connection
from postroom.stores.mongo.errors import translated
from postroom.stores.mongo.work_index import ORDER, lanes_with
from postroom.transactions.mongo.documents import Document, milliseconds

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
