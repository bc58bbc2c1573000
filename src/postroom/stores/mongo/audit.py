"""Further operator queries: the details of one event, causes of dead letters, and the audit log."""

from __future__ import annotations

from bson.datetime_ms import DatetimeMS

from postroom.event import new_id as make_id
from postroom.model.dead_letters import DeadCause
from postroom.record import LANES
from postroom.store import AuditEntry, Details
from postroom.stores.mongo.connection import Collection, Connection, Session
from postroom.stores.mongo.errors import translated
from postroom.stores.mongo.records import date_microseconds, sound
from postroom.transactions.mongo.documents import DEAD, Document, key_id, seq_of


async def details(db: Connection, event_id: str) -> Details | None:
    with translated(harmless=True):
        found = await db.outbox.find_one({"_id": event_id})
        if found is None:
            return None
        found = sound(found)
        block = await db.block.find_one({"_id": key_id(found["stream"], found["key_hash"])})
    return Details(
        found["stage"],
        _instant(found["available_at"]),
        _instant(found["settled_at"]),
        found["lease_owner"],
        _instant(found["lease_until"]),
        None if block is None else seq_of(block),
    )


async def dead_causes(db: Connection, streams: list[str], limit: int) -> list[DeadCause]:
    lanes = {"$in": list(range(LANES))}
    where = {"stage": "over", "stream": {"$in": streams}, "lane": lanes, "awaits": DEAD}
    group: Document = {
        "_id": {
            "type": _only("string", "event_type", ""),
            "error": _only("string", "last_error", ""),
        },
        "count": {"$sum": 1},
        "first": {"$min": _only("date", "settled_at", None)},
        "last": {"$max": _only("date", "settled_at", None)},
    }
    with translated(harmless=True):
        most: list[Document] = [{"$sort": {"count": -1}}, {"$limit": limit}]
        cursor = await db.outbox.aggregate([{"$match": where}, {"$group": group}, *most])
        found = await cursor.to_list()
    return [
        DeadCause(
            one["_id"]["type"],
            one["_id"]["error"],
            one["count"],
            _instant(one["first"]) or 0,
            _instant(one["last"]) or 0,
        )
        for one in found
    ]


def _only(kind: str, field: str, otherwise: str | None) -> Document:
    """Return an expression for a field; `otherwise` if it was edited to another type."""
    return {"$cond": [{"$eq": [{"$type": f"${field}"}, kind]}, f"${field}", otherwise]}


async def record_audit(db: Connection, session: Session, entry: AuditEntry) -> None:
    """Write an audit entry, in the transaction of its command where there is one."""
    if not entry.how_many:
        return
    facts: Document = entry._asdict()
    del facts["at_us"]
    name = make_id()  # in chronological order
    new = {"$mergeObjects": [{"$literal": {"_id": name, **facts}}, {"at": "$$NOW"}]}
    await _audit(db).update_one(
        {"_id": name}, [{"$replaceWith": new}], upsert=True, session=session
    )


async def audit_log(db: Connection, limit: int) -> list[AuditEntry]:
    with translated(harmless=True):
        found = await _audit(db).find().sort({"at": -1, "_id": -1}).limit(limit).to_list()
    return [
        AuditEntry(
            one["who"], one["what"], one["how_many"], one["about"], date_microseconds(one["at"])
        )
        for one in found
    ]


def _audit(db: Connection) -> Collection:
    return db.database[db.name("audit")]


def _instant(date: DatetimeMS | None) -> int | None:
    return None if date is None else date_microseconds(date)
