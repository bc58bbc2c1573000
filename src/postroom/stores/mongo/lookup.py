"""Operators' questions: get, find, count. Nothing is changed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from bson.datetime_ms import DatetimeMS
from bson.max_key import MaxKey

from postroom.lookup import (
    MAX_INBOX_ROWS,
    RECENT_SECONDS,
    Accepted,
    Details,
    Filter,
    InboxStats,
    Standing,
    Stats,
)
from postroom.model.dead_letters import DeadCause
from postroom.record import LANES, Record, State
from postroom.search import INDEX_OF, is_caused, walk_by
from postroom.stores.mongo.audit import find_causes
from postroom.stores.mongo.connection import Connection, Session
from postroom.stores.mongo.errors import translated
from postroom.stores.mongo.records import date_microseconds, is_encodable, shown, sound
from postroom.stores.mongo.search import indexes
from postroom.stores.mongo.work_index import ORDER, lanes_with
from postroom.transactions.mongo.documents import (
    NEVER,
    Document,
    Place,
    inbox_id,
    key_id,
    seq_of,
)

_OPEN = ("ready", "waiting", "parked")
_OLDEST = 200  # ready events of a stream that are searched for the oldest one
_OLDEST_OF_ALL = 1_000  # the same of all streams together
_FEW_STREAMS = 20  # more are searched together, by one walk over the index
_MOST_CONSUMERS = 1_000  # of an inbox, that are searched
_UNSENT = (State.DEAD, State.EXPIRED, State.CANCELLED)  # finished; `awaits` is the state


async def get(db: Connection, event_id: str) -> Record | None:
    with translated(harmless=True):
        found = await db.outbox.find_one({"_id": event_id})
    return None if found is None else shown(found)


async def look_up(db: Connection, ids: Sequence[str]) -> dict[str, Standing]:
    with translated(harmless=True):
        facts = {"stream": 1, "status": 1, "replaced_by": 1}
        found = db.outbox.find({"_id": {"$in": list(ids)}}, facts)
        return {
            each["_id"]: Standing(
                each.get("stream", ""), each.get("status", ""), each.get("replaced_by")
            )
            async for each in found
        }


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
    conditions = await where(db, wanted)
    by = walk_by(wanted, await indexes(db) if is_caused(wanted) else ())
    hint = None
    if is_caused(wanted) and by is not None and by != "state":
        hint = INDEX_OF[by]
    elif by is None and (wanted.newest or wanted.until_seq is not None):
        hint = "place"  # it alone is bounded by positions
    with translated(harmless=True):
        way = -1 if wanted.newest else 1
        cursor = db.outbox.find(conditions, hint=hint).sort({"ct": way, "n": way})
        return [shown(found) for found in await cursor.limit(wanted.limit).to_list()]


async def where(db: Connection, wanted: Filter) -> Document:
    """Return the conditions of a filter, those included that let an index be used."""
    names = {
        "stream": wanted.stream,
        "event_type": wanted.type,
        "topic": wanted.topic,
        "key": wanted.key,
        "correlation_id": wanted.correlation_id,
        "causation_id": wanted.causation_id,
    }
    found: Document = {name: value for name, value in names.items() if value is not None}
    if wanted.state != State.DEAD:
        found["size"] = {"$gte": 0}  # all: required to use the index `place`
    if wanted.state is not None:
        found["status"] = str(wanted.state)
        found |= await _where_to_look(db, wanted)
    if wanted.error is not None:
        found["last_error"] = {"$regex": re.escape(wanted.error)}
    created = {"$gte": wanted.from_us, "$lt": wanted.before_us}
    if times := {op: _date(us) for op, us in created.items() if us is not None}:
        found["created_at"] = times
    if wanted.settled_before_us is not None:
        found["settled_at"] = {"$lt": _date(wanted.settled_before_us)}
    bounds: list[Document] = []
    if wanted.after_seq:
        after = Place.of(wanted.after_seq)
        found["ct"] = {"$gte": after.ct}
        bounds.append({"$or": [{"ct": {"$gt": after.ct}}, {"n": {"$gt": after.n}}]})
    if wanted.until_seq is not None:
        last = Place.of(wanted.until_seq)
        found["ct"] = {**found.get("ct", {}), "$lte": last.ct}
        bounds.append({"$or": [{"ct": {"$lt": last.ct}}, {"n": {"$lte": last.n}}]})
    return {**found, "$and": bounds} if bounds else found


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
        *(found.get(name) for name in ("history", "receipt", "replaced_by")),
    )


async def acceptances(db: Connection, ids: Sequence[str]) -> list[Accepted]:
    """Consumers are few: each is found by a step in the index of `_id`, which begins with it."""
    found: list[Accepted] = []
    with translated(harmless=True):
        after: Document = {"$type": "object"}
        for _ in range(_MOST_CONSUMERS):
            first = await db.inbox.find_one({"_id": after}, {"_id": 1}, sort=[("_id", 1)])
            if first is None:
                break
            consumer = first["_id"].get("consumer")
            if not isinstance(consumer, str):  # written by other means than `accept`
                after = {"$type": "object", "$gt": first["_id"]}
                continue
            wanted = {"_id": {"$in": [inbox_id(consumer, each) for each in ids]}}
            async for one in db.inbox.find(wanted):
                when = one.get("processed_at") or one.get("received_at")
                at = _instant(when) if isinstance(when, DatetimeMS) else None
                done = one.get("status") == "done"
                found.append(Accepted(consumer, one["_id"]["id"], at, done))
            after = {"$type": "object", "$gt": {"consumer": consumer, "id": MaxKey()}}
    return sorted(found, key=lambda one: (one.at_us or 0, one.consumer))


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


async def inboxes(db: Connection) -> list[InboxStats]:
    found: list[InboxStats] = []
    with translated(harmless=True):
        for name in sorted(await db.inbox.distinct("_id.consumer", {"status": "done"}), key=str):
            done = {"_id.consumer": name, "status": "done"}
            rows = await db.inbox.count_documents(done, limit=MAX_INBOX_ROWS)
            ago = {"$subtract": ["$$NOW", RECENT_SECONDS * 1_000]}
            late = {**done, "$expr": {"$gt": ["$processed_at", ago]}}
            recent = await db.inbox.count_documents(late, limit=MAX_INBOX_ROWS)
            ends = [await _done_at(db, done, way) for way in (1, -1)]
            found.append(InboxStats(_name(name), rows, ends[0], recent, ends[1]))
    return found


async def _done_at(db: Connection, done: Document, way: int) -> int | None:
    """Return when the first or last of these messages was done."""
    found = await db.inbox.find(done).sort({"processed_at": way}).limit(1).to_list()
    at = found[0].get("processed_at") if found else None
    return date_microseconds(at) if isinstance(at, DatetimeMS) else None
