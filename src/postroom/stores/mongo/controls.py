"""Controls: pauses and limits, which operators set at run time."""

from __future__ import annotations

from typing import Any

from bson.datetime_ms import DatetimeMS

from postroom.commands import MAX_WHO_CHARS
from postroom.model.controls import Control, check_control, check_limits
from postroom.record import short_error
from postroom.stores.controls import control_entry, limit_entry
from postroom.stores.mongo.audit import record_audit
from postroom.stores.mongo.connection import Collection, Connection, Session
from postroom.stores.mongo.errors import translated
from postroom.stores.mongo.records import date_microseconds
from postroom.transactions.mongo.documents import Document

_TRIES = 50
_IS_PAUSED: Document = {
    "$and": [
        {"$eq": [{"$type": "$paused_at"}, "date"]},
        {
            "$or": [
                {"$ne": [{"$type": "$paused_until"}, "date"]},
                {"$gt": ["$paused_until", "$$NOW"]},
            ]
        },
    ]
}


async def controls(db: Connection) -> list[Control]:
    with translated(harmless=True):
        steps: list[Document] = [{"$set": {"paused": _IS_PAUSED}}, {"$sort": {"_id": 1}}]
        found = await (await _control(db).aggregate(steps)).to_list()
    return [
        Control(
            one["_id"]["kind"],
            one["_id"]["name"],
            one["paused"],
            _instant(one["paused_at"]),
            _instant(one["paused_until"]),
            one["max_per_second"],
            one["max_in_flight"],
            one["reason"],
            one["who"],
            date_microseconds(one["changed_at"]),
        )
        for one in found
    ]


async def set_control(
    db: Connection,
    kind: str,
    name: str,
    *,
    pause: bool,
    seconds: float | None,
    reason: str,
    by: str,
) -> bool:
    check_control(kind, name)
    until: Any = None
    if seconds is not None:
        length = int(seconds * 1000)
        until = {"$dateAdd": {"startDate": "$$NOW", "unit": "millisecond", "amount": length}}
    new: Document = {
        "paused_at": "$$NOW" if pause else None,
        "paused_until": until if pause else None,
        "max_per_second": {"$ifNull": ["$max_per_second", None]},
        "max_in_flight": {"$ifNull": ["$max_in_flight", None]},
        "reason": {"$literal": short_error(reason)},
        "who": {"$literal": by[:MAX_WHO_CHARS]},
        "changed_at": "$$NOW",
    }
    where: Document = {"_id": {"kind": kind, "name": name}}
    if not pause:
        where["paused_at"] = {"$type": "date"}

    async def work(session: Session) -> bool:
        wrote = await _control(db).update_one(where, [{"$set": new}], upsert=pause, session=session)
        if not (wrote.matched_count or wrote.upserted_id):
            return False
        entry = control_entry(by, kind, name, pause=pause, seconds=seconds, reason=reason)
        await record_audit(db, session, entry)
        return True

    return await db.transact(work, tries=_TRIES)


async def set_limits(
    db: Connection,
    kind: str,
    name: str,
    *,
    per_second: float | None,
    in_flight: int | None,
    by: str,
) -> bool:
    check_limits(kind, name, per_second, in_flight)
    where: Document = {"_id": {"kind": kind, "name": name}}
    is_limit = per_second is not None or in_flight is not None
    if not is_limit:
        where["$or"] = [
            {"max_per_second": {"$type": "double"}},
            {"max_in_flight": {"$type": "int"}},
        ]
    new: Document = {
        "paused_at": {"$ifNull": ["$paused_at", None]},
        "paused_until": {"$ifNull": ["$paused_until", None]},
        "max_per_second": None if per_second is None else float(per_second),
        "max_in_flight": in_flight,
        "reason": {"$ifNull": ["$reason", ""]},
        "who": {"$ifNull": ["$who", {"$literal": by[:MAX_WHO_CHARS]}]},
        "changed_at": "$$NOW",
    }

    async def work(session: Session) -> bool:
        wrote = await _control(db).update_one(
            where, [{"$set": new}], upsert=is_limit, session=session
        )
        if not (wrote.matched_count or wrote.upserted_id):
            return False
        await record_audit(db, session, limit_entry(by, kind, name, per_second, in_flight))
        return True

    return await db.transact(work, tries=_TRIES)


def _instant(date: DatetimeMS | None) -> int | None:
    return None if date is None else date_microseconds(date)


def _control(db: Connection) -> Collection:
    return db.database[db.name("control")]
