"""Reading, staging and pruning (rules R and W7).

The index `work` holds stage, stream, lane, what the event awaits, and its place. For events that
are ready MongoDB merges the lanes in the order of the places, and so looks at as many entries as it
returns, whatever else is in the outbox and whoever owns the other lanes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from postroom.record import LANES, Record
from postroom.store import Read, Staged
from postroom.stores.mongo.connection import Connection, Session
from postroom.stores.mongo.documents import (
    UNREAD,
    Document,
    key_id,
    milliseconds,
    record_of,
    seq_of,
)
from postroom.stores.mongo.troubles import translated
from postroom.transactions.pymongo import NEVER

_CHUNK = 200  # documents that are looked at together
_FEW_BLOCKS = 100
_ORDER = {"ct": 1, "n": 1}


async def read(db: Connection, question: Read) -> list[Record]:
    """Return what may be sent, in one snapshot; mostly in one round trip."""
    if not question.lanes:
        return []
    async with db.snapshot() as session:
        harvest = await _gather(db, question, session)
        if harvest.unseen or harvest.room_left:
            await _gather_more(db, question, harvest, session)
        chosen = harvest.choose(question)
        if not db.transactions:  # no snapshot: what is asked last counts (B2)
            await _ask_again(db, question, harvest)
        barriers = await _barriers(db, question.stream, harvest, chosen, session)
        held = harvest.held
        return [
            record_of(found, barriers.get(found["key_hash"]))
            for found in chosen
            if held is None or found["lane"] in held
        ]


@dataclass(slots=True)
class _Harvest:
    """What a read has found so far."""

    question: Read
    found: list[Document] = field(default_factory=list)  # in order, and no lane beyond its share
    of_lane: Counter[int] = field(default_factory=Counter)
    heads: dict[int, int] = field(default_factory=dict)  # lane → its lowest, of all keys
    held: set[int] | None = None
    blocks: list[Document] = field(default_factory=list)
    seen: int = 0
    weight: int = 0
    full: bool = False  # as many bytes as may be
    last: Any = None

    def put(self, document: Document) -> None:
        """Take a document in, if its lane has not had its share and there is room."""
        self.seen += 1
        self.last = document["ct"]
        lane = document["lane"]
        if self.full or self.of_lane[lane] >= self.question.per_lane:
            return
        self.weight += document["size"]
        if self.weight > self.question.size and self.found:
            self.full = True
            return
        self.of_lane[lane] += 1
        self.found.append(document)

    @property
    def is_cut(self) -> bool:
        """There may be more than was looked at."""
        return not self.full and self.seen >= self.question.rows

    @property
    def unseen(self) -> list[int]:
        """Lanes that have events, but only such as are younger than all that were found."""
        return [lane for lane in self.heads if not self.of_lane[lane]] if self.is_cut else []

    @property
    def room_left(self) -> bool:
        """One lane brought so much more than its share that the batch is half empty."""
        return self.is_cut and len(self.found) < self.question.rows // 2

    def choose(self, question: Read) -> list[Document]:
        """Return the first of each lane, then the oldest of the rest, in their order."""
        if len(self.found) <= question.rows:
            return self.found
        first: dict[int, Document] = {}
        rest: list[Document] = []
        for document in self.found:
            if document["lane"] in first:
                rest.append(document)
            else:
                first[document["lane"]] = document
        heads = [first[lane] for lane in question.lanes if lane in first]
        return sorted((heads + rest)[: max(question.rows, 1)], key=seq_of)


def _ready(stream: str, lanes: Iterable[int], exclude: Collection[bytes] = ()) -> Document:
    where: Document = {
        "stage": "ready",
        "stream": stream,
        "lane": {"$in": sorted(lanes)},
        "awaits": NEVER,
    }
    if exclude:
        where["key_hash"] = {"$nin": list(exclude)}
    return where


async def _gather(db: Connection, question: Read, session: Session) -> _Harvest:
    """Ask for everything at once: leases, blocks, the head of each lane, and the oldest events."""
    harvest = _Harvest(question)
    here = {"stream": question.stream, "lane": {"$in": list(question.lanes)}}
    events = [
        {"$match": _ready(question.stream, question.lanes, question.exclude)},
        {"$sort": _ORDER},
        {"$limit": max(question.rows, 1)},
        {"$project": UNREAD},
    ]
    heads = [
        {"$match": _ready(question.stream, question.lanes)},
        {"$sort": {"lane": 1, "awaits": 1, **_ORDER}},
        {"$group": {"_id": "$lane", "ct": {"$first": "$ct"}}},
    ]
    pipeline: list[Document] = [
        {"$match": here},
        {"$limit": _FEW_BLOCKS + 1},
        {"$project": {"_id": 0, "key_hash": 1, "ct": 1, "n": 1, "barrier": {"$literal": True}}},
        {"$unionWith": {"coll": db.outbox.name, "pipeline": heads}},
        {"$unionWith": {"coll": db.outbox.name, "pipeline": events}},
    ]
    if question.owner is not None:
        leases = [
            {"$match": {**here, "owner": question.owner}},
            {"$project": {"_id": 0, "lane": 1, "token": 1}},
        ]
        pipeline.insert(3, {"$unionWith": {"coll": db.lease.name, "pipeline": leases}})
        harvest.held = set()
    cursor = await db.block.aggregate(
        pipeline, session=session, batchSize=question.rows + 3 * LANES + _FEW_BLOCKS
    )
    async with cursor:
        while not harvest.full and (chunk := await cursor.to_list(_CHUNK)):
            for document in chunk:
                if "payload" in document:
                    harvest.put(document)
                elif "token" in document:
                    _note_lease(harvest, document)
                elif "barrier" in document:
                    harvest.blocks.append(document)
                else:
                    harvest.heads[document["_id"]] = 1
    return harvest


def _note_lease(harvest: _Harvest, lease: Document) -> None:
    assert harvest.held is not None
    if harvest.question.tokens.get(lease["lane"]) == lease["token"]:
        harvest.held.add(lease["lane"])


async def _gather_more(db: Connection, question: Read, harvest: _Harvest, session: Session) -> None:
    """Ask for the heads of lanes that came too short, and for more of those with room left."""
    parts: list[list[Document]] = []
    for lane in harvest.unseen:
        head = _ready(question.stream, [lane], question.exclude)
        parts.append([{"$match": head}, {"$sort": _ORDER}, {"$limit": 1}, {"$project": UNREAD}])
    if harvest.room_left:
        open_lanes = [n for n in question.lanes if harvest.of_lane[n] < question.per_lane]
        more = _ready(question.stream, open_lanes, question.exclude)
        more["ct"] = {"$gte": harvest.last}  # within one snapshot: below it all has been seen
        limit = {"$limit": question.rows}
        parts.append([{"$match": more}, {"$sort": _ORDER}, limit, {"$project": UNREAD}])
    pipeline = parts[0] + [
        {"$unionWith": {"coll": db.outbox.name, "pipeline": part}} for part in parts[1:]
    ]
    known = {document["_id"] for document in harvest.found}
    cursor = await db.outbox.aggregate(pipeline, session=session, batchSize=question.rows + LANES)
    async with cursor:
        while not harvest.full and (chunk := await cursor.to_list(_CHUNK)):
            for document in chunk:
                if document["_id"] not in known:
                    known.add(document["_id"])
                    harvest.put(document)
    harvest.found.sort(key=seq_of)


async def _ask_again(db: Connection, question: Read, harvest: _Harvest) -> None:
    here = {"stream": question.stream, "lane": {"$in": list(question.lanes)}}
    if harvest.held is not None:
        harvest.held.clear()
        async for lease in db.lease.find({**here, "owner": question.owner}):
            _note_lease(harvest, lease)
    harvest.blocks = await db.block.find(here).limit(_FEW_BLOCKS + 1).to_list()


async def _barriers(
    db: Connection,
    stream: str,
    harvest: _Harvest,
    chosen: Sequence[Document],
    session: Session,
) -> dict[bytes, int]:
    """Return the barriers of the keys that were chosen."""
    if len(harvest.blocks) <= _FEW_BLOCKS:
        return {block["key_hash"]: seq_of(block) for block in harvest.blocks}
    keys = {document["key_hash"] for document in chosen}
    ids = [key_id(stream, key) for key in keys]
    found = db.block.find({"_id": {"$in": ids}}, session=session)
    return {block["key_hash"]: seq_of(block) async for block in found}


# -- staging and pruning ---------------------------------------------------------------------------
async def stage(db: Connection, stream: str, lanes: Sequence[int], limit: int) -> Staged:
    """Move what is due; one question, and two more if there is something to move."""
    with translated(harmless=False):
        found = await _look(db, stream, lanes)
        moved = 0
        if found.is_due:
            due = _waiting(stream, lanes)
            due["awaits"] = {"$lte": found.now}
            ids = [
                one["_id"]
                async for one in db.outbox.find(due, {"_id": 1})
                .sort({"awaits": 1, **_ORDER})
                .limit(limit)
            ]
            change = {"$set": {"stage": "ready", "awaits": NEVER}}
            still = {"_id": {"$in": ids}, "stage": "waiting"}
            moved = (await db.outbox.update_many(still, change)).modified_count
            found = await _look(db, stream, lanes)
    return Staged(moved, found.wait_seconds, found.ready)


@dataclass(slots=True)
class _Outlook:
    ready: bool = False
    due: Any = None
    now: Any = None

    @property
    def is_due(self) -> bool:
        return self.due is not None and int(self.due) <= int(self.now)

    @property
    def wait_seconds(self) -> float | None:
        return None if self.due is None else max(0.0, (int(self.due) - int(self.now)) / 1000)


def _waiting(stream: str, lanes: Iterable[int]) -> Document:
    return {"stage": "waiting", "stream": stream, "lane": {"$in": sorted(lanes)}}


async def _look(db: Connection, stream: str, lanes: Sequence[int]) -> _Outlook:
    """Say whether anything is ready, and when the next waiting event is due."""
    outlook = _Outlook()
    if not lanes:
        return outlook
    next_one = [
        {"$match": _waiting(stream, lanes)},
        {"$sort": {"awaits": 1}},
        {"$limit": 1},
        {"$project": {"_id": 0, "due": "$awaits", "now": "$$NOW"}},
    ]
    cursor = await db.outbox.aggregate(
        [
            {"$match": _ready(stream, lanes)},
            {"$limit": 1},
            {"$project": {"_id": 0, "stage": 1}},
            {"$unionWith": {"coll": db.outbox.name, "pipeline": next_one}},
        ]
    )
    async for found in cursor:
        if "due" in found:
            outlook.due, outlook.now = found["due"], found["now"]
        else:
            outlook.ready = True
    return outlook


async def prune(
    db: Connection, streams: Sequence[str], older_than_seconds: float, limit: int
) -> int:
    """Delete old done events; a look, if there are none."""
    removed = 0
    with translated(harmless=False):
        for stream in streams:
            ids = await _old(db, stream, older_than_seconds, limit - removed)
            if ids:
                gone = await db.outbox.delete_many({"_id": {"$in": ids}, "status": "done"})
                removed += gone.deleted_count
            if removed >= limit:
                break
    return removed


async def _old(db: Connection, stream: str, seconds: float, limit: int) -> list[str]:
    """Return the ids of the oldest done events; those of a lane lie together in the index."""
    cursor = await db.outbox.aggregate(
        [
            {
                "$match": {
                    "stage": "over",
                    "stream": stream,
                    "lane": {"$in": list(range(LANES))},
                    "awaits": {"$type": "date"},
                }
            },
            {"$sort": {"awaits": 1, **_ORDER}},
            {"$limit": limit},
            {
                "$project": {
                    "old": {"$lt": ["$awaits", {"$subtract": ["$$NOW", milliseconds(seconds)]}]}
                }
            },
        ],
        batchSize=limit,
    )
    return [found["_id"] for found in await cursor.to_list() if found["old"]]
