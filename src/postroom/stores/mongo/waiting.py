"""Operators' commands on waiting events, which are not in flight: retry now, cancel, reschedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pymongo import UpdateOne

from postroom.commands import audit_entry
from postroom.model.clock import instant_text
from postroom.model.history import append, command
from postroom.stores.mongo.audit import record_audit
from postroom.stores.mongo.connection import Connection, Session
from postroom.transactions.mongo.documents import (
    CANCELLED,
    Document,
    reschedule_of,
    waiting_of,
)

_TRIES = 50  # the stager changes the same events
Change = Callable[[str], tuple[Document, Document]]  # id → filter and update


async def retry_now(db: Connection, ids: Sequence[str], *, by: str | None) -> int:
    def change(name: str) -> tuple[Document, Document]:
        where = {**waiting_of(name), "status": "failed"}
        del where["kseq"]  # numbered events are retried, too
        return where, {"$currentDate": {"next_attempt_at": True, "awaits": True}}

    return await _change(db, ids, change, "retry-now", "", by)


async def cancel(db: Connection, ids: Sequence[str], reason: str, *, by: str | None) -> int:
    def change(name: str) -> tuple[Document, Document]:
        return waiting_of(name), CANCELLED

    return await _change(db, ids, change, "cancel", reason, by)


async def reschedule(db: Connection, ids: Sequence[str], at_us: int, *, by: str | None) -> int:
    def change(name: str) -> tuple[Document, Document]:
        return reschedule_of(name, at_us)

    return await _change(db, ids, change, "reschedule", instant_text(at_us), by)


async def _change(
    db: Connection, ids: Sequence[str], change: Change, verb: str, reason: str, by: str | None
) -> int:
    entry = command(by, verb, reason)

    async def work(session: Session) -> int:
        wanted = [change(name) for name in dict.fromkeys(ids)]
        where = {"$or": [where for where, _ in wanted]}
        found = db.outbox.find(where, {"history": 1}, session=session) if wanted else None
        old = {} if found is None else {one["_id"]: one.get("history") async for one in found}
        changes: list[Any] = []
        for where, update in wanted:
            name = where["_id"]
            if name in old:
                history = {} if by is None else {"history": append(old[name], entry)}
                fields = {**update.get("$set", {}), **history}
                changes.append(UpdateOne(where, {**update, "$set": fields} if fields else update))
        changed = 0
        if changes:
            changed = (await db.outbox.bulk_write(changes, session=session)).matched_count
        if by is not None:
            await record_audit(db, session, audit_entry(by, verb, changed, list(old), reason))
        return changed

    return await db.transact(work, tries=_TRIES)
