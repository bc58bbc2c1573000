"""Operations: stored work on many events, in fenced steps.

Without transactions a step is not atomic: its events are replayed before its position moves, and an
interrupted step is repeated. Events that it had replayed are then left alone; copies with new ids
are made again.
"""

from __future__ import annotations

from typing import Any

from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from postroom.commands import MAX_WHO_CHARS
from postroom.errors import StoreRefusedError, StoreRetryableError
from postroom.operation import (
    AHEAD_SECONDS,
    FINISHED,
    Change,
    NewOperation,
    Operation,
    OperationState,
    Step,
    new_operation_id,
)
from postroom.stores.mongo.audit import record_audit
from postroom.stores.mongo.commands import replay_in
from postroom.stores.mongo.connection import Collection, Connection, Session
from postroom.stores.mongo.errors import translated
from postroom.stores.mongo.records import date_microseconds
from postroom.stores.operations import changed, ended, started, stored_error
from postroom.transactions.mongo.documents import Document, milliseconds

_TRIES = 50  # a busy relay writes the same leases all the time
_RUNNING = str(OperationState.RUNNING)
_IS_LIVE: Document = {
    "$and": [
        {"$eq": [{"$type": "$owner"}, "string"]},
        {"$eq": [{"$type": "$until"}, "date"]},
        {"$gt": ["$until", "$$NOW"]},
        {"$lte": ["$until", {"$add": ["$$NOW", milliseconds(AHEAD_SECONDS)]}]},
    ]
}
_IS_FREE: Document = {"$and": [{"$eq": ["$state", _RUNNING]}, {"$not": [_IS_LIVE]}]}
_NO_OWNER: Document = {"owner": None, "until": None}


async def operations(db: Connection, *, unfinished: bool, limit: int) -> list[Operation]:
    where: Document = {"fingerprint": {"$type": "string"}} if unfinished else {}
    return await _find(db, None, where, limit, running_first=unfinished)


async def operation(db: Connection, operation_id: str, session: Session = None) -> Operation | None:
    found = await _find(db, session, {"_id": operation_id}, 1)
    return found[0] if found else None


async def start_operation(db: Connection, new: NewOperation, *, by: str) -> tuple[Operation, bool]:
    name = new_operation_id()
    values: Document = {
        "_id": name,
        "kind": new.kind,
        "request": new.request,
        "state": _RUNNING,
        "who": by[:MAX_WHO_CHARS],
        "total": None if new.total is None else Int64(new.total),
        "handled": Int64(0),
        "failed": Int64(0),
        "position": None,
        "error": None,
        "token": Int64(0),
        "fingerprint": new.fingerprint,
        **_NO_OWNER,
    }
    times = {"created_at": "$$NOW", "changed_at": "$$NOW"}
    fresh = {"$replaceWith": {"$mergeObjects": [{"$literal": values}, times]}}
    same: Document = {"fingerprint": new.fingerprint}

    async def work(session: Session) -> tuple[Operation, bool]:
        if found := await _find(db, session, same, 1):
            return found[0], False
        await _operation(db).update_one({"_id": name}, [fresh], upsert=True, session=session)
        await record_audit(db, session, started(by, name, new))
        (one,) = await _find(db, session, same, 1)
        return one, True

    try:
        return await db.transact(work, tries=_TRIES)
    except StoreRefusedError as error:
        if not isinstance(error.__cause__, DuplicateKeyError):
            raise
    if found := await _find(db, None, same, 1):
        return found[0], False
    raise StoreRetryableError("an operation with the same request has just ended; try again")


async def take_operation(
    db: Connection, operation_id: str, owner: str, lease_seconds: float
) -> Operation | None:
    where: Document = {
        "_id": operation_id,
        "state": _RUNNING,
        "$or": [{"owner": owner}, {"$expr": {"$not": [_IS_LIVE]}}],
    }
    new: Document = {
        "owner": {"$literal": owner},
        "until": _later(lease_seconds),
        "token": {"$add": ["$token", Int64(1)]},
    }
    with translated(harmless=False):
        found = await _operation(db).find_one_and_update(
            where, [{"$set": new}], return_document=ReturnDocument.AFTER
        )
    return None if found is None else _shown({**found, "free": False})


async def advance_operation(db: Connection, held: Operation, step: Step) -> tuple[str, ...] | None:
    fence = {"_id": held.id, "owner": held.owner, "token": held.token, "state": _RUNNING}
    renewed = {"until": _later(step.lease_seconds), "changed_at": "$$NOW"}

    async def work(session: Session) -> tuple[str, ...] | None:
        found = await _operation(db).find_one_and_update(
            fence, [{"$set": renewed}], return_document=ReturnDocument.AFTER, session=session
        )
        if found is None:
            return None

        def is_meant(event: Document) -> bool:
            settled, began, now = event.get("settled_at"), found["created_at"], found["changed_at"]
            late = isinstance(settled, DatetimeMS) and int(began) < int(settled) <= int(now)
            return event.get("status") == step.of_state and not late

        sent: list[str] = []
        if step.ids:
            sent = await replay_in(
                db, session, step.ids, new_id=step.new_id, by=held.who, narrow=is_meant
            )
        new: Document = {"state": str(step.to), "error": stored_error(step)}
        if (position := step.new_position(sent)) is not None:
            new["position"] = position
        if step.releases:
            new |= _NO_OWNER
        if step.to in FINISHED:
            new["fingerprint"] = None
        more = {"handled": Int64(len(sent)), "failed": Int64(step.failed)}
        await _operation(db).update_one(fence, {"$set": new, "$inc": more}, session=session)
        if step.to != OperationState.RUNNING:
            after = await operation(db, held.id, session)
            assert after is not None
            await record_audit(db, session, ended(after, step))
        return tuple(sent)

    return await db.transact(work, tries=_TRIES)


async def change_operation(db: Connection, operation_id: str, change: Change, *, by: str) -> bool:
    before = [str(state) for state in change.before]
    new: Document = {
        "state": str(change.after),
        "changed_at": "$$NOW",
        "token": {"$add": ["$token", Int64(1)]},
        **_NO_OWNER,
    }
    if change == Change.RESUME:
        new["error"] = None
    if change.after in FINISHED:
        new["fingerprint"] = None
    where: Document = {"_id": operation_id, "state": {"$in": before}}

    async def work(session: Session) -> bool:
        wrote = await _operation(db).update_one(where, [{"$set": new}], session=session)
        if not wrote.matched_count:
            return False
        await record_audit(db, session, changed(by, operation_id, change))
        return True

    return await db.transact(work, tries=_TRIES)


async def _find(
    db: Connection, session: Session, where: Document, limit: int, *, running_first: bool = False
) -> list[Operation]:
    order: Document = {"created_at": -1, "_id": 1}
    steps: list[Document] = [{"$match": where}]
    if running_first:  # no number of stopped ones may hide them
        steps.append({"$set": {"runs": {"$eq": ["$state", _RUNNING]}}})
        order = {"runs": -1, **order}
    steps += [{"$sort": order}, {"$limit": limit}, {"$set": {"free": _IS_FREE}}]
    with translated(harmless=True):
        cursor = await _operation(db).aggregate(steps, session=session)
        return [_shown(one) for one in await cursor.to_list()]


def _shown(found: Document) -> Operation:
    """Return an operation; a field that was edited to another type has a placeholder."""
    return Operation(
        str(found["_id"]),
        _text(found, "kind") or "",
        _text(found, "request") or "",
        _text(found, "state") or "",
        _text(found, "who") or "",
        _instant(found, "created_at") or 0,
        _instant(found, "changed_at") or 0,
        _number(found, "total"),
        _number(found, "handled") or 0,
        _number(found, "failed") or 0,
        _text(found, "position"),
        _text(found, "error"),
        _text(found, "owner"),
        _instant(found, "until"),
        _number(found, "token") or 0,
        bool(found["free"]),
    )


def _text(found: Document, name: str) -> str | None:
    value = found.get(name)
    return value if value is None or isinstance(value, str) else repr(value)


def _number(found: Document, name: str) -> int | None:
    value = found.get(name)
    return int(value) if isinstance(value, int) else None


def _instant(found: Document, name: str) -> int | None:
    value = found.get(name)
    return date_microseconds(value) if isinstance(value, DatetimeMS) else None


def _later(seconds: float) -> Any:
    return {"$add": ["$$NOW", milliseconds(seconds)]}


def _operation(db: Connection) -> Collection:
    return db.database[db.name("operation")]
