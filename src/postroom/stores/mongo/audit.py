"""The audit log: the commands that changed events by hand; the causes of dead letters."""

from __future__ import annotations

from bson.datetime_ms import DatetimeMS

from postroom.commands import AuditEntry
from postroom.event import new_id as make_id
from postroom.model.dead_letters import DeadCause
from postroom.record import LANES
from postroom.stores.mongo.connection import Collection, Connection, Session
from postroom.stores.mongo.errors import translated
from postroom.stores.mongo.records import date_microseconds
from postroom.transactions.mongo.documents import DEAD, Document


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


async def find_causes(db: Connection, streams: list[str], limit: int) -> list[DeadCause]:
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
            _instant(one["first"]),
            _instant(one["last"]),
        )
        for one in found
    ]


def _only(kind: str, field: str, otherwise: str | None) -> Document:
    """Return an expression for a field; `otherwise` if it was edited to another type."""
    return {"$cond": [{"$eq": [{"$type": f"${field}"}, kind]}, f"${field}", otherwise]}


def _instant(date: DatetimeMS | None) -> int:
    return 0 if date is None else date_microseconds(date)
