"""What else people want to know: the rest of one event, why letters died, and who did what."""

from __future__ import annotations

from bson.datetime_ms import DatetimeMS

from postroom.event import new_id as make_id
from postroom.record import LANES
from postroom.store import Cause, Deed, Details
from postroom.stores.mongo.connection import Collection, Connection, Session
from postroom.stores.mongo.documents import DEAD, Document, key_id, microseconds, seq_of
from postroom.stores.mongo.troubles import translated


async def details(db: Connection, event_id: str) -> Details | None:
    with translated(harmless=True):
        found = await db.outbox.find_one({"_id": event_id})
        if found is None:
            return None
        block = await db.block.find_one({"_id": key_id(found["stream"], found["key_hash"])})
    return Details(
        found["stage"],
        _instant(found.get("available_at")),
        _instant(found["settled_at"]),
        found["lease_owner"],
        _instant(found["lease_until"]),
        None if block is None else seq_of(block),
    )


async def causes(db: Connection, streams: list[str]) -> list[Cause]:
    lanes = {"$in": list(range(LANES))}
    where = {"stage": "over", "stream": {"$in": streams}, "lane": lanes, "awaits": DEAD}
    group: Document = {
        "_id": {"type": "$event_type", "error": {"$ifNull": ["$last_error", ""]}},
        "count": {"$sum": 1},
        "first": {"$min": "$settled_at"},
        "last": {"$max": "$settled_at"},
    }
    with translated(harmless=True):
        cursor = await db.outbox.aggregate([{"$match": where}, {"$group": group}])
        found = await cursor.to_list()
    return [
        Cause(
            one["_id"]["type"],
            one["_id"]["error"],
            one["count"],
            microseconds(one["first"]),
            microseconds(one["last"]),
        )
        for one in found
    ]


async def note(db: Connection, session: Session, deed: Deed) -> None:
    """Write a deed down, in the transaction of the deed where there is one."""
    if not deed.how_many:
        return
    facts: Document = deed._asdict()
    del facts["at_us"]
    name = make_id()  # in the order of time
    new = {"$mergeObjects": [{"$literal": {"_id": name, **facts}}, {"at": "$$NOW"}]}
    await _audit(db).update_one(
        {"_id": name}, [{"$replaceWith": new}], upsert=True, session=session
    )


async def deeds(db: Connection, limit: int) -> list[Deed]:
    with translated(harmless=True):
        found = await _audit(db).find().sort({"at": -1, "_id": -1}).limit(limit).to_list()
    return [
        Deed(one["who"], one["what"], one["how_many"], one["about"], microseconds(one["at"]))
        for one in found
    ]


def _audit(db: Connection) -> Collection:
    return db.database[db.name("audit")]


def _instant(date: DatetimeMS | None) -> int | None:
    return None if date is None else microseconds(date)
