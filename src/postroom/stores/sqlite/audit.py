"""The audit log: the commands that changed events by hand."""

from __future__ import annotations

from postroom.commands import AuditEntry
from postroom.stores.sqlite.thread import Database


def record_audit(db: Database, done: AuditEntry) -> None:
    with db.change() as now:
        note(db, done, now)


def note(db: Database, done: AuditEntry, now: int) -> None:
    if done.how_many:
        db.run("record_audit", **done._asdict(), at=now)


def audit_log(db: Database, limit: int) -> list[AuditEntry]:
    return [AuditEntry._make(row) for row in db.rows("audit_log", limit=limit)]
