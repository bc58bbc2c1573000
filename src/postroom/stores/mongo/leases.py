"""Leases and members (rules L1 to L5).

A change of several lanes is one command, but not one transaction: each lane is independent. A lane
that is part of a settle's transaction is waited for, since it may be taken only after it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError, OperationFailure

from postroom.errors import StoreRetryableError
from postroom.record import LANES
from postroom.store import Member, Membership
from postroom.stores.lock_pauses import still_locked
from postroom.stores.membership import make_membership, with_free_lanes
from postroom.stores.mongo.connection import Connection, Session
from postroom.stores.mongo.errors import DUPLICATE, TOO_LATE, translated
from postroom.transactions.mongo.documents import Document, lane_id, milliseconds
from postroom.transactions.mongo.sessions import MAJORITY

_FORGOTTEN_AFTER_LEASES = 10
_PATIENCE_MS = 1_500
_SHORTEST_MS = 100
_AT_ONCE = 16
_UUID = 16  # bytes
_SLACK_MS = 10_000  # $$NOW is when a command began: a lease may have been granted since
_LONGEST_MS = Int64(4_000_000_000_000)
_LAST_TOKEN = Int64(2**62)
FREE: Document = {"owner": None, "until": DatetimeMS(0)}


def _whole_number(field: str) -> Document:
    """Return an expression for a field; 0 if it was edited to another type."""
    return {"$cond": [{"$in": [{"$type": field}, ["int", "long"]]}, field, Int64(0)]}


def _ahead_by(lengths: int) -> Document:
    """Return whether an end is further ahead than this many lengths of its lease."""
    length = {"$max": [0, {"$min": [_whole_number("$length"), _LONGEST_MS]}]}
    far = {"$multiply": [lengths, length]}
    return {"$gt": ["$until", {"$add": ["$$NOW", far, _SLACK_MS]}]}


# Written with every change of a lease: the validator would refuse one that was edited by hand, and
# with it the change of all the other lanes.
_SOUND: Document = {
    "stream": "$_id.stream",
    "lane": {"$toInt": "$_id.lane"},
    "token": {"$toLong": _whole_number("$token")},
    "settles": {"$toLong": _whole_number("$settles")},
}


# An end that is further ahead was written before the server's clock was set back.
_LIVE: Document = {"$and": [{"$gt": ["$until", "$$NOW"]}, {"$not": [_ahead_by(2)]}]}


async def heartbeat(
    db: Connection, stream: str, member: Member, lease_seconds: float, held: Mapping[int, int]
) -> Membership:
    with translated(harmless=False):
        await _make_lanes(db, stream)
        until = _later(lease_seconds)
        shown = {
            "stream": {"$literal": stream},
            "owner": {"$literal": member.owner},
            "name": {"$literal": member.name},
            "healthy": {"$literal": member.healthy},
            "sessions": {"$literal": db.session_ids},
            "until": until,
            "length": _length(lease_seconds),
        }
        locked = await _renew(db, stream, member.owner, held, lease_seconds) if held else set()
        # After the lanes, and without waiting: a locked member must not cost a relay its lanes.
        patience_ms = _patience_ms(lease_seconds)
        me = {"_id": {"stream": stream, "owner": member.owner}}
        showing = [{"q": me, "u": [{"$set": shown}], "upsert": True}]
        await _in_time(db, {"update": db.member.name, "updates": showing}, patience_ms)
        long_ago = _later(-_FORGOTTEN_AFTER_LEASES * abs(lease_seconds))
        membership, gone = await _look(db, stream, long_ago)
        if gone:
            forgetting = [{"q": {"_id": {"$in": gone}}, "limit": 0}]
            await _in_time(db, {"delete": db.member.name, "deletes": forgetting}, patience_ms)
        if len(membership.leases) < LANES:  # some were deleted: create them again
            db.streams.discard(stream)
            await _make_lanes(db, stream)
        ours = {
            f.lane
            for f in membership.leases
            if (f.owner, f.token) == (member.owner, held.get(f.lane))
        }
        return with_free_lanes(membership)._replace(renewed=frozenset(ours - locked))


async def _renew(
    db: Connection, stream: str, owner: str, held: Mapping[int, int], lease_seconds: float
) -> set[int]:
    """Renew the held lanes; returns those that a transaction kept locked.

    A lane that an open transaction has written is waited for, and so are the lanes behind it: if
    that takes long, each lane is renewed separately.
    """
    patience_ms = _patience_ms(lease_seconds)
    end = {"until": _later(lease_seconds), "length": _length(lease_seconds)}
    renewal = [{"$set": {**_SOUND, **end}}]
    if await _change(db, {"owner": owner, **_tokens(stream, held)}, renewal, patience_ms):
        return set()
    mine = {lane: {"owner": owner, "token": Int64(token)} for lane, token in held.items()}
    return await _one_by_one(db, stream, mine, renewal, patience_ms)


async def _change(
    db: Connection, which: Document, change: list[Document], patience_ms: int
) -> bool:
    """Change lanes with one command; False if a transaction blocked it for this long."""
    changing = [{"q": which, "u": change, "multi": True}]
    return await _in_time(db, {"update": db.lease.name, "updates": changing}, patience_ms)


async def _in_time(db: Connection, command: Document, patience_ms: int) -> bool:
    """Run a command that writes; False if a transaction blocked it for this long."""
    limits = {"maxTimeMS": patience_ms, "writeConcern": MAJORITY.document}
    try:
        await db.database.command({**command, **limits})
    except OperationFailure as error:
        if error.code != TOO_LATE:
            raise
        return False
    return True


def _patience_ms(lease_seconds: float) -> int:
    """Return how long a heartbeat waits for documents that a transaction has locked."""
    return max(_SHORTEST_MS, milliseconds(abs(lease_seconds) / 30))


async def _one_by_one(
    db: Connection,
    stream: str,
    lanes: Mapping[int, Document],
    change: list[Document],
    patience_ms: int,
) -> set[int]:
    """Change each lane with its own command; returns those that a transaction kept locked."""
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def one(lane: int, where: Document) -> int | None:
        async with at_once:
            which = {"_id": lane_id(stream, lane), **where}
            return None if await _change(db, which, change, patience_ms) else lane

    ends = await asyncio.gather(*(one(lane, where) for lane, where in lanes.items()))
    return {lane for lane in ends if lane is not None}


async def take(
    db: Connection, stream: str, owner: str, lanes: Sequence[int], lease_seconds: float
) -> dict[int, int]:
    with translated(harmless=False):
        await _make_lanes(db, stream)
        free = {"$expr": {"$not": [_LIVE]}}
        give = _given(owner, lease_seconds)
        ids = {"_id": {"$in": [lane_id(stream, lane) for lane in lanes]}}
        if not await _change(db, {**ids, **free}, give, _PATIENCE_MS):
            await _end_sessions_of_the_dead(db, stream)
            await _one_by_one(db, stream, dict.fromkeys(lanes, free), give, _SHORTEST_MS)
        return await _marked(db, stream, lanes, give)


async def retake(
    db: Connection,
    stream: str,
    owner: str,
    held: Mapping[int, int],
    lease_seconds: float,
    doubt_seconds: float,
) -> dict[int, int]:
    if not held:
        return {}
    replayed = {"$ifNull": ["$replayed_at", DatetimeMS(0)]}
    undisturbed = {"$expr": {"$lt": [replayed, _later(-doubt_seconds)]}}
    mine = {"owner": owner, **_tokens(stream, held), **undisturbed}
    give = _given(owner, lease_seconds)

    async def work(session: Session) -> dict[int, int]:
        await db.lease.update_many(mine, give, session=session)
        return await _marked(db, stream, held, give, session)

    await db.end_lost_sessions()
    try:
        return await db.transact(work)
    except StoreRetryableError:
        if len(held) == 1:
            raise
    taken: dict[int, int] = {}  # a transaction has locked some lane: each separately
    for lane, token in held.items():
        with suppress(StoreRetryableError):
            taken |= await retake(db, stream, owner, {lane: token}, lease_seconds, doubt_seconds)
    return taken


def _given(owner: str, lease_seconds: float) -> list[Document]:
    """Return a change that gives a lane a new token.

    A command that changes many documents does not return which: each gets a unique mark.
    """
    fields = {
        **_SOUND,
        "owner": {"$literal": owner},
        "token": {"$add": [{"$mod": [_whole_number("$token"), _LAST_TOKEN]}, Int64(1)]},
        "until": _later(lease_seconds),
        "length": _length(lease_seconds),
        "taken": str(uuid4()),
    }
    return [{"$set": fields}]


async def _marked(
    db: Connection,
    stream: str,
    lanes: Iterable[int],
    give: list[Document],
    session: Session = None,
) -> dict[int, int]:
    """Return the lanes that this change took, and their tokens."""
    ids = [lane_id(stream, lane) for lane in lanes]
    mine = {"_id": {"$in": ids}, "taken": give[0]["$set"]["taken"]}
    found = db.lease.find(mine, {"lane": 1, "token": 1}, session=session)
    return {lease["lane"]: int(lease["token"]) async for lease in found}


async def _end_sessions_of_the_dead(db: Connection, stream: str) -> None:
    """End the open transactions of relays that died in the middle of a settle.

    MongoDB would keep such a transaction, and its lanes, for a minute.
    """
    dead = db.member.find({"stream": stream, "$expr": {"$not": [_LIVE]}})
    listed = [member.get("sessions") async for member in dead]
    found = [one for sessions in listed if isinstance(sessions, list) for one in sessions]
    await db.end_sessions([one for one in found if isinstance(one, Binary) and len(one) == _UUID])


async def release(db: Connection, stream: str, owner: str, held: Mapping[int, int]) -> None:
    if not held:
        return
    with translated(harmless=False):
        freed = [{"$set": {**_SOUND, **FREE}}]
        await db.lease.update_many({"owner": owner, **_tokens(stream, held)}, freed)


async def leave(db: Connection, stream: str, owner: str) -> None:
    await db.end_lost_sessions()
    left: set[int] = set()
    with translated(harmless=False):
        freed = [{"$set": {**_SOUND, **FREE}}]
        if not await _change(db, {**_lanes_of(stream), "owner": owner}, freed, _PATIENCE_MS):
            mine = {lane: {"owner": owner} for lane in range(LANES)}
            left = await _one_by_one(db, stream, mine, freed, _PATIENCE_MS // 3)
        await db.member.delete_one({"_id": {"stream": stream, "owner": owner}})
    if left:
        raise still_locked(left)


async def leases(db: Connection, stream: str) -> Membership:
    with translated(harmless=True):
        membership, _ = await _look(db, stream, DatetimeMS(0))
    return with_free_lanes(membership)


async def fence(
    db: Connection, session: Session, stream: str, owner: str, held: Mapping[int, int]
) -> set[int]:
    """Return the lanes that are still held with these tokens.

    In a transaction this is the first write: until the commit no other relay can take them (L2).
    Without transactions it only reads.
    """
    if not held:
        return set()
    now = {"$expr": {"$gt": ["$until", "$$NOW"]}}
    live = {"owner": owner, **_tokens(stream, held), **now}
    if session is not None:
        result = await db.lease.update_many(live, {"$inc": {"settles": Int64(1)}}, session=session)
        if result.matched_count == len(held):
            return set(held)
    found = db.lease.find(live, {"lane": 1}, session=session)
    return {lease["lane"] async for lease in found}


async def depose(db: Connection, session: Session, lanes: Sequence[Document]) -> None:
    """Take lanes from their owners: nothing in flight on them counts any more (L7)."""
    await db.lease.update_many(
        {"_id": {"$in": list(lanes)}}, {"$set": FREE, "$inc": {"token": Int64(1)}}, session=session
    )


async def tell_replayed(db: Connection, session: Session, lanes: Sequence[Document]) -> None:
    """Record in leases that an event was replayed: a settle in doubt about it is not repeated."""
    await db.lease.update_many(
        {"_id": {"$in": list(lanes)}}, {"$currentDate": {"replayed_at": True}}, session=session
    )


def _tokens(stream: str, held: Mapping[int, int]) -> Document:
    """Return a filter for lanes with these tokens."""
    by_token: defaultdict[int, list[Document]] = defaultdict(list)
    for lane, token in held.items():
        by_token[token].append(lane_id(stream, lane))
    parts = [{"_id": {"$in": ids}, "token": Int64(token)} for token, ids in by_token.items()]
    return parts[0] if len(parts) == 1 else {"$or": parts}


def _lanes_of(stream: str) -> Document:
    """Return a filter for the leases of a stream: by their ids, which cannot be edited."""
    return {"_id": {"$in": [lane_id(stream, lane) for lane in range(LANES)]}}


def _later(seconds: float) -> Any:
    return {"$add": ["$$NOW", Int64(milliseconds(seconds))]}


def _length(seconds: float) -> Int64:
    return Int64(milliseconds(abs(seconds)))


async def _make_lanes(db: Connection, stream: str) -> None:
    """Create the 64 lanes of a stream, once."""
    if stream in db.streams:
        return
    none = Int64(0)
    fresh = {"stream": stream, "token": none, "settles": none, "length": none, **FREE}
    lanes = [
        UpdateOne(
            {"_id": lane_id(stream, lane)}, {"$setOnInsert": {**fresh, "lane": lane}}, upsert=True
        )
        for lane in range(LANES)
    ]
    try:
        await db.lease.bulk_write(lanes, ordered=False)
    except BulkWriteError as error:  # another relay creates them at this moment
        if any(one["code"] != DUPLICATE for one in error.details["writeErrors"]):
            raise
    db.streams.add(stream)


async def _look(db: Connection, stream: str, long_ago: Any) -> tuple[Membership, list[Document]]:
    """Return the membership, and the members to delete."""
    of_members = [
        {"$match": {"stream": stream}},
        {
            "$project": {
                "member": "$owner",
                "name": 1,
                "healthy": 1,
                "live": _LIVE,
                "gone": {"$or": [{"$lt": ["$until", long_ago]}, _ahead_by(10)]},
            }
        },
    ]
    cursor = await db.lease.aggregate(
        [
            {"$match": _lanes_of(stream)},
            {
                "$project": {
                    "_id": 0,
                    "lane": {"$toInt": "$_id.lane"},
                    "owner": 1,
                    "token": 1,
                    "live": _LIVE,
                }
            },
            {"$unionWith": {"coll": db.member.name, "pipeline": of_members}},
        ]
    )
    seen = await cursor.to_list()
    lanes = [
        (s["lane"], s.get("owner"), _number(s.get("token")), s["live"]) for s in seen if "lane" in s
    ]
    alive = [
        (s["member"], s.get("healthy", True), s.get("name", ""))
        for s in seen
        if s.get("member") and s["live"]
    ]
    membership = make_membership(alive, lanes)
    membership = membership._replace(members=tuple(sorted(membership.members)))
    return membership, [s["_id"] for s in seen if s.get("gone")]


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, Int64)) and not isinstance(value, bool) else None
