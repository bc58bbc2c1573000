"""The audit log: the commands that changed events by hand."""

from __future__ import annotations

from postroom.commands import AuditEntry
from postroom.stores.mysql.session import Session


async def record_audit(session: Session, done: AuditEntry) -> None:
    if done.how_many:
        values = done._asdict()
        del values["at_us"]
        await session.run("record_audit", **values)


async def audit_log(session: Session, limit: int) -> list[AuditEntry]:
    return [AuditEntry._make(row) for row in await session.rows("audit_log", limit=limit)]
