"""Moves embedded events from their documents into the outbox.

An event gets its position within its document, is then written to the outbox, then removed from the
document: three atomic steps. A relay that dies after the second leaves it in both; the next one
finds its id in the outbox and only removes it. A duplicate would require that it was sent, done and
pruned before the next relay came.

No transaction is used, even where it could be: a relay that died in it would keep the application's
own documents locked for a minute, until the server aborts it.

One bad document costs one document: where a step fails for several at once, each is tried
separately. A document that is full to its 16 MB has no room for positions; its events get theirs in
the outbox. A document that still fails is set aside for a while, and reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC
from secrets import token_bytes
from typing import Any, NamedTuple
from uuid import uuid4

import bson
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.errors import BSONError
from bson.int64 import Int64
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError, OperationFailure

from postroom.errors import SchemaError, StoreError, StoreRetryableError, StoreUnknownError
from postroom.record import short_error
from postroom.stores.mongo.connection import Collection, Connection
from postroom.stores.mongo.embedded import field_of, row_of
from postroom.stores.mongo.errors import translated
from postroom.stores.mongo.postponed import Complaint, Postponed, shown
from postroom.transaction import Row
from postroom.transactions.mongo.documents import (
    Document,
    Place,
    milliseconds,
    place_numbers,
    upsert_of,
)

DOCUMENTS = 100  # documents read together
EVENTS = 100  # of one document
_BYTES = 8_000_000
_ROUNDS = 10
_LEASE_SECONDS = 10.0
_START_SECONDS = 2.0
_NAMESPACE_NOT_FOUND = 26
_TOO_LARGE = {10334, 17419, 17420}
_NOT_ALLOWED = {13, 18}
_LEASE = {"_id": "collector"}
_AROUND = len(bson.encode({"": {}})) - len(bson.encode({}))  # the overhead of an element, in bytes
_log = logging.getLogger(__name__)


class _Found(NamedTuple):
    """A document with its first embedded events."""

    ident: Any
    placed: list[tuple[Row, Place]]
    unplaced: list[Row]
    # elements that `push` did not create, and their index in the list
    broken: list[tuple[int, Any]]
    size: int

    @property
    def waiting(self) -> bool:
        """Some events have no position yet."""
        return bool(self.unplaced)


class Collector:
    """Collects the embedded events of some collections of the outbox' database.

    One collector works at a time, by a lease on the server's clock: two at once keep the order too,
    but may repeat an event that was sent and deleted in between.
    """

    def __init__(self, db: Connection, collections: Sequence[str]) -> None:
        self._db = db
        self._field = field_of(db.prefix)
        self._collections: list[Collection] = [db.database[name] for name in collections]
        self._owner = str(uuid4())
        self._told = ""
        self._lease_made = False
        self._turn = asyncio.Lock()  # within this process
        self.asides = Postponed()

    async def collect(self) -> tuple[int, bool]:
        """Move embedded events, in bounded steps; returns how many, and if there are more.

        Never raises: the relay has other work that must go on. Errors are logged once.
        """
        moved, more = 0, False
        errors = []
        async with self._turn:
            for collection in self._collections:
                try:
                    step, rest = await self._empty(collection)
                    moved, more = moved + step, more or rest
                except Exception as error:  # any error that a foreign document causes
                    errors.append(f"{collection.name}: {short_error(error)}")
        said = "; ".join(errors)
        if said and said != self._told:
            _log.warning("cannot collect embedded events: %s", said)
        elif self._told and not said:
            _log.info("collecting embedded events again")
        self._told = said
        return moved, more

    def complaints(self) -> list[Complaint]:
        """Return what to report about documents that were set aside since the last call."""
        return self.asides.complaints()

    async def _empty(self, collection: Collection) -> tuple[int, bool]:
        """Move the events of a collection; returns how many, and if there may be more."""
        moved = 0
        due = self.asides.due(collection.name)
        if not due and not await self._look(collection):
            return 0, False
        try:
            for _ in range(_ROUNDS):
                # Documents read before the lease do not count: their events may have been sent
                # meanwhile.
                if not await self._begin():
                    return moved, False
                if due:
                    moved += await self._each(collection, await self._look(collection, due))
                    due = []
                if not (found := await self._look(collection)):
                    return moved, False
                before = self.asides.times
                step = await self._collect(collection, found)
                if not step and (self.asides.times == before or self.asides.is_full):
                    return moved, False
                moved += step
        finally:
            with suppress(StoreError):  # otherwise it expires
                await self._end()
        return moved, True

    async def _collect(self, collection: Collection, found: Sequence[_Found]) -> int:
        """Move the events of several documents; if that fails, of each document separately."""
        try:
            return await self._move(collection, found)
        except Exception as error:
            if _concerns_all(error):
                raise
        return await self._each(collection, found)

    async def _each(self, collection: Collection, found: Sequence[_Found]) -> int:
        moved = 0
        for one in found:
            if not await self._begin():
                break
            try:
                moved += await self._move_alone(collection, one.ident)
            except Exception as error:
                if _concerns_all(error):
                    raise
                self.asides.put(collection.name, one.ident, error)
            else:
                self.asides.collected(collection.name, one.ident)
        return moved

    async def _move_alone(self, collection: Collection, ident: Any) -> int:
        try:
            return await self._move(collection, await self._look(collection, [ident]))
        except StoreError as error:
            if not _is_too_large(error):
                raise
            found = await self._look(collection, [ident])
            await self._copy(found)
            await self._copy_without_places(found)
            await self._take_out(collection, found)
            moved = sum(len(_ids(one)) for one in found)
            if not moved:
                raise
            return moved

    async def _move(self, collection: Collection, found: Sequence[_Found]) -> int:
        for broken in (one for one in found if one.broken):
            await self._set_aside(collection, broken)
        if ids := [one.ident for one in found if one.waiting]:
            await self._sound_clock()
            await self._place(collection, ids)
            found = await self._look(collection, [one.ident for one in found])
        found = [one._replace(unplaced=[]) for one in found if one.placed]
        await self._copy(found)
        await self._take_out(collection, found)
        return sum(len(one.placed) for one in found)

    # -- one step -----------------------------------------------------------------------------
    async def _look(self, collection: Collection, ids: Sequence[Any] | None = None) -> list[_Found]:
        """Return some documents with embedded events, or these, and the first events of each."""
        where: Document = {self._field: {"$type": "array"}, f"{self._field}.id": {"$gt": ""}}
        if ids is not None:
            where["_id"] = {"$in": list(ids)}
        elif aside := self.asides.of(collection.name):
            where["_id"] = {"$nin": aside}
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
        """Assign positions to events, in their documents, by the server's clock.

        It ticks for each event, in the order of the list. From then on every collector writes the
        same to the outbox, even several at once.
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

        Those of a replica set always are. A standalone starts each second at one, so the second in
        which it was started does not count.
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
        """Write the events to the outbox, in order; existing ones stay unchanged."""
        changes = [upsert_of(row, place.ct, place.n) for one in found for row, place in one.placed]
        if changes:
            with translated(harmless=False):
                await self._db.outbox.bulk_write(changes, ordered=True)

    async def _copy_without_places(self, found: Sequence[_Found]) -> None:
        """Write events to the outbox, in order, which get their position there.

        The first writer of an event decides: later ones leave it unchanged. Each first writes the
        events before it in the document, so that the order is the document's.
        """
        rows = [row for one in found for row in one.unplaced]
        if not rows:
            return
        with translated(harmless=False):
            ct, numbers = await self._db.places(len(rows))
            changes = [upsert_of(row, ct, n) for row, n in zip(rows, numbers, strict=True)]
            await self._db.outbox.bulk_write(changes, ordered=True)

    async def _take_out(self, collection: Collection, found: Sequence[_Found]) -> None:
        """Remove from the documents the events that are in the outbox now."""
        changes = [
            UpdateOne(
                {"_id": one.ident, self._field: {"$type": "array"}},
                {"$pull": {self._field: {"id": {"$in": _ids(one)}}}},
            )
            for one in found
        ]
        if changes:
            with translated(harmless=False):
                await collection.bulk_write(changes, ordered=False)

    async def _set_aside(self, collection: Collection, one: _Found) -> None:
        """Move elements that cannot be events to a separate field.

        The server moves them, by index: they may be too large to be sent back and forth, and
        contain operators.
        """
        field, beside = f"${self._field}", f"{self._field}_refused"
        places = [place for place, _ in one.broken]
        every = {"$range": [0, {"$size": field}]}
        good = {
            "$filter": {"input": every, "as": "i", "cond": {"$not": [{"$in": ["$$i", places]}]}}
        }
        there = {"$cond": [{"$isArray": f"${beside}"}, f"${beside}", []]}
        change = {
            self._field: _elements(field, good),
            beside: {"$concatArrays": [there, _elements(field, places)]},
        }
        same = [_looks_like(field, place, element) for place, element in one.broken]
        where = {"_id": one.ident, self._field: {"$type": "array"}, "$expr": {"$and": same}}
        with translated(harmless=False):
            moved = await collection.update_one(where, [{"$set": change}])
        if moved.modified_count:
            _log.error(
                "%s %s: %d of its embedded events were not created by EmbeddedOutbox; "
  "they were moved to %r",
                collection.name, shown(one.ident), len(one.broken), beside,
            )  # fmt: skip

    # -- the lease ----------------------------------------------------------------------------
    async def _begin(self) -> bool:
        """Take or renew the lease; False if another collector has it."""
        until = {"$add": ["$$NOW", Int64(milliseconds(_LEASE_SECONDS))]}
        too_late = {
            "$add": ["$$NOW", Int64(milliseconds(2 * _LEASE_SECONDS))]
        }  # of a clock that was set back
        over = {"$or": [{"$lte": ["$until", "$$NOW"]}, {"$gt": ["$until", too_late]}]}
        with translated(harmless=False):
            if not self._lease_made:
                fresh = {"$setOnInsert": {"until": DatetimeMS(0)}}
                await self._db.meta.update_one(_LEASE, fresh, upsert=True)
                self._lease_made = True
            taken = await self._db.meta.find_one_and_update(
                {**_LEASE, "$or": [{"owner": self._owner}, {"$expr": over}]},
                [{"$set": {"owner": self._owner, "until": until}}],
            )
        self._lease_made = taken is not None  # otherwise another has it, or it was deleted
        return taken is not None

    async def _end(self) -> None:
        with translated(harmless=False):
            await self._db.meta.update_one(
                {**_LEASE, "owner": self._owner}, {"$set": {"until": DatetimeMS(0)}}
            )


def _found(document: Document) -> _Found:
    placed: list[tuple[Row, Place]] = []
    unplaced: list[Row] = []
    broken: list[tuple[int, Any]] = []
    size = 0
    for number, element in enumerate(document["events"]):
        row = row_of(element)
        if row is None:
            broken.append((number, element))
            size += _weight(element) or 0
            continue
        size += row.size
        if "ct" not in element or unplaced:  # no earlier one is left behind
            unplaced.append(row)
        else:
            placed.append((row, Place(element["ct"], element["n"])))
    return _Found(document["_id"], placed, unplaced, broken, size)


def _weight(element: Any) -> int | None:
    """Return the size of an element as the server counts it, if known."""
    try:
        return len(bson.encode({"": element})) - _AROUND
    except (BSONError, UnicodeError):
        return None


def _ids(one: _Found) -> list[str]:
    return [row.id for row, _ in one.placed] + [row.id for row in one.unplaced]


def _elements(field: str, places: Any) -> Document:
    """Return an expression for the elements of a list at these indexes."""
    return {"$map": {"input": places, "as": "i", "in": {"$arrayElemAt": [field, "$$i"]}}}


def _looks_like(field: str, place: int, element: Any) -> Document:
    """Return an expression that checks that the element at this index is unchanged."""
    there = {"$arrayElemAt": [field, place]}
    is_object = {"$eq": [{"$type": there}, "object"]}
    if not isinstance(element, (dict, DBRef)):
        return {"$not": [is_object]}
    if (weight := _weight(element)) is None:
        return is_object
    return {"$eq": [{"$cond": [is_object, {"$bsonSize": there}, 0]}, weight]}


def _concerns_all(error: Exception) -> bool:
    """Return whether the error concerns the database, not a document."""
    if isinstance(error, (StoreRetryableError, StoreUnknownError)):
        return True
    return getattr(error.__cause__, "code", None) in _NOT_ALLOWED


def _is_too_large(error: StoreError) -> bool:
    """Return whether a document had no room for the addition."""
    cause = error.__cause__
    codes = {getattr(cause, "code", None)}
    if isinstance(cause, BulkWriteError):
        codes |= {one.get("code") for one in cause.details.get("writeErrors", ())}
    return bool(codes & _TOO_LARGE)


# -- the index ---------------------------------------------------------------------------------
def index_command(prefix: str, collection: str) -> Document:
    """Return the command that creates the index for embedded events."""
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
