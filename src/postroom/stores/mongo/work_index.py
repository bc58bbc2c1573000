"""Queries along the index `work`.

The index `work` holds stage, stream, lane, what the event awaits, its position, its key and its
size. For lanes that have events MongoDB merges them in the order of positions, and so reads as many
entries as it returns, whatever else is in the outbox and whichever relay owns the other lanes.

Two properties of MongoDB determine the form of the queries. Entries that were deleted within its
history window (five minutes) are still walked over. First, lanes without events are therefore left
out: for each of them the scan would go on to the next entry of any lane. Second, no other index may
qualify: if there is a choice MongoDB tries all of them, and if there is nothing to find, to the
end.
"""

from __future__ import annotations

from collections.abc import Iterable

from postroom.record import LANES
from postroom.stores.mongo.connection import Connection, Session
from postroom.transactions.mongo.documents import NEVER, Document

ORDER = {"ct": 1, "n": 1}


def ready_in(stream: str, lanes: Iterable[int]) -> Document:
    """Return a filter for events that may be sent."""
    return {
        "stage": "ready",
        "stream": stream,
        "lane": {"$in": sorted(lanes)},
        "awaits": NEVER,
    }


def first_of_lanes(where: Document) -> list[Document]:
    """Return stages that find the first entry of each lane, by one walk over the index."""
    return [
        {"$match": where},
        {"$sort": {"lane": 1, "awaits": 1, **ORDER}},
        {"$group": {"_id": "$lane", "first": {"$first": "$awaits"}}},
    ]


async def lanes_with(db: Connection, where: Document, session: Session = None) -> list[int]:
    """Return the lanes that have events of this stage and stream, by one walk over the index."""
    everywhere = {**where, "lane": {"$in": list(range(LANES))}}
    cursor = await db.outbox.aggregate(first_of_lanes(everywhere), session=session)
    return [found["_id"] for found in await cursor.to_list()]
