"""Searches by index, the bounds of other searches, and the optional indexes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.timestamp import Timestamp

from postroom.lookup import Filter
from postroom.search import (
    CORRELATION,
    INDEX_OF,
    OPTIONAL,
    OUT_OF_ORDER_US,
    Column,
    Outline,
    Reach,
    beginning_with,
    check_index,
    no_index,
    to_outline,
    walk_by,
)
from postroom.stores.mongo.connection import Connection
from postroom.stores.mongo.errors import translated
from postroom.stores.mongo.records import date_microseconds
from postroom.stores.mongo.schema import building
from postroom.transactions.mongo.documents import Document, Place, seq_of

_ORDER = {"ct": 1, "n": 1}
_SECOND = 1_000_000
_OUTLINE = (
    "stream", "event_type", "topic", "key", "aggregate_type", "correlation_id", "causation_id",
    "status", "stage", "attempts", "created_at", "next_attempt_at", "settled_at", "last_error",
    "ct", "n",
)  # fmt: skip


class Search:
    """The port `Search` on MongoDB.

    database    returns the open connection
    connected   opens one for a piece of work
    """

    def __init__(
        self,
        database: Callable[[], Connection],
        connected: Callable[[], AbstractAsyncContextManager[Connection]],
        where: Callable[[Connection, Filter], Any],
    ) -> None:
        self._database = database
        self._connected = connected
        self._where = where

    async def indexes(self) -> frozenset[str]:
        return await indexes(self._database())

    async def set_index(self, name: str, *, present: bool) -> bool:
        check_index(name)
        changed = False
        async with self._connected() as db:
            with translated(harmless=False):
                there = await _names(db)
                for column in OPTIONAL[name]:
                    index = INDEX_OF[column]
                    if (index in there) == present:
                        continue
                    changed = True
                    if present:
                        with building():
                            await db.outbox.create_index(
                                {column: 1, **_ORDER},
                                name=index,
                                partialFilterExpression={column: {"$gte": ""}},
                            )
                    else:
                        await db.outbox.drop_index(index)
        return changed

    async def reach(self, wanted: Filter, rows: int) -> Reach:
        db = self._database()
        where: Document = await self._where(db, wanted)
        by = walk_by(wanted, await indexes(db), bounded=True)
        hint: dict[str, Any] = {}
        if by is None:
            walked, hint = {"size": {"$gte": 0}}, {"hint": "place"}
        elif by == "state":
            needed = ("status", "stage", "awaits", "lane", "stream")
            walked = {name: where[name] for name in needed if name in where}
        else:
            walked, hint = {by: where[by]}, {"hint": INDEX_OF[by]}
        walked |= {name: where[name] for name in ("ct", "$and") if name in where}
        with translated(harmless=True):
            cursor = await db.outbox.aggregate(
                [
                    {"$match": walked},
                    {"$sort": dict.fromkeys(_ORDER, -1 if wanted.newest else 1)},
                    {"$limit": rows},
                    {
                        "$group": {
                            "_id": None,
                            "rows": {"$sum": 1},
                            "ct": {"$last": "$ct"},
                            "n": {"$last": "$n"},
                        }
                    },
                ],
                **hint,
            )
            found = await cursor.to_list()
        return Reach(found[0]["rows"], seq_of(found[0])) if found else Reach(0, 0)

    async def position(self, at_us: int) -> int:
        """The position begins with the time, in seconds."""
        seconds = max(0, min(at_us - OUT_OF_ORDER_US, (1 << 32) * _SECOND - 1) // _SECOND)
        return Place(Timestamp(seconds, 0), Int64(0)).seq

    async def outline(self, by: Column, value: str, limit: int) -> list[Outline]:
        db = self._database()
        if by != "key" and CORRELATION not in await indexes(db):
            raise no_index(by)
        way = -1 if by == "key" else 1
        with translated(harmless=True):
            cursor = db.outbox.find({by: value}, dict.fromkeys(_OUTLINE, 1), hint=INDEX_OF[by])
            found = await cursor.sort({"ct": way, "n": way}).limit(limit).to_list()
        return [_outline(one) for one in found]

    async def ids(self, beginning: str, limit: int) -> list[str]:
        where = {"_id": {"$gte": beginning}}
        with translated(harmless=True):
            cursor = self._database().outbox.find(where, {"_id": 1}, hint="_id_")
            found = await cursor.sort({"_id": 1}).limit(limit).to_list()
        return beginning_with(beginning, (one["_id"] for one in found))

    async def outlines(self, ids: Sequence[str]) -> list[Outline]:
        where = {"_id": {"$in": list(ids)}}
        with translated(harmless=True):
            cursor = self._database().outbox.find(where, dict.fromkeys(_OUTLINE, 1))
            found = await cursor.to_list()
        return sorted(map(_outline, found), key=lambda one: one.seq)

    async def newest(self, limit: int) -> list[Outline]:
        where = {"size": {"$gte": 0}}  # the condition of the index
        with translated(harmless=True):
            cursor = self._database().outbox.find(where, dict.fromkeys(_OUTLINE, 1), hint="place")
            found = await cursor.sort({"ct": -1, "n": -1}).limit(limit).to_list()
        return [_outline(one) for one in found]


async def indexes(db: Connection) -> frozenset[str]:
    """Return the optional indexes that are complete."""
    with translated(harmless=True):
        there = await _names(db)
    return frozenset(
        name
        for name, columns in OPTIONAL.items()
        if all(INDEX_OF[column] in there for column in columns)
    )


async def _names(db: Connection) -> set[str]:
    """Return the finished indexes; one that is being built is listed with its build's id."""
    found = await (await db.outbox.list_indexes()).to_list()
    return {str(one["name"]) for one in found if "buildUUID" not in one}


def _outline(found: Mapping[str, Any]) -> Outline:
    named = (found.get(name) for name in _OUTLINE[:-2])
    return to_outline([seq_of(found), found.get("_id"), *map(_plain, named)])


def _plain(value: Any) -> Any:
    if isinstance(value, DatetimeMS):
        return date_microseconds(value)
    return int(value) if isinstance(value, Int64) else value
