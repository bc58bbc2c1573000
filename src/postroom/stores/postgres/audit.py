"""The audit log: the commands that changed events by hand."""

from __future__ import annotations

from postroom.commands import AuditEntry
from postroom.stores.postgres.database import Database, Session


async def record_audit(place: Database | Session, done: AuditEntry) -> None:
    if done.how_many:
        values = done._asdict()
        del values["at_us"]
        await place.run("record_audit", **values)


async def audit_log(db: Database, limit: int) -> list[AuditEntry]:
    return [AuditEntry._make(row) for row in await db.rows("audit_log", limit=limit)]
