"""Events embedded in the aggregate's own document.

MongoDB changes one document atomically, with or without transactions. An event that is pushed into
a field of its document exists if and only if the change does (G1); the relay collects it from
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bson.int64 import Int64
from bson.timestamp import Timestamp

from postroom.errors import DuplicateEventError
from postroom.event import DEFAULT_TOPIC, Event
from postroom.outbox import to_row
from postroom.record import LANES
from postroom.routes import Routes
from postroom.stores.mongo.records import FIRST_US, LAST_US, is_encodable
from postroom.transaction import Row
from postroom.transactions.mongo.documents import Document
from postroom.transactions.queries import DEFAULT_PREFIX, check_prefix

_KINDS: Mapping[str, tuple[type, ...]] = {
    "id": (str,),
    "stream": (str,),
    "lane": (int,),
    "key_hash": (bytes,),
    "type": (str,),
    "topic": (str,),
    "content_type": (str,),
    "schema_version": (int,),
    "occurred_us": (int,),
    "size": (int,),
    "key": (str, type(None)),
    "aggregate_type": (str, type(None)),
    "aggregate_id": (str, type(None)),
    "payload": (str, type(None)),
    "payload_bytes": (bytes, type(None)),
    "headers": (str, type(None)),
    "correlation_id": (str, type(None)),
    "causation_path": (str, type(None)),
    "causation_id": (str, type(None)),
    "options": (str, type(None)),
    "expires_us": (int, type(None)),
    "kseq": (type(None),),
    "available_us": (int, type(None)),
}
_BOUNDS = {
    "lane": (0, LANES - 1),
    "size": (0, 2**31 - 1),
    "occurred_us": (FIRST_US, LAST_US),
}


def field_of(prefix: str) -> str:
    """Return the name of the field that holds embedded events."""
    return f"{prefix}events"


class EmbeddedOutbox:
    """Embeds events in the documents that they are about.

    routes          event type → topic, for events that name none
    default_topic   the topic of events that no route matches
    prefix          of the outbox that the relay serves; the field is called `<prefix>events`

    The relay's store must know the collections: `MongoStore(url, embedded=["pages"])`, or
    `mongodb://…?embedded=pages`. The events of one document keep the order in which they were
    pushed. An id that is already in the outbox counts as collected.
    """

    def __init__(
        self,
        *,
        routes: Routes | Mapping[str, str] | None = None,
        default_topic: str = DEFAULT_TOPIC,
        prefix: str = DEFAULT_PREFIX,
    ) -> None:
        self._routes = routes if isinstance(routes, Routes) else Routes(routes, default_topic)
        self.field = field_of(check_prefix(prefix))

    @property
    def empty(self) -> Document:
        """A filter for documents whose events have all been collected.

        Use it to delete or replace a whole document, which would otherwise lose its events:
        `delete_one({"_id": 1, **outbox.empty})`.
        """
        return {f"{self.field}.0": {"$exists": False}}

    def push(self, *events: Event) -> Document:
        """Return the argument of a `$push` that appends events to the document.

        `update_one({…}, {"$set": {…}, "$push": outbox.push(event)})`. Raises EventError and
        PayloadError as `Outbox.add` does, before anything is written.
        """
        return {self.field: {"$each": self._elements(events)}}

    def fields(self, *events: Event) -> Document:
        """Return the field that holds events, for a new document.

        `insert_one({"_id": 1, …, **outbox.fields(event)})`.
        """
        return {self.field: self._elements(events)}

    def _elements(self, events: tuple[Event, ...]) -> list[Document]:
        ids = [event.id for event in events]
        if len(set(ids)) < len(ids):
            raise DuplicateEventError(dict.fromkeys(i for i in ids if ids.count(i) > 1))
        return [element_of(to_row(event, self._routes.topic_of(event))) for event in events]


def element_of(row: Row) -> Document:
    """Return the element that represents an event in the document, without empty fields."""
    return {name: value for name, value in row._asdict().items() if value is not None}


def row_of(element: Any) -> Row | None:
    """Return an event from an element of a document; None if `push` did not create it."""
    if not isinstance(element, dict) or not set(element) <= {*_KINDS, "ct", "n"}:
        return None
    place = (element.get("ct"), element.get("n"))
    if place != (None, None) and not (isinstance(place[0], Timestamp) and type(place[1]) is Int64):
        return None
    row = Row._make(element.get(name) for name in Row._fields)
    for name, kinds in _KINDS.items():
        value = getattr(row, name)
        if not isinstance(value, kinds) or isinstance(value, bool):
            return None
        if isinstance(value, str) and not is_encodable(value):
            return None
    if not all(low <= getattr(row, name) <= high for name, (low, high) in _BOUNDS.items()):
        return None
    instants = (row.available_us, row.expires_us)
    if not all(FIRST_US <= instant <= LAST_US for instant in instants if instant is not None):
        return None
    if (row.payload is None) == (row.payload_bytes is None):
        return None
    return row
