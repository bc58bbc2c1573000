"""Writes outcomes behind the fence (rules L2, L5, B1, B3, H1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import attrgetter

from bson.int64 import Int64
from pymongo import DeleteMany, UpdateMany, UpdateOne

from postroom.record import UNREADABLE, Record, stored_error
from postroom.settlement import Missing, Settlement, new_history
from postroom.stores.mongo.blocks import (
    Blocks,
    Change,
    load_blocks,
    write,
)
from postroom.stores.mongo.connection import Connection, Session
from postroom.stores.mongo.leases import fence
from postroom.transaction import Proof, by_place
from postroom.transactions.mongo.documents import (
    DEAD,
    Document,
    Place,
    counter_id,
    inbox_id,
    milliseconds,
    seq_of,
)

NOT_OVER: Document = {"$in": ["pending", "processing", "failed"]}
UNFINISHED: Document = {"stage": {"$ne": "over"}}
NO_LEASE: Document = {"next_attempt_at": None, "lease_owner": None, "lease_until": None}
_STEP = 128  # done events of a change; the server searches each receipt in a list of all of them
_DONE: Document = {"status": "done", "stage": "over", **NO_LEASE}
EXPIRED: Document = {
    "$set": {"status": "expired", "stage": "over", "awaits": "expired", **NO_LEASE},
    "$currentDate": {"settled_at": True},
}


Histories = dict[int | str, object]


async def settle(db: Connection, settlement: Settlement) -> set[int]:
    """Write outcomes behind the fence: three round trips, four where events failed, up
    to eight where keys are blocked.

    Every change leaves finished events alone and sets absolute counts, so that repeating the
    settlement under a new token changes nothing more (L5).
    """
    over: set[str] = set()
    look_first = not db.transactions and not settlement.keep_done

    async def work(session: Session) -> set[int]:
        s = settlement
        s.missing, s.lost, s.kept = [], [], []
        lanes = await fence(db, session, s.stream, s.owner, s.leases)
        if s.claims and lanes:
            lanes = s.weigh(lanes, await holds(db, session, s.proofs()))
        if not (lanes and s):
            return lanes
        if look_first:
            s.missing = await _missing(db, session, s, lanes)
        if s.expired:
            await _keep(db, session, s)
        failed = [f.record for f in s.failed if f.record.lane in lanes and f.record.key is not None]
        failed = [record for record in failed if record.id not in over]
        if failed and session is None:
            failed = await _unfinished(db, session, failed)
        blocks = await _blocks(db, session, s, lanes, failed)
        histories = await _histories(db, session, s, lanes)
        changes = _changes(s, lanes, histories, one_by_one=session is None)
        met = await write(db, session, blocks, changes)
        if met < _expected(s, lanes, blocks):
            if failed and session is not None:
                unfinished = await _unfinished(db, session, failed)
                if len(unfinished) < len(failed):
                    raise _OverError({record.id for record in failed} - {r.id for r in unfinished})
            if s.keep_done or not s.done:
                s.missing = await _missing(db, session, s, lanes)
            elif session is not None and not look_first:
                raise _LookFirstError
        return lanes

    while True:
        try:
            return await db.transact(work)
        except _OverError as error:
            over |= error.ids
        except _LookFirstError:
            look_first = True


async def holds(db: Connection, session: Session, proofs: Sequence[Proof]) -> set[int]:
    """Return the indexes of the proofs that exist."""
    acceptances, counters = by_place(proofs)
    there = set[int]()
    if acceptances:
        names = {(acceptance.consumer, acceptance.id) for acceptance in acceptances.values()}
        wanted = {"_id": {"$in": [inbox_id(*name) for name in names]}, "status": "done"}
        found = db.inbox.find(wanted, {"_id": 1}, session=session)
        done = {(one["_id"]["consumer"], one["_id"]["id"]) async for one in found}
        there |= {
            place
            for place, acceptance in acceptances.items()
            if (acceptance.consumer, acceptance.id) in done
        }
    if counters:
        keys = {(counter.topic, counter.key_hash) for counter in counters.values()}
        wanted = {"_id": {"$in": [counter_id(*key) for key in keys]}}
        found = db.counter.find(wanted, {"last": 1}, session=session)
        last = {(o["_id"]["topic"], bytes(o["_id"]["key_hash"])): o["last"] async for o in found}
        there |= {n for n, c in counters.items() if last.get((c.topic, c.key_hash), 0) >= c.step}
    return there


class _LookFirstError(Exception):
    """Some events to delete were missing: start again, and find out which."""


class _OverError(Exception):
    """Some failed events are finished already and block no key: start again without them."""

    def __init__(self, ids: set[str]) -> None:
        super().__init__()
        self.ids = ids


async def _unfinished(db: Connection, session: Session, records: Sequence[Record]) -> list[Record]:
    """Return the records whose events are unfinished now."""
    wanted = {"_id": {"$in": [record.id for record in records]}, "status": NOT_OVER}
    found = db.outbox.find(wanted, {"ct": 1, "n": 1, "stream": 1, "lane": 1}, session=session)
    there = {(one["_id"], seq_of(one), one["stream"], one["lane"]) async for one in found}
    return [r for r in records if (r.id, r.seq, r.stream, r.lane) in there]


async def _histories(db: Connection, session: Session, s: Settlement, lanes: set[int]) -> Histories:
    """Return the histories of failed, dead and expired events, by id."""
    if not (told := s.told(lanes)):
        return {}
    wanted = {"_id": {"$in": [record.id for record in told]}}
    found = db.outbox.find(wanted, {"history": 1}, session=session)
    return {one["_id"]: one.get("history") async for one in found}


async def _keep(db: Connection, session: Session, s: Settlement) -> None:
    """Find the events whose time is not over by the server's clock."""
    wanted = {
        "_id": {"$in": [record.id for record in s.expired]},
        **UNFINISHED,
        "$expr": {"$not": [{"$and": [
            {"$eq": [{"$type": "$expires_at"}, "date"]}, {"$lte": ["$expires_at", "$$NOW"]},
        ]}]},
    }  # fmt: skip
    found = db.outbox.find(wanted, {"ct": 1, "n": 1}, session=session)
    s.keep({(seq_of(one), one["_id"]) async for one in found})


async def _missing(
    db: Connection, session: Session, s: Settlement, lanes: set[int]
) -> list[Missing]:
    """Return the events that are missing at their positions; finished ones count as present."""
    wanted = {"_id": {"$in": [record.id for record in s.named()]}}
    found = db.outbox.find(wanted, {"ct": 1, "n": 1}, session=session)
    there = [(seq_of(one), one["_id"]) async for one in found]
    missing = s.find_missing(lanes, there)
    return [one for one in missing if one.record.state != UNREADABLE]  # its position may be a guess


def _expected(s: Settlement, lanes: set[int], blocks: Blocks) -> int:
    return (
        blocks.touched
        + sum(record.lane in lanes for record in s.records())
        - sum(record.lane in lanes for record in s.parked)
        - len(s.kept)
    )


async def _blocks(
    db: Connection, session: Session, s: Settlement, lanes: set[int], failed: Sequence[Record]
) -> Blocks:
    """Return the pending changes to the blocks of the settlement's keys."""
    parked, freed = _held(s.parked, lanes), s.freed(lanes)
    keys = [record.key_hash for record in [*failed, *parked, *freed]]
    if not keys:
        return Blocks(s.stream)
    blocks = await load_blocks(db, session, s.stream, keys)
    ended = [*s.done, *(buried.record for buried in s.dead), *s.truly_expired(lanes)]
    blocks.end({record.id for record in _held(ended, lanes)})
    for record in sorted(failed, key=attrgetter("seq")):
        blocks.fail(record)
    for record in parked:
        blocks.park(record)
    for record in freed:
        blocks.advance(record.key_hash)
    return blocks


def _changes(
    s: Settlement, lanes: set[int], histories: Histories, *, one_by_one: bool
) -> list[Change]:
    """Return the changes of events. One by one: each compares before it sets."""
    changes: list[Change] = []
    done = _held(s.done, lanes)
    if one_by_one:
        kept = done if s.keep_done else ()
        changes += [UpdateOne(_same(record), _done(s, [record])) for record in kept]
    elif done and s.keep_done:
        alike = len({s.receipts.get(record.id) for record in done}) == 1
        step = len(done) if alike else _STEP
        for part in (done[n : n + step] for n in range(0, len(done), step)):
            changes.append(UpdateMany({**_these(s, part), **UNFINISHED}, _done(s, part)))
    if done and not s.keep_done:
        changes.append(DeleteMany({**_these(s, done), **UNFINISHED}))
    for buried in s.dead:
        if buried.record.lane in lanes:
            told = new_history(buried, histories)
            change = dead(buried.last_error, buried.attempts, told)
            changes.append(UpdateOne(_same(buried.record), change))
    ends = s.expiries(lanes, histories)
    for record, (_, history) in zip(s.truly_expired(lanes), ends, strict=True):
        change = {**EXPIRED, "$set": {**EXPIRED["$set"], "history": history}}
        changes.append(UpdateOne(_same(record), change))
    for failure in s.failed:
        if failure.record.lane in lanes:
            due = {"$add": ["$$NOW", Int64(milliseconds(failure.delay))]}
            fields = {
                "status": "failed",
                "stage": "waiting",
                "awaits": due,
                "next_attempt_at": due,
                "attempts": failure.attempts,
                "last_error": {"$literal": failure.last_error},
                "lease_owner": None,
                "lease_until": None,
            }
            if (told := new_history(failure, histories)) is not None:
                fields["history"] = {"$literal": told}
            same = _same(failure.record)
            if one_by_one:
                same["attempts"] = {"$lte": failure.attempts}
            changes.append(UpdateOne(same, [{"$set": fields}]))
    changes += _starts(s, lanes)
    if returned := _held(s.returned, lanes):
        fields = {
            "status": "pending",
            "attempts": {"$max": [{"$subtract": ["$attempts", 1]}, 0]},
            "lease_owner": None,
            "lease_until": None,
        }
        started = {**_these(s, returned), "status": "processing"}
        changes.append(UpdateMany(started, [{"$set": fields}]))
    return changes


def _done(s: Settlement, records: Sequence[Record]) -> Document | list[Document]:
    """Return the change that marks events done, each with its receipt."""
    receipts = {record.id: s.receipts.get(record.id) for record in records}
    distinct = set(receipts.values())
    if len(distinct) == 1:
        return {
            "$set": {**_DONE, "receipt": distinct.pop()},
            "$currentDate": {"settled_at": True, "awaits": True},
        }
    place = {"$indexOfArray": [{"$literal": list(receipts)}, "$_id"]}
    receipt = {"$arrayElemAt": [{"$literal": list(receipts.values())}, place]}
    return [{"$set": {**_DONE, "receipt": receipt, "settled_at": "$$NOW", "awaits": "$$NOW"}}]


def _starts(s: Settlement, lanes: set[int]) -> Iterable[Change]:
    """Count an attempt from the value that was read, so that a repeated settle counts once (H1)."""
    by_attempts: defaultdict[int, list[Record]] = defaultdict(list)
    for record in _held(s.starts, lanes):
        by_attempts[record.attempts].append(record)
    for attempts, records in by_attempts.items():
        fields = {
            "status": "processing",
            "lease_owner": {"$literal": s.owner},
            "lease_until": {"$add": ["$$NOW", Int64(milliseconds(s.lease_seconds))]},
            "attempts": {"$max": ["$attempts", attempts + 1]},
        }
        yield UpdateMany({**_these(s, records), "stage": "ready"}, [{"$set": fields}])


def dead(error: str, attempts: int | None = None, history: str | None = None) -> Document:
    """Return the change that makes an event a dead letter."""
    fields: Document = {
        "status": "dead",
        "stage": "over",
        "awaits": DEAD,
        "last_error": stored_error(error),
        **NO_LEASE,
    }
    if attempts is not None:
        fields["attempts"] = attempts
    if history is not None:
        fields["history"] = history
    return {"$set": fields, "$currentDate": {"settled_at": True}}


def _held(records: Iterable[Record], lanes: set[int]) -> list[Record]:
    return [record for record in records if record.lane in lanes]


def _these(s: Settlement, records: Sequence[Record]) -> Document:
    """Return a filter for events at the positions where they were read: an id may have
    been reused.
    """
    return {
        "_id": {"$in": [record.id for record in records]},
        "ct": {"$in": [Place.of(record.seq).ct for record in records]},
        "stream": s.stream,
        "lane": {"$in": list({record.lane for record in records})},
    }


def _same(record: Record) -> Document:
    """Return a filter for the event as it was read: at the same position, and unfinished."""
    place = Place.of(record.seq)
    if record.state != UNREADABLE:
        where = {"_id": record.id, "ct": place.ct, "n": place.n}
        return {**where, "stream": record.stream, "lane": record.lane, **UNFINISHED}
    same: Document = {"stream": record.stream, "lane": record.lane, **UNFINISHED}
    if record.id:
        same["_id"] = record.id
    elif place.ct.time:  # its id is not text; its position identifies it
        same |= {"ct": place.ct, "n": place.n}
    else:  # any of those that have neither: none of them can be sent
        same["_id"] = {"$not": {"$type": "string"}}
    return same
