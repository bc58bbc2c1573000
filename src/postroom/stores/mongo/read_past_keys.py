"""Reads past keys that are in flight, however many of their events wait (R3, P1).

The events of a busy key stay ready, and are in the way of a scan: every read would look at 200,000
entries behind a key in flight. A read with keys to leave out therefore looks at a bounded number of
entries, in the index alone, and fetches only the selected ones.

A lane in which one busy key fills all entries that were read is *deep*. It is read to a small
depth, so that it does not hold up the others, and to its end occasionally: events behind the busy
key wait for that.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from postroom.stores.mongo.connection import Connection, Session
from postroom.stores.mongo.records import sound
from postroom.stores.mongo.work_index import ORDER
from postroom.transactions.mongo.documents import Document, seq_of

COVERED = {"_id": 0, "lane": 1, "ct": 1, "n": 1, "key_hash": 1, "size": 1}
_LEAST = 500  # entries that are always read
_SHALLOW = 200  # entries of a deep lane
_TURNS = 3
_PART = 20  # at most one part in this many of the time is spent on reading deep lanes to their end
_SHORTEST = 1.0


@dataclass(slots=True)
class Depths:
    """The deep lanes of a stream, as found by the reads of this process."""

    busy: dict[int, bytes] = field(default_factory=dict)  # lane → the key that fills it
    rest_until: float = 0.0  # look no deeper before

    def still(self, exclude: Collection[bytes]) -> set[int]:
        """Return the lanes that are deep while these keys are busy."""
        if self.busy:
            self.busy = {lane: key for lane, key in self.busy.items() if key in exclude}
        return set(self.busy)


async def entries_beside(
    db: Connection, ready: Document, exclude: Collection[bytes], rows: int, session: Session
) -> tuple[list[Document], Any]:
    """Return the first entries without these keys, in order, and the time of the last one read, if
    there may be more.

    An entry holds an event's position and size. `ready` is the filter of a read.
    """
    lanes, busy = set(ready["lane"]["$in"]), frozenset(exclude)
    depths = db.depths.setdefault(ready["stream"], Depths())
    depth = max(2 * rows, _LEAST)
    found: list[Document] = []
    for _ in range(_TURNS):
        flat = lanes - depths.still(busy)
        found = await _walk(db, ready, flat, depth, session)
        if len(found) < depth or not _note_deep(depths, found, busy):
            break
    kept = [entry for entry in found if not _is_busy(entry, busy)]
    if deep := sorted(depths.still(busy) & lanes):
        kept += await _look_into(db, ready, deep, busy, depths, rows, session)
        kept.sort(key=seq_of)
    return kept, found[-1].get("ct") if len(found) >= depth else None


def head_beside(ready: Document, lane: int, exclude: Collection[bytes]) -> list[Document]:
    """Return the stages that find the first entry of a lane without these keys, if it is near."""
    return [
        {"$match": {**ready, "lane": lane}},
        {"$sort": ORDER},
        {"$limit": _SHALLOW},
        {"$match": {"key_hash": {"$nin": sorted(exclude)}}},
        {"$limit": 1},
        {"$project": COVERED},
    ]


def _is_busy(entry: Document, busy: Collection[bytes]) -> bool:
    key = entry.get("key_hash")
    return isinstance(key, bytes) and key in busy


def _note_deep(depths: Depths, found: Sequence[Document], busy: Collection[bytes]) -> bool:
    """Mark lanes that are filled by one busy key; True if there are some."""
    filled = Counter((int(e["lane"]), e["key_hash"]) for e in found if _is_busy(e, busy))
    new = {lane: key for (lane, key), number in filled.items() if number > len(found) // 4}
    depths.busy |= new
    return bool(new)


async def _look_into(
    db: Connection,
    ready: Document,
    deep: Sequence[int],
    busy: Collection[bytes],
    depths: Depths,
    rows: int,
    session: Session,
) -> list[Document]:
    """Read deep lanes: their first entries, and occasionally to their end."""
    kept: list[Document] = []
    for lane in deep:
        found = await _walk(db, ready, [lane], _SHALLOW, session)
        if len(found) < _SHALLOW:
            depths.busy.pop(lane, None)  # another read may have found it meanwhile
        kept += [entry for entry in found if not _is_busy(entry, busy)]
    now = time.monotonic()
    if now < depths.rest_until:
        return kept
    known = {seq_of(entry) for entry in kept}
    there = await _walk(db, ready, deep, rows, session, exclude=busy)
    took = time.monotonic() - now
    depths.rest_until = now + max(_PART * took, _SHORTEST)
    return kept + [entry for entry in there if seq_of(entry) not in known]


async def _walk(
    db: Connection,
    ready: Document,
    lanes: Iterable[int],
    limit: int,
    session: Session,
    *,
    exclude: Collection[bytes] = (),
) -> list[Document]:
    """Return entries of the index, in order, without fetching a document."""
    where = {**ready, "lane": {"$in": sorted(lanes)}}
    if not where["lane"]["$in"]:
        return []
    if exclude:
        where["key_hash"] = {"$nin": sorted(exclude)}
    cursor = db.outbox.find(where, COVERED, session=session).sort(ORDER).limit(max(limit, 1))
    return await cursor.batch_size(limit + 1).to_list()


async def fetch(
    db: Connection, stream: str, entries: Sequence[Document], session: Session
) -> list[Document]:
    """Return the documents of entries, in order."""
    if not entries:
        return []
    wanted = {seq_of(entry) for entry in entries}
    places = {
        "stream": stream,
        "stage": "ready",
        "ct": {"$in": list({entry["ct"]: None for entry in entries})},
        "n": {"$in": list({entry["n"]: None for entry in entries})},
        "size": {"$gte": 0},  # required to use the index `place`
    }
    cursor = db.outbox.find(places, session=session).hint("place").batch_size(len(entries) + 1)
    found = [sound(document) for document in await cursor.to_list()]
    return sorted((one for one in found if seq_of(one) in wanted), key=seq_of)
