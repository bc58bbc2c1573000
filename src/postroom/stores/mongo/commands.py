"""Operators' commands: replay, edit, bury, skip, purge (rules L7 and B6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bson.int64 import Int64
from pymongo import ReturnDocument, UpdateOne

from postroom.commands import UNSENT, Edit, audit_entry, require_all
from postroom.errors import NotFoundError, StoreRetryableError
from postroom.event import MAX_ID_BYTES
from postroom.event import new_id as make_id
from postroom.model.codec import JSON, encode_json
from postroom.model.history import append, command
from postroom.record import key_hash, lane_of
from postroom.stores.edits import check_editable, edited
from postroom.stores.mongo.audit import record_audit
from postroom.stores.mongo.blocks import load_blocks, write
from postroom.stores.mongo.connection import Connection, Session
from postroom.stores.mongo.leases import depose, tell_replayed
from postroom.stores.mongo.lookup import inboxes
from postroom.stores.mongo.records import FLAW, shown, sound
from postroom.stores.mongo.settle import NO_LEASE, UNFINISHED, dead
from postroom.transactions.mongo.documents import (
    DEAD,
    NEVER,
    Document,
    counter_id,
    inbox_id,
    lane_id,
    seq_of,
)

_TRIES = 50  # a busy relay writes the same leases all the time
_AGAIN: Document = {
    "status": "pending",
    "stage": "ready",
    "awaits": NEVER,
    "attempts": 0,
    "settled_at": None,
    "expires_at": None,
    "receipt": None,
    **NO_LEASE,
}


async def replay(db: Connection, ids: Sequence[str], *, new_id: bool, by: str | None) -> int:
    async def work(session: Session) -> int:
        return len(await replay_in(db, session, ids, new_id=new_id, by=by))

    return await db.transact(work, tries=_TRIES)


async def replay_in(
    db: Connection,
    session: Session,
    ids: Sequence[str],
    *,
    new_id: bool,
    by: str | None,
    narrow: Callable[[Document], bool] = lambda _: True,
) -> list[str]:
    """Replay in the caller's transaction; returns the ids under which the events are sent.

    `narrow` returns whether to replay this document.
    """
    chosen = [event for event in await _choose(db, session, ids, over=True) if narrow(event)]
    if new_id:  # a copy of an unreadable event would be sent with placeholders in it
        chosen = [event for event in chosen if FLAW not in event]
    ct, numbers = await db.places(len(chosen))
    changes: list[Any] = []
    entry = command(by, "replay")
    sent = [make_id() if new_id else event["_id"] for event in chosen]
    for event, name, n in zip(chosen, sent, numbers, strict=True):
        place = {"ct": ct, "n": n}
        if event["kseq"] is not None and (new_id or event["kseq"] == 0):
            place["kseq"] = await _count_up(db, session, event)
        if new_id:
            changes.append(_copy(event, name, place))
            continue
        history = append(event.get("history"), entry)
        if event["kseq"] == 0:
            fields = {**_AGAIN, **place, "history": {"$literal": history}}
            changes.append(UpdateOne({"_id": event["_id"]}, [{"$set": fields}]))
        else:
            over = {"_id": event["_id"], "stage": "over"}
            changes.append(UpdateOne(over, {"$set": {**_AGAIN, "history": history}}))
    if changes:
        await db.outbox.bulk_write(changes, session=session)
    if by is not None:
        entered = audit_entry(by, "replay", len(chosen), [e["_id"] for e in chosen])
        await record_audit(db, session, entered)
    return sent


async def bury(
    db: Connection,
    ids: Sequence[str],
    reason: str,
    *,
    by: str | None,
    history: str | None = None,
    attempts: int | None = None,
    whole: bool = False,
) -> int:
    entry = command(by, "bury", reason)

    async def work(session: Session) -> int:
        chosen = await _choose(db, session, ids, over=False)
        names = [event["_id"] for event in chosen]
        if whole:
            require_all(ids, names)
        changes = [
            UpdateOne(
                {"_id": event["_id"], **UNFINISHED},
                _dead(reason, history or append(event.get("history"), entry), attempts),
            )
            for event in chosen
        ]
        if changes:
            await db.outbox.bulk_write(changes, session=session)
        for stream in {event["stream"] for event in chosen}:
            keys = {event["key_hash"] for event in chosen if event["stream"] == stream}
            blocks = await load_blocks(db, session, stream, keys)
            for hashed in keys:
                blocks.advance(hashed)
            await write(db, session, blocks)
        if by is not None:
            await record_audit(db, session, audit_entry(by, "bury", len(chosen), names, reason))
        return len(chosen)

    return await db.transact(work, tries=_TRIES)


async def edit(db: Connection, event_id: str, changes: Edit, *, by: str | None) -> str:
    new_id = make_id()

    async def work(session: Session) -> str:
        found = await db.outbox.find_one({"_id": event_id}, session=session)
        replaced_by = None if found is None else found.get("replaced_by")
        document = None if found is None else shown(found)
        record = check_editable(event_id, document, replaced_by)
        (event,) = await _choose(db, session, [event_id], over=True)
        fields = edited(record, changes, new_id)._asdict()
        payload, binary = fields.pop("payload"), fields.pop("payload_bytes")
        began = append(None, command(by, "edit", f"replaces {event_id}"))
        ct, (n,) = await db.places(1)
        place: Document = {"ct": ct, "n": n}
        dead_letter: Document = {
            "replaced_by": new_id,
            "history": {
                "$literal": append(event.get("history"), command(by, "edit", f"sent as {new_id}"))
            },
        }
        if event["kseq"]:  # consumers wait for this number: the new event takes it, and its place
            dead_letter |= {**place, "kseq": Int64(0)}
            place = {}
        elif event["kseq"] is not None:
            place["kseq"] = await _count_up(db, session, event)
        fresh = {
            **event, **fields, "payload": binary if payload is None else payload,
            "available_at": None,
        }  # fmt: skip
        # The mark first: without transactions it decides between two edits.
        still = {"_id": event_id, "stage": "over", "replaced_by": None}
        marked = await db.outbox.update_one(still, [{"$set": dead_letter}], session=session)
        if not marked.matched_count:
            raise StoreRetryableError(f"event {event_id!r} was changed at the same moment")
        copy = _copy(fresh, new_id, place, began)
        await db.outbox.bulk_write([copy], session=session)
        if by is not None:
            entered = audit_entry(by, "edit", 1, [event_id], f"sent as {new_id}")
            await record_audit(db, session, entered)
        return new_id

    return await db.transact(work, tries=_TRIES)


async def forget(
    db: Connection, ids: Sequence[str], about: str, *, accepted: Sequence[str], by: str | None
) -> int:
    names = [one.consumer for one in await inboxes(db)] if accepted else []

    async def work(session: Session) -> int:
        over = {"_id": {"$in": list(ids)}, "stage": "over"}
        gone = (await db.outbox.delete_many(over, session=session)).deleted_count
        for name in names:
            rows = {"_id": {"$in": [inbox_id(name, each) for each in accepted]}}
            await db.inbox.update_many(rows, {"$set": {"correlation_id": None}}, session=session)
        if by is not None:
            await record_audit(db, session, audit_entry(by, "forget", gone, (), about))
        return gone

    return await db.transact(work, tries=_TRIES)


async def purge(db: Connection, ids: Sequence[str], *, by: str | None) -> int:
    unsent: Document = {"stage": "over", "status": {"$in": [str(state) for state in UNSENT]}}

    async def work(session: Session) -> int:
        where = {"_id": {"$in": list(ids)}, **unsent}
        found = [one["_id"] async for one in db.outbox.find(where, {"_id": 1}, session=session)]
        still = {"_id": {"$in": found}, **unsent}
        gone = (await db.outbox.delete_many(still, session=session)).deleted_count
        if by is not None:
            await record_audit(db, session, audit_entry(by, "purge", gone, sorted(found)))
        return gone

    return await db.transact(work, tries=_TRIES)


def _dead(reason: str, history: str, attempts: int | None) -> Document:
    change = dead(reason, attempts, history)
    if attempts is not None:
        change["$set"]["available_at"] = None
    return change


async def skip(db: Connection, event_id: str, reason: str, *, by: str | None) -> None:
    async def work(session: Session) -> None:
        chosen = await _choose(db, session, [event_id], over=False)
        if not chosen:
            raise NotFoundError(f"cannot skip: there is no unfinished event with id {event_id!r}")
        (event,) = chosen
        if FLAW in event:
            raise NotFoundError(f"cannot skip event {event_id!r}: {event[FLAW]}")
        marker = await _marker_id(db, session, event)
        ct, (n,) = await db.places(1)
        grave: Document = {
            "status": "dead",
            "stage": "over",
            "awaits": DEAD,
            "last_error": {"$literal": reason},
            "settled_at": "$$NOW",
            "ct": ct,
            "n": n,
            "kseq": None if event["kseq"] is None else Int64(0),
            "history": {"$literal": append(event.get("history"), command(by, "skip", reason))},
            **NO_LEASE,
        }
        blocks = await load_blocks(db, session, event["stream"], [event["key_hash"]])
        blocks.rename(event["key_hash"], event["_id"], marker)
        changes = [
            _marker(event, marker, reason),
            UpdateOne({"_id": event["_id"], **UNFINISHED}, [{"$set": grave}]),
        ]
        blocks.advance(event["key_hash"])
        await write(db, session, blocks, changes)
        if by is not None:
            await record_audit(db, session, audit_entry(by, "skip", 1, [event_id], reason))

    await db.transact(work, tries=_TRIES)


async def _choose(
    db: Connection, session: Session, ids: Sequence[str], *, over: bool
) -> list[Document]:
    """Return the named events: unfinished ones, whose lanes are taken from their owners, or
    finished ones, whose owners are notified.
    """
    stage: Any = "over" if over else {"$ne": "over"}
    where = {"_id": {"$in": list(ids)}, "stage": stage, "replaced_by": None}
    cursor = db.outbox.find(where, session=session)
    chosen = sorted(map(sound, await cursor.to_list()), key=seq_of)
    if chosen:
        lanes = {(event["stream"], event["lane"]) for event in chosen}
        leases = [lane_id(stream, lane) for stream, lane in sorted(lanes)]
        await (tell_replayed if over else depose)(db, session, leases)
    return chosen


def _copy(event: Document, event_id: str, place: Document, history: str | None = None) -> UpdateOne:
    """Return the write of a copy under another id, at the given place."""
    fresh = {**event, **_AGAIN, "_id": event_id, "last_error": None, "history": history}
    fresh.pop("replaced_by", None)
    if event["key"] is None:
        fresh["key_hash"] = key_hash(None, None, event_id)
        fresh["lane"] = lane_of(fresh["key_hash"])
    return _write_new(fresh, {**place, "created_at": "$$NOW"})


def _marker(event: Document, marker_id: str, reason: str) -> UpdateOne:
    """Return the write of the marker that replaces a skipped event."""
    payload = encode_json({"skipped": event["_id"], "reason": reason}).decode()
    fresh = {
        **event,
        **_AGAIN,
        "_id": marker_id,
        "event_type": "postroom.skipped",
        "payload": payload,
        "size": len(payload.encode()) + len((event["headers"] or "").encode()),
        "content_type": JSON,
        "schema_version": 1,
        "last_error": None,
        "available_at": None,
        "occurred_us": 0,
        "options": None,
        "history": None,
    }
    return _write_new(fresh, {"occurred_at": "$$NOW"})


def _write_new(fresh: Document, decided: Document) -> UpdateOne:
    new = {"$mergeObjects": [{"$literal": fresh}, decided]}
    return UpdateOne({"_id": fresh["_id"]}, [{"$replaceWith": new}], upsert=True)


async def _count_up(db: Connection, session: Session, event: Document) -> Int64:
    found = await db.counter.find_one_and_update(
        {"_id": counter_id(event["topic"], event["key_hash"])},
        {"$inc": {"last": Int64(1)}},
        upsert=True,
        return_document=ReturnDocument.AFTER,
        session=session,
    )
    assert found is not None
    return Int64(found["last"])


async def _marker_id(db: Connection, session: Session, event: Document) -> str:
    """`skip:` and the event's id, plus its number if that is taken or too long."""
    for name in (f"skip:{event['_id']}", f"skip:{event['kseq']}:{event['_id']}"):
        if len(name.encode()) <= MAX_ID_BYTES and not await _is_taken(db, session, name):
            return name
    name = f"skip:{seq_of(event):x}:{event['_id']}"
    return name.encode()[:MAX_ID_BYTES].decode(errors="ignore")


async def _is_taken(db: Connection, session: Session, event_id: str) -> bool:
    found = await db.outbox.find_one({"_id": event_id}, {"_id": 1}, session=session)
    return found is not None
