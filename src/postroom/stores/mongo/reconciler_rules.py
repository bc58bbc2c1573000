"""How a reconciler recognizes documents that are served and need no event.

"It has no event" is not enough: done events are pruned, and all of history would be sent again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol

from bson.codec_options import DatetimeConversion
from bson.int64 import Int64
from pymongo import UpdateOne
from pymongo.asynchronous.database import AsyncDatabase

from postroom.errors import ConfigError
from postroom.event import Event
from postroom.model.durations import Seconds, to_seconds
from postroom.stores.mongo.connection import Connection
from postroom.transactions.mongo.documents import Document, milliseconds


class Due(NamedTuple):
    """A canonical document and its event."""

    document: Document
    event: Event


class Served(Protocol):
    """The `served` rule of a Reconciler."""

    order: str | None  # walk the documents by this field; None: by their `_id`

    def check(self, keep_done_seconds: float) -> None:
        """Raise ConfigError if it cannot work with events that are pruned after this time."""

    def query(self) -> Document:
        """Return a filter for documents, in addition to the user's own query."""

    async def unserved(self, db: Connection, collection: str, due: Sequence[Due]) -> list[Due]:
        """Return those that need an event; none of them has one in the outbox."""

    async def settled(self, db: Connection, collection: str, due: Sequence[Due]) -> None:
        """All of these have their event in the outbox now."""


class Marked:
    """Served: the document carries the id of its event in this field.

    The reconciler writes the mark once the event is in the outbox, unless the field has changed
    since it read the document; the application or the handler may write it too.
    """

    order = None

    def __init__(self, field: str) -> None:
        self.field = field

    def check(self, keep_done_seconds: float) -> None: ...

    def query(self) -> Document:
        return {}

    async def unserved(self, db: Connection, collection: str, due: Sequence[Due]) -> list[Due]:
        """Read the marks again: a mark that has changed was written by another process."""
        due = [one for one in due if self._mark(one) != one.event.id]
        if not due:
            return []
        found = plain(db)[collection].find({"$or": [self._same(one) for one in due]}, {"_id": 1})
        still = [one["_id"] async for one in found]
        return [one for one in due if one.document["_id"] in still]

    async def settled(self, db: Connection, collection: str, due: Sequence[Due]) -> None:
        changes = [
            UpdateOne(self._same(one), {"$set": {self.field: one.event.id}})
            for one in due
            if self._mark(one) != one.event.id
        ]
        if changes:
            await plain(db)[collection].bulk_write(changes, ordered=False)

    def _same(self, due: Due) -> Document:
        """Return a filter for the document with the mark that was read, whatever it holds."""
        return {"_id": {"$eq": due.document["_id"]}, self.field: {"$eq": self._mark(due)}}

    def _mark(self, due: Due) -> Any:
        return _at(due.document, self.field)


class HasResult:
    """Served: a collection of the same database has a document with the event's id in a field.

    A handler that writes by the natural key, as `upsert` does, leaves such a document.
    """

    order = None

    def __init__(self, collection: str, field: str = "_id") -> None:
        self.collection = collection
        self.field = field

    def check(self, keep_done_seconds: float) -> None: ...

    def query(self) -> Document:
        return {}

    async def unserved(self, db: Connection, collection: str, due: Sequence[Due]) -> list[Due]:  # noqa: ARG002
        ids = [one.event.id for one in due]
        results = plain(db)[self.collection].find({self.field: {"$in": ids}}, {self.field: 1})
        there = [_at(result, self.field) async for result in results]
        return [one for one in due if one.event.id not in there]

    async def settled(self, db: Connection, collection: str, due: Sequence[Due]) -> None: ...


class FoundBy:
    """Served: an async function of event ids returns those whose result it has found."""

    order = None

    def __init__(self, look: Callable[[Sequence[str]], Awaitable[Collection[str]]]) -> None:
        self.look = look

    def check(self, keep_done_seconds: float) -> None: ...

    def query(self) -> Document:
        return {}

    async def unserved(self, db: Connection, collection: str, due: Sequence[Due]) -> list[Due]:  # noqa: ARG002
        there = set(await self.look([one.event.id for one in due]))
        return [one for one in due if one.event.id not in there]

    async def settled(self, db: Connection, collection: str, due: Sequence[Due]) -> None: ...


class Recent:
    """Only documents whose date, in this field, is within a window are examined.

    The window must be shorter than done events are kept: only then "it has no event" is reliable.
    Documents without a date in the field are never examined. The field should have an index.
    """

    def __init__(self, field: str, within: Seconds) -> None:
        self.order = self.field = field
        self.seconds = to_seconds(within)
        if not self.seconds > 0:
            raise ConfigError(f"reconciler: the window must be more than 0 seconds, not {within}")

    def check(self, keep_done_seconds: float) -> None:
        if self.seconds >= keep_done_seconds:
            raise ConfigError(
                f"reconciler: its window of {self.seconds:g} s must be shorter than "
                "keep_done_seconds "
                f"({keep_done_seconds:g} s); otherwise it would send events again whose rows were "
                "pruned. Shorten the window, or raise keep_done_seconds"
            )

    def query(self) -> Document:
        begin = {"$subtract": ["$$NOW", Int64(milliseconds(self.seconds))]}
        return {
            self.field: {"$type": "date"},
            "$expr": {"$gte": [f"${self.field}", begin]},
        }

    async def unserved(self, db: Connection, collection: str, due: Sequence[Due]) -> list[Due]:  # noqa: ARG002
        return list(due)

    async def settled(self, db: Connection, collection: str, due: Sequence[Due]) -> None: ...


def plain(db: Connection) -> AsyncDatabase[Document]:
    """Return the database for the user's functions: with the options of the URL, and aware dates in
    UTC.

    Values that are compared with a document read this way must be read this way, too.
    """
    codec = db.client.codec_options.with_options(
        tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_AUTO
    )
    return db.database.with_options(codec_options=codec)


def _at(document: Document, path: str) -> Any:
    """Return the value at a dotted path; None if there is none."""
    found: Any = document
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found
