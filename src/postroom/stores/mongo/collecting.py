"""Embedded events are moved from their documents into the outbox.

An event is given its place in the order within its document, then written to the outbox, then taken
out of the document: three atomic steps. Whoever dies after the second leaves it in both; the next
one finds its id in the outbox and only takes it out. A repeat needs more: that it was sent, done
and pruned before the next one came.

No transaction, where there could be one: a relay that died in it would keep the application's own
documents locked for a minute, until the server gives it up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from datetime import UTC
from secrets import token_bytes
from typing import Any, NamedTuple
from uuid import uuid4

from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from pymongo import UpdateOne
from pymongo.errors import OperationFailure

from postroom.errors import SchemaError, StoreError
from postroom.stores.mongo.connection import Collection, Connection
from postroom.stores.mongo.documents import Document, Place, milliseconds
from postroom.stores.mongo.embedded import field_of, row_of
from postroom.stores.mongo.troubles import translated
from postroom.transaction import Row
from postroom.transactions.pymongo import place_numbers, upsert_of

DOCUMENTS = 100  # looked at together
EVENTS = 100  # of one document
_BYTES = 8_000_000
_ROUNDS = 10
_LEASE_SECONDS = 10.0
_START_SECONDS = 2.0
_NAMESPACE_NOT_FOUND = 26
_LEASE = {"_id": "collector"}
_log = logging.getLogger(__name__)


class _Found(NamedTuple):
    """A document with its first embedded events."""

    ident: Any
    placed: list[tuple[Row, Place]]
    broken: list[Any]  # what no `push` has made
    waiting: bool  # some events have no place yet
    size: int


class Collector:
    """Collects the embedded events of some collections of the outbox' database.

    One collector is at work at a time, by a lease on the server's clock: two at once keep the order
    too, but may repeat an event that was sent and deleted in between.
    """

    def __init__(self, db: Connection, collections: Sequence[str]) -> None:
        self._db = db
        self._field = field_of(db.prefix)
        self._collections: list[Collection] = [db.database[name] for name in collections]
        self._owner = str(uuid4())
        self._told = ""
        self._lease_made = False
        self._turn = asyncio.Lock()  # within this process

    async def collect(self) -> tuple[int, bool]:
        """Move what there is, in bounded steps; returns how many events, and if there is more.

        Never raises a StoreError: the relay has other work that must go on. It is logged, once.
        """
        moved, more = 0, False
        try:
            async with self._turn:
                for collection in self._collections:
                    step, rest = await self._empty(collection)
                    moved, more = moved + step, more or rest
        except StoreError as error:
            if str(error) != self._told:
                _log.warning("embedded events cannot be collected now: %s", error)
            self._told = str(error)
        else:
            self._told = ""
        return moved, more

    async def _empty(self, collection: Collection) -> tuple[int, bool]:
        """Move the events of a collection; returns how many, and if there may be more."""
        moved = 0
        if not await self._look(collection):
            return 0, False
        try:
            for _ in range(_ROUNDS):
                # Nothing counts that was seen before the lease: it may have been sent meanwhile.
                if not await self._begin() or not (found := await self._look(collection)):
                    return moved, False
                step = await self._collect(collection, found)
                if not step:
                    return moved, False
                moved += step
        finally:
            await self._end()
        return moved, True

    async def _collect(self, collection: Collection, found: Sequence[_Found]) -> int:
        for broken in (one for one in found if one.broken):
            await self._set_aside(collection, broken)
        if ids := [one.ident for one in found if one.waiting]:
            await self._sound_clock()
            await self._place(collection, ids)
            found = await self._look(collection, [one.ident for one in found])
        found = [one for one in found if one.placed]
        await self._copy(found)
        await self._take_out(collection, found)
        return sum(len(one.placed) for one in found)

    # -- one step -----------------------------------------------------------------------------
    async def _look(self, collection: Collection, ids: Sequence[Any] | None = None) -> list[_Found]:
        """Return some documents with embedded events, or these, and the first events of each."""
        where: Document = {self._field: {"$type": "array"}, f"{self._field}.id": {"$gt": ""}}
        if ids is not None:
            where["_id"] = {"$in": list(ids)}
        events = {"$slice": [f"${self._field}", EVENTS]}
        found: list[_Found] = []
        weight = 0
        with translated(harmless=True):
            async with collection.find(where, {"_id": 1, "events": events}) as cursor:
                async for document in cursor.limit(DOCUMENTS):
                    one = _found(document)
                    found.append(one)
                    weight += one.size
                    if weight > _BYTES:
                        break
        return found

    async def _place(self, collection: Collection, ids: Sequence[Any]) -> None:
        """Give events their place in the order, in their documents, by the server's clock.

        It ticks for each event, in the order of the list. From then on it does not matter who
        copies them to the outbox, or how many at once: they all write the same.
        """
        (n,) = place_numbers(1, token_bytes(2))
        events = f"{self._field}.$[new]"
        with translated(harmless=False):
            await collection.update_many(
                {"_id": {"$in": list(ids)}, self._field: {"$type": "array"}},
                {
                    "$currentDate": {f"{events}.ct": {"$type": "timestamp"}},
                    "$set": {f"{events}.n": n},
                },
                array_filters=[{"new.ct": {"$exists": False}, "new.id": {"$gt": ""}}],
            )

    async def _sound_clock(self) -> None:
        """Wait until the server's timestamps are later than all that it gave before its start.

        Those of a replica set always are. A standalone begins each second at one, so the second
        in which it was started does not count.
        """
        while not self._db.clustered:
            with translated(harmless=True):
                hello = await self._db.client.admin.command("hello")
            started = hello["topologyVersion"]["processId"].generation_time
            up = (hello["localTime"].replace(tzinfo=UTC) - started).total_seconds()
            if up > _START_SECONDS:
                return
            await asyncio.sleep(_START_SECONDS - up + 0.01)

    async def _copy(self, found: Sequence[_Found]) -> None:
        """Write the events to the outbox, in order; those that are there stay as they are."""
        changes = [upsert_of(row, place.ct, place.n) for one in found for row, place in one.placed]
        if changes:
            with translated(harmless=False):
                await self._db.outbox.bulk_write(changes, ordered=True)

    async def _take_out(self, collection: Collection, found: Sequence[_Found]) -> None:
        """Remove from the documents what is in the outbox now."""
        changes = [
            UpdateOne(
                {"_id": one.ident, self._field: {"$type": "array"}},
                {"$pull": {self._field: {"id": {"$in": [row.id for row, _ in one.placed]}}}},
            )
            for one in found
        ]
        if changes:
            with translated(harmless=False):
                await collection.bulk_write(changes, ordered=False)

    async def _set_aside(self, collection: Collection, one: _Found) -> None:
        """Keep what cannot be an event in a field beside, out of everybody's way."""
        _log.error(
            "%s %r: %d of its embedded events were not made by EmbeddedOutbox; they are now in %r",
            collection.name, one.ident, len(one.broken), f"{self._field}_refused",
        )  # fmt: skip
        change = {
            "$pull": {self._field: {"$in": one.broken}},
            "$push": {f"{self._field}_refused": {"$each": one.broken}},
        }
        with translated(harmless=False):
            still = {"_id": one.ident, self._field: {"$in": one.broken}}
            await collection.update_one(still, change)

    # -- the lease ----------------------------------------------------------------------------
    async def _begin(self) -> bool:
        """Take or renew the lease; False if another collector has it."""
        until = {"$add": ["$$NOW", Int64(milliseconds(_LEASE_SECONDS))]}
        free = [{"owner": self._owner}, {"$expr": {"$lte": ["$until", "$$NOW"]}}]
        with translated(harmless=False):
            if not self._lease_made:
                fresh = {"$setOnInsert": {"until": DatetimeMS(0)}}
                await self._db.meta.update_one(_LEASE, fresh, upsert=True)
                self._lease_made = True
            taken = await self._db.meta.find_one_and_update(
                {**_LEASE, "$or": free}, [{"$set": {"owner": self._owner, "until": until}}]
            )
        return taken is not None

    async def _end(self) -> None:
        with translated(harmless=False):
            await self._db.meta.update_one(
                {**_LEASE, "owner": self._owner}, {"$set": {"until": DatetimeMS(0)}}
            )


def _found(document: Document) -> _Found:
    placed: list[tuple[Row, Place]] = []
    broken: list[Any] = []
    waiting, size = False, 0
    for element in document["events"]:
        row = row_of(element)
        if row is None:
            broken.append(element)
            continue
        size += row.size
        if "ct" not in element:
            waiting = True
        elif not waiting:  # none before it is left behind
            placed.append((row, Place(element["ct"], element["n"])))
    return _Found(document["_id"], placed, broken, waiting, size)


# -- the index ---------------------------------------------------------------------------------
def index_command(prefix: str, collection: str) -> Document:
    """Return the command that makes the index by which embedded events are found."""
    field = field_of(prefix)
    index = {"name": field, "key": {f"{field}.id": 1}, "sparse": True}
    return {"createIndexes": collection, "indexes": [index]}


async def check_indexes(db: Connection, collections: Iterable[str], url: str) -> None:
    """Raise SchemaError unless every collection has its index."""
    for name in collections:
        try:
            there = await db.database[name].index_information()
        except OperationFailure as error:
            if error.code != _NAMESPACE_NOT_FOUND:
                raise
            there = {}
        if field_of(db.prefix) not in there:
            raise SchemaError(
                f"the collection {name!r} has no index for embedded events; "
                f"run: postroom migrate up --store {url}"
            )
