"""Makes events readable that wait for a time, once they are due (rule W7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bson.datetime_ms import DatetimeMS

from postroom.errors import StoreRetryableError
from postroom.store import Staged
from postroom.stores.mongo.connection import Connection, Session
from postroom.stores.mongo.errors import translated
from postroom.stores.mongo.work_index import ORDER, first_of_lanes, ready_in
from postroom.transactions.mongo.documents import NEVER, Document

_CONFLICT = 112  # another transaction has changed a document
_MOST_CONFLICTS = 200  # in one look


async def stage(db: Connection, stream: str, lanes: Sequence[int], limit: int) -> Staged:
    """Move due events; one query, and more only if there are some."""
    with translated(harmless=False):
        outlook = await _look(db, stream, lanes)
        moved = 0
        if outlook.due_lanes:
            found: list[Any] = []
            each = -(-limit // len(outlook.due_lanes))  # a lane holds up no other
            for lane in outlook.due_lanes:
                due = {**_waiting(stream, [lane]), "awaits": {"$lte": outlook.now}}
                cursor = db.outbox.find(due, {"_id": 1}).sort({"awaits": 1, **ORDER}).limit(each)
                found += [one["_id"] async for one in cursor]
            moved = await _move(db, found[:limit])
            outlook = await _look(db, stream, lanes)
    return Staged(moved, outlook.wait_seconds, outlook.ready)


async def _move(db: Connection, ids: Sequence[Any]) -> int:
    """Make these events ready; returns how many.

    An event that an application's transaction changes, to cancel or reschedule it, is left for a
    later look. Therefore in a transaction: outside of one, the server would wait for the other.
    """
    moved = 0
    left = [list(ids)]
    for _ in range(_MOST_CONFLICTS):
        if not left:
            break
        part = left.pop()
        try:
            moved += await db.transact(partial(_make_ready, db, part), tries=1)
        except StoreRetryableError as error:
            if getattr(error.__cause__, "code", None) != _CONFLICT:
                raise
            middle = len(part) // 2
            left += [half for half in (part[middle:], part[:middle]) if 0 < len(half) < len(part)]
    return moved


async def _make_ready(db: Connection, ids: Sequence[Any], session: Session) -> int:
    still = {"_id": {"$in": list(ids)}, "stage": "waiting"}
    change = {"$set": {"stage": "ready", "awaits": NEVER}}
    return (await db.outbox.update_many(still, change, session=session)).modified_count


@dataclass(slots=True)
class _Outlook:
    """Whether anything is ready, and when the first waiting event of each lane is due."""

    ready: bool = False
    now: Any = None
    due: dict[int, Any] = field(default_factory=dict)

    @property
    def due_lanes(self) -> list[int]:
        return [lane for lane, due in self.due.items() if _is_odd(due) or int(due) <= int(self.now)]

    @property
    def wait_seconds(self) -> float | None:
        """The lanes of odd documents are searched at every look, but none is called for them."""
        times = [int(due) for due in self.due.values() if not _is_odd(due)]
        return max(0.0, (min(times) - int(self.now)) / 1000) if times else None


def _is_odd(due: Any) -> bool:
    """Return whether a document was edited to await several dates: MongoDB compares each."""
    return not isinstance(due, DatetimeMS)


def _waiting(stream: str, lanes: Iterable[int]) -> Document:
    """Return a filter for events that wait for a time; those that await something else do
    not count.
    """
    lane = {"$in": sorted(lanes)}
    return {"stage": "waiting", "stream": stream, "lane": lane, "awaits": {"$type": "date"}}


async def _look(db: Connection, stream: str, lanes: Sequence[int]) -> _Outlook:
    outlook = _Outlook()
    if not lanes:
        return outlook
    waiting = [
        *first_of_lanes(_waiting(stream, lanes)),
        {"$project": {"due": "$first", "now": "$$NOW"}},
    ]
    cursor = await db.outbox.aggregate(
        [
            {"$match": ready_in(stream, lanes)},
            {"$limit": 1},
            {"$project": {"_id": 0, "stage": 1}},
            {"$unionWith": {"coll": db.outbox.name, "pipeline": waiting}},
        ]
    )
    for found in await cursor.to_list():
        if "due" in found:
            outlook.now = found["now"]
            outlook.due[found["_id"]] = found["due"]
        else:
            outlook.ready = True
    return outlook
