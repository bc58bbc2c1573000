"""Operator commands: list, count, replay, bury, skip (rules L7 and B6)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from pymongo import ReturnDocument, UpdateOne

from postroom.errors import NotFoundError
from postroom.event import MAX_ID_BYTES
from postroom.event import new_id as make_id
from postroom.model.codec import JSON, encode_json
from postroom.model.dead_letters import DeadCause
from postroom.model.history import append, command
from postroom.record import LANES, Record, State, key_hash, lane_of
from postroom.store import Details, Filter, Standing, Stats, audit_entry
from postroom.stores.mongo.audit import find_causes, record_audit
from postroom.stores.mongo.blocks import load_blocks, write
from postroom.stores.mongo.connection import Connection, Session
from postroom.stores.mongo.errors import translated
from postroom.stores.mongo.leases import depose, tell_replayed
from postroom.stores.mongo.records import FLAW, date_microseconds, is_encodable, shown, sound
from postroom.stores.mongo.settle import NO_LEASE, UNFINISHED, dead
from postroom.stores.mongo.work_index import ORDER, lanes_with
from postroom.transactions.mongo.documents import (
    DEAD,
    NEVER,
    Document,
    Place,
    counter_id,
    key_id,
    lane_id,
    seq_of,
)

_TRIES = 50  # a busy relay writes the same leases all the time
_OPEN = ("ready", "waiting", "parked")
_OLDEST = 200  # ready events of a stream that are searched for the oldest one
_OLDEST_OF_ALL = 1_000  # the same of all streams together
_FEW_STREAMS = 20  # more are searched together, by one walk over the index
_UNSENT = (State.DEAD, State.EXPIRED, State.CANCELLED)  # finished; `awaits` is the state
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


# -- queries ---------------------------------------------------------------------------------------
async def get(db: Connection, event_id: str) -> Record | None:
    with translated(harmless=True):
        found = await db.outbox.find_one({"_id": event_id})
    return None if found is None else shown(found)


async def look_up(db: Connection, ids: Sequence[str]) -> dict[str, Standing]:
    with translated(harmless=True):
        found = db.outbox.find({"_id": {"$in": list(ids)}}, {"stream": 1, "status": 1})
        return {each["_id"]: Standing(each["stream"], each["status"]) async for each in found}


async def open_keys(db: Connection, stream: str, limit: int) -> list[bytes]:
    """Read at one point in time.

    Without a snapshot the scan misses an event that meanwhile moves to a stage that it has passed,
    and a later message of its key would overtake it. A standalone has no snapshots: its stages are
    scanned once more, in the other direction.
    """
    keys: dict[Any, bytes] = {}
    async with db.snapshot() as session:
        for stages in (_OPEN,) if session is not None else (_OPEN, _OPEN[::-1]):
            for stage in stages:
                where = {"stage": stage, "stream": stream}
                found = db.outbox.find(where, {"key_hash": 1}, session=session).limit(limit)
                keys |= {str(one["_id"]): bytes(one["key_hash"]) async for one in found}
    return list(keys.values())[:limit]


async def find(db: Connection, wanted: Filter) -> list[Record]:
    names = {
        "stream": wanted.stream,
        "event_type": wanted.type,
        "topic": wanted.topic,
        "key": wanted.key,
    }
    where: Document = {name: value for name, value in names.items() if value is not None}
    if wanted.state != State.DEAD:
        where["size"] = {"$gte": 0}  # all: required to use the index `place`
    if wanted.state is not None:
        where["status"] = str(wanted.state)
        where |= await _where_to_look(db, wanted)
    if wanted.error is not None:
        where["last_error"] = {"$regex": re.escape(wanted.error)}
    created = {"$gte": wanted.from_us, "$lt": wanted.before_us}
    if times := {op: _date(us) for op, us in created.items() if us is not None}:
        where["created_at"] = times
    if wanted.after_seq:
        after = Place.of(wanted.after_seq)
        where["ct"] = {"$gte": after.ct}
        where["$or"] = [{"ct": {"$gt": after.ct}}, {"n": {"$gt": after.n}}]
    with translated(harmless=True):
        cursor = db.outbox.find(where).sort({"ct": 1, "n": 1}).limit(wanted.limit)
        return [shown(found) for found in await cursor.to_list()]


def _date(microseconds: int) -> DatetimeMS:
    # times have milliseconds only: from the next one on
    return DatetimeMS(-(-microseconds // 1000))


async def _where_to_look(db: Connection, wanted: Filter) -> Document:
    """Return a filter that lets the index `work` be used: no scan of the done events."""
    if wanted.state == State.DONE:
        return {"stage": "over"}
    if wanted.state not in _UNSENT:
        return {"stage": {"$in": list(_OPEN)}}
    of = [wanted.stream] if wanted.stream is not None else await streams(db)
    lanes = {"$in": list(range(LANES))}
    awaits = str(wanted.state)
    return {"stage": "over", "awaits": awaits, "stream": {"$in": of}, "lane": lanes}


async def stats(db: Connection, stream: str | None) -> Stats:
    of = await streams(db) if stream is None else [stream]
    counts = dict.fromkeys((str(state) for state in State), 0)
    named = {"$in": of}
    async with db.snapshot() as session:
        over = {"stage": "over", "stream": named}
        settled = await db.outbox.count_documents(over, session=session)
        lanes = {"$in": list(range(LANES))}
        unsent = {**over, "lane": lanes, "awaits": {"$in": [str(state) for state in _UNSENT]}}
        by_state = await db.outbox.aggregate(
            [{"$match": unsent}, {"$group": {"_id": "$awaits", "number": {"$sum": 1}}}],
            session=session,
        )
        counts |= {found["_id"]: found["number"] for found in await by_state.to_list()}
        counts[State.DONE] += settled - sum(counts[state] for state in _UNSENT)
        unfinished = await db.outbox.aggregate(
            [
                {"$match": {"stage": {"$in": list(_OPEN)}, "stream": named}},
                {"$group": {"_id": "$status", "number": {"$sum": 1}}},
            ],
            session=session,
        )
        for found in await unfinished.to_list():
            if isinstance(found["_id"], str) and found["_id"] in counts:
                counts[found["_id"]] += found["number"]
        blocked = await db.block.count_documents({"stream": named}, session=session)
        if len(of) > _FEW_STREAMS:  # two commands per stream would take a minute with 10,000
            lag = await _lag_of_all(db, session)
        else:
            lag = max([await _lag(db, session, name) for name in of], default=0.0)
    return Stats(counts, lag, blocked)


async def _lag(db: Connection, session: Session, stream: str) -> float:
    """Return the age of the oldest among the first ready events of a stream."""
    ready = {"stage": "ready", "stream": stream, "awaits": NEVER}
    lanes = await lanes_with(db, ready, session)
    first: list[Document] = [
        {"$match": {**ready, "lane": {"$in": lanes}}},
        {"$sort": ORDER},
        {"$limit": _OLDEST},
    ]
    return await _age(db, session, first) if lanes else 0.0


async def _lag_of_all(db: Connection, session: Session) -> float:
    """Return the age of the oldest among the first ready events of all streams."""
    ready = {"stage": "ready", "stream": {"$gte": ""}, "awaits": NEVER}
    cursor = db.outbox.find(ready, {"_id": 0, "ct": 1, "n": 1}, session=session)
    first = await cursor.sort(ORDER).limit(_OLDEST_OF_ALL).to_list()
    if not first:
        return 0.0
    placed = {name: {"$in": [found.get(name) for found in first]} for name in ORDER}
    there = {"$match": {**placed, "size": {"$gte": 0}, "stage": "ready"}}
    return await _age(db, session, [there], hint="place")


async def _age(db: Connection, session: Session, of: list[Document], **options: Any) -> float:
    """Return for how many seconds the oldest event of a pipeline could have been sent."""
    since = {"$max": [_as_date("created_at"), _as_date("next_attempt_at")]}
    oldest = {"$group": {"_id": None, "since": {"$min": since}}}
    age = {"$project": {"lag": {"$subtract": ["$$NOW", "$since"]}}}
    cursor = await db.outbox.aggregate([*of, oldest, age], session=session, **options)
    found = await cursor.to_list()
    return max(0.0, (found[0]["lag"] or 0) / 1000) if found else 0.0


def _as_date(field: str) -> Document:
    """Return an expression for a date; null if the field was edited to another type."""
    return {"$cond": [{"$eq": [{"$type": f"${field}"}, "date"]}, f"${field}", None]}


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
        *(found.get(name) for name in ("history", "receipt")),
    )


async def dead_causes(db: Connection, streams: list[str], limit: int) -> list[DeadCause]:
    return await find_causes(db, streams, limit)


def _instant(date: DatetimeMS | None) -> int | None:
    return None if date is None else date_microseconds(date)


async def streams(db: Connection) -> list[str]:
    """Return the streams with leases or events. Done events have been leased."""
    with translated(harmless=True):
        found = await db.lease.distinct("stream")
        for stage in (*_OPEN, "over"):
            found += await db.outbox.distinct("stream", {"stage": stage})
    return sorted({_name(one) for one in found})


def _name(stream: Any) -> str:
    """Return the name of a stream; a placeholder if it is not text."""
    if isinstance(stream, str) and is_encodable(stream):
        return stream
    return repr(stream).encode(errors="backslashreplace").decode()


# -- commands --------------------------------------------------------------------------------------
async def replay(db: Connection, ids: Sequence[str], *, new_id: bool, by: str | None) -> int:
    async def work(session: Session) -> int:
        chosen = await _choose(db, session, ids, over=True)
        if new_id:  # a copy of an unreadable event would be sent with placeholders in it
            chosen = [event for event in chosen if FLAW not in event]
        ct, numbers = await db.places(len(chosen))
        changes: list[Any] = []
        entry = command(by, "replay")
        for event, n in zip(chosen, numbers, strict=True):
            place = {"ct": ct, "n": n}
            if event["kseq"] is not None and (new_id or event["kseq"] == 0):
                place["kseq"] = await _count_up(db, session, event)
            if new_id:
                changes.append(_copy(event, make_id(), place))
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
            await record_audit(
                db, session, audit_entry(by, "replay", len(chosen), [e["_id"] for e in chosen])
            )
        return len(chosen)

    return await db.transact(work, tries=_TRIES)


async def bury(
    db: Connection, ids: Sequence[str], reason: str, *, by: str | None, history: str | None = None
) -> int:
    entry = command(by, "bury", reason)

    async def work(session: Session) -> int:
        chosen = await _choose(db, session, ids, over=False)
        names = [event["_id"] for event in chosen]
        changes = [
            UpdateOne(
                {"_id": event["_id"], **UNFINISHED},
                dead(reason, history=history or append(event.get("history"), entry)),
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


async def retry_now(db: Connection, ids: Sequence[str], *, by: str | None) -> int:
    async def work(session: Session) -> int:
        waits: Document = {"stage": "waiting", "status": "failed", "awaits": {"$type": "date"}}
        where = {"_id": {"$in": list(ids)}, **waits}
        found = [one["_id"] async for one in db.outbox.find(where, {"_id": 1}, session=session)]
        change = [{"$set": {"next_attempt_at": "$$NOW", "awaits": "$$NOW"}}]
        still = {"_id": {"$in": found}, **waits}
        changed = (await db.outbox.update_many(still, change, session=session)).matched_count
        if by is not None:
            await record_audit(db, session, audit_entry(by, "retry-now", changed, found))
        return changed

    return await db.transact(work, tries=_TRIES)


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
    cursor = db.outbox.find({"_id": {"$in": list(ids)}, "stage": stage}, session=session)
    chosen = sorted(map(sound, await cursor.to_list()), key=seq_of)
    if chosen:
        lanes = {(event["stream"], event["lane"]) for event in chosen}
        leases = [lane_id(stream, lane) for stream, lane in sorted(lanes)]
        await (tell_replayed if over else depose)(db, session, leases)
    return chosen


def _copy(event: Document, event_id: str, place: Document) -> UpdateOne:
    """Return the write of a copy under another id, at the end of the order."""
    fresh = {**event, **_AGAIN, "_id": event_id, "last_error": None, "history": None}
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
