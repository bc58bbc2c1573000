"""The audit log: the commands that changed events by hand."""

from __future__ import annotations

from postroom.event import new_id as make_id
from postroom.store import AuditEntry
from postroom.stores.mongo.connection import Collection, Connection, Session
from postroom.stores.mongo.errors import translated
from postroom.stores.mongo.records import date_microseconds
from postroom.transactions.mongo.documents import Document


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
