"""Reads the events that may be sent now, fair over lanes (rules R1 to R4, B2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from postroom.record import LANES, Record
from postroom.store import ReadRequest
from postroom.stores.mongo.connection import Connection, Session
from postroom.stores.mongo.read_past_keys import COVERED, entries_beside, fetch, head_beside
from postroom.stores.mongo.records import record_of, sound
from postroom.stores.mongo.work_index import ORDER, first_of_lanes, ready_in
from postroom.transactions.mongo.documents import Document, key_id, seq_of

_CHUNK = 25  # documents taken from a reply together
_FEW_BLOCKS = 100


async def read(db: Connection, request: ReadRequest) -> list[Record]:
    """Return the events that may be sent, in one snapshot; usually in two round trips."""
    if not request.lanes:
        return []
    async with db.snapshot() as session:
        outline = await _outline(db, request, session)
        if not outline.lanes:
            return []
        harvest = _Harvest(request)
        if request.exclude:
            await _gather_beside(db, harvest, outline.lanes, session)
            chosen = await fetch(db, request.stream, harvest.choose(), session)
        else:
            await _gather(db, harvest, outline.lanes, session)
            if harvest.room_left(outline.lanes):
                await _gather_more(db, harvest, outline.lanes, session)
            chosen = harvest.choose()
        if session is None:  # no snapshot: the last query counts (B2)
            chosen = await _without_gaps(db, harvest, chosen)
            outline = await _outline(db, request, session)
        barriers = await _barriers(db, request.stream, outline, chosen, session)
        return [
            record_of(found, barriers.get(found["key_hash"]))
            for found in chosen
            if outline.is_held(found["lane"])
        ]


@dataclass(slots=True)
class _Outline:
    """The overview before a read: lanes with events, leases, blocks."""

    lanes: list[int] = field(default_factory=list)
    held: set[int] | None = None
    blocks: list[Document] = field(default_factory=list)

    def is_held(self, lane: int) -> bool:
        return self.held is None or lane in self.held


async def _outline(db: Connection, request: ReadRequest, session: Session) -> _Outline:
    outline = _Outline()
    here = {"stream": request.stream, "lane": {"$in": list(request.lanes)}}
    blocks = [
        {"$match": here},
        {"$limit": _FEW_BLOCKS + 1},
        {"$project": {"_id": 0, "key_hash": 1, "ct": 1, "n": 1}},
    ]
    pipeline: list[Document] = [
        *first_of_lanes(ready_in(request.stream, request.lanes)),
        {"$unionWith": {"coll": db.block.name, "pipeline": blocks}},
    ]
    if request.owner is not None:
        leases = [
            {"$match": {**here, "owner": request.owner}},
            {"$project": {"_id": 0, "lane": 1, "token": 1}},
        ]
        pipeline.append({"$unionWith": {"coll": db.lease.name, "pipeline": leases}})
        outline.held = set()
    cursor = await db.outbox.aggregate(
        pipeline, session=session, batchSize=2 * LANES + _FEW_BLOCKS + 2
    )
    for found in await cursor.to_list():
        if "token" in found:
            if outline.held is not None and request.tokens.get(found["lane"]) == found["token"]:
                outline.held.add(found["lane"])
        elif "key_hash" in found:
            if isinstance(found["key_hash"], bytes):
                outline.blocks.append(found)
        elif "_id" in found:
            outline.lanes.append(int(found["_id"]))
    if outline.held is not None:
        outline.lanes = [lane for lane in outline.lanes if lane in outline.held]
    return outline


@dataclass(slots=True)
class _Harvest:
    """The events that a read has found so far."""

    request: ReadRequest
    found: list[Document] = field(default_factory=list)  # in order, and no lane beyond its share
    of_lane: Counter[int] = field(default_factory=Counter)
    seen: int = 0
    weight: int = 0
    full: bool = False  # the maximum number of bytes
    last: Any = None

    def put(self, document: Document) -> None:
        """Add a document, if its lane has not reached its share and there is room."""
        self.seen += 1
        self.last = document["ct"]
        lane, size = document["lane"], document["size"]
        if self.full or self.of_lane[lane] >= self.request.per_lane:
            return
        self.weight += size if isinstance(size, int) else 0
        if self.weight > self.request.size and self.found:
            self.full = True
            return
        self.of_lane[lane] += 1
        self.found.append(document)

    def put_more(self, documents: Iterable[Document]) -> None:
        """Add documents of further queries; some of them may be known."""
        known = {seq_of(document) for document in self.found}
        for document in documents:
            if (place := seq_of(document)) not in known:
                known.add(place)
                self.put(document)
        self.found.sort(key=seq_of)

    @property
    def is_cut(self) -> bool:
        """There may be more than was read."""
        return not self.full and self.seen >= self.request.rows

    def unseen(self, lanes: Iterable[int]) -> list[int]:
        """Return lanes with events that are all younger than those found."""
        return [lane for lane in lanes if not self.of_lane[lane]] if self.is_cut else []

    @property
    def is_thin(self) -> bool:
        """One lane had much more than its share, so the batch is half empty."""
        return self.is_cut and len(self.found) < self.request.rows // 2

    def room_left(self, lanes: Iterable[int]) -> bool:
        return bool(self.is_thin or self.unseen(lanes))

    def choose(self) -> list[Document]:
        """Return the first of each lane, then the oldest of the rest, in order."""
        request = self.request
        if len(self.found) <= request.rows:
            return self.found
        first: dict[int, Document] = {}
        rest: list[Document] = []
        for document in self.found:
            if document["lane"] in first:
                rest.append(document)
            else:
                first[document["lane"]] = document
        heads = [first[lane] for lane in request.lanes if lane in first]
        return sorted((heads + rest)[: max(request.rows, 1)], key=seq_of)


async def _gather(
    db: Connection, harvest: _Harvest, lanes: Sequence[int], session: Session
) -> None:
    """Read the oldest events of these lanes.

    The server sends as many at once as will probably fit, judging by the last read: large events
    beyond the byte limit would be fetched in vain.
    """
    request = harvest.request
    events = ready_in(request.stream, lanes)
    cursor = db.outbox.find(events, session=session).sort(ORDER).limit(max(request.rows, 1))
    fitting = request.size // max(db.weights.get(request.stream, 1), 1) + 1
    async with cursor.batch_size(min(request.rows, fitting) + 1):
        while not harvest.full and (chunk := await cursor.to_list(min(_CHUNK, fitting + 1))):
            for document in chunk:
                harvest.put(sound(document))
    if harvest.found:
        db.weights[request.stream] = harvest.weight // len(harvest.found)


async def _gather_beside(
    db: Connection, harvest: _Harvest, lanes: Sequence[int], session: Session
) -> None:
    """Look for the oldest events of these lanes without the keys to leave out."""
    request = harvest.request
    ready, busy = ready_in(request.stream, lanes), request.exclude
    found, last = await entries_beside(db, ready, busy, request.rows, session)
    for entry in found:
        harvest.put(entry)
    if last is None or harvest.full:
        return
    parts = [head_beside(ready, lane, busy) for lane in lanes if not harvest.of_lane[lane]]
    if parts:
        harvest.put_more(await _union(db, parts, session, request.rows))
    if len(harvest.found) < request.rows // 2 and session is not None:
        with_room = [lane for lane in lanes if harvest.of_lane[lane] < request.per_lane]
        more = {**ready_in(request.stream, with_room), "ct": {"$gte": last}}
        found, _ = await entries_beside(db, more, busy, request.rows, session)
        harvest.put_more(found)


async def _gather_more(
    db: Connection, harvest: _Harvest, lanes: Sequence[int], session: Session
) -> None:
    """Read the heads of lanes below their share, and more of those with room left."""
    request = harvest.request
    parts = [_oldest(ready_in(request.stream, [lane]), 1) for lane in harvest.unseen(lanes)]
    if harvest.is_thin and session is not None:
        with_room = [lane for lane in lanes if harvest.of_lane[lane] < request.per_lane]
        more = ready_in(request.stream, with_room)
        # within one snapshot: everything below it has been seen
        more["ct"] = {"$gte": harvest.last}
        parts.append(_oldest(more, request.rows))
    if parts:
        harvest.put_more(map(sound, await _union(db, parts, session, request.rows)))


async def _union(
    db: Connection, parts: Sequence[list[Document]], session: Session, rows: int
) -> list[Document]:
    first, *others = parts
    cursor = await db.outbox.aggregate(
        first + [{"$unionWith": {"coll": db.outbox.name, "pipeline": part}} for part in others],
        session=session,
        batchSize=rows + LANES,
    )
    return await cursor.to_list()


async def _without_gaps(
    db: Connection, harvest: _Harvest, chosen: Sequence[Document]
) -> list[Document]:
    """Leave out events behind another of their key that the scan has not met.

    A scan without a snapshot may pass a position where an event is written only afterwards, and
    then meet another one further on. The second scan starts after both writes: it meets the first
    one.
    """
    request, known = harvest.request, {seq_of(document) for document in chosen}
    lanes = {document["lane"] for document in chosen}
    if len(known) == len(lanes):
        return list(chosen)  # only heads of lanes, which no scan can have passed
    events = ready_in(request.stream, lanes)
    if request.exclude:
        events["key_hash"] = {"$nin": sorted(request.exclude)}
    again = db.outbox.find(events, COVERED)
    cursor = again.sort(ORDER).limit(max(request.rows, 1)).batch_size(request.rows + 1)
    found = await cursor.to_list()
    gaps: dict[bytes, int] = {}
    for document in found:
        if seq_of(document) not in known and isinstance(document.get("key_hash"), bytes):
            gaps.setdefault(document["key_hash"], seq_of(document))
    end = seq_of(found[-1]) if len(found) >= request.rows else None
    kept, begun = [], set[int]()
    for document in chosen:
        place, lane = seq_of(document), document["lane"]
        is_head = lane not in begun
        begun.add(lane)
        gap = gaps.get(document["key_hash"])
        if (gap is None or place < gap) and (is_head or end is None or place <= end):
            kept.append(document)
    return kept


def _oldest(where: Document, limit: int) -> list[Document]:
    return [{"$match": where}, {"$sort": ORDER}, {"$limit": limit}]


async def _barriers(
    db: Connection,
    stream: str,
    outline: _Outline,
    chosen: Sequence[Document],
    session: Session,
) -> dict[bytes, int]:
    """Return the barriers of the selected keys."""
    if len(outline.blocks) <= _FEW_BLOCKS:
        return {block["key_hash"]: seq_of(block) for block in outline.blocks}
    keys = {document["key_hash"] for document in chosen}
    ids = [key_id(stream, key) for key in keys]
    found = db.block.find({"_id": {"$in": ids}}, session=session)
    return {block["key_hash"]: seq_of(block) async for block in found}
