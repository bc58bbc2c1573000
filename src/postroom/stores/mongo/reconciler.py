"""The reconciler finds canonical documents whose event was lost, and adds it.

Without transactions a writer saves the document first and adds the event second. A crash in between
leaves a document without an event. A reconciler walks over the documents periodically and adds the
missing events, under an id that is derived from the document: however often it runs, and whether
the writer comes back or not, there is one event.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bson.int64 import Int64

from postroom import notifier
from postroom.engine.lifecycle import Lifecycle
from postroom.engine.service import Loop
from postroom.errors import ConfigError, StoreError, StoreRetryableError, StoreUnknownError
from postroom.event import DEFAULT_STREAM, DEFAULT_TOPIC, Event
from postroom.model.durations import Seconds, to_seconds
from postroom.outbox import to_row
from postroom.record import short_error
from postroom.routes import Routes
from postroom.settings import RelaySettings
from postroom.stores.mongo.connection import Connection
from postroom.stores.mongo.errors import translated
from postroom.stores.mongo.postponed import shown
from postroom.stores.mongo.reconciler_rules import Due, Served, plain
from postroom.stores.mongo.store import MongoStore
from postroom.transactions.mongo.documents import Document, milliseconds
from postroom.transactions.mongo.sessions import AsyncBareWrites

_PAGE = 500
_SHORTEST = 1.0
_LONGEST = 60.0
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Report:
    """The result of a run.

    looked      documents examined
    present     of these: their event is in the outbox
    repaired    ids of the missing events that were added
    failed      (`_id` of a document, error): its event could not be created
    finished    the walk has reached the end; the next run starts again
    """

    looked: int = 0
    present: int = 0
    repaired: list[str] = field(default_factory=list)
    failed: list[tuple[Any, str]] = field(default_factory=list)
    finished: bool = False


Progress = Callable[[Report], None]


class Reconciler(Lifecycle[Loop]):
    """Adds the events that writers without transactions failed to add.

    store               a MongoStore, or its URL
    collection          the collection of canonical documents, in the database of the outbox
    event               a document → its event, or None. The event's id must be derived
                        from the document (`page_id:revision`); the writer uses the same
    served              how to recognize a document that needs none: Marked, HasResult, FoundBy or
                        Recent
    query               which documents are canonical; all by default
    name                under which the position of the last run is stored
    changed_at          a date field: documents changed within `grace_seconds` are left to their
                        writer, which may be about to add the event
    limit               maximum number of documents per run; the next one continues there
    every_seconds       the pause between two walks in the background: `async with reconciler`
    keep_done_seconds   the relay's setting for done events; a window must be shorter
    """

    _noun = "reconciler"

    def __init__(
        self,
        store: MongoStore | str,
        collection: str,
        event: Callable[[Document], Event | None],
        served: Served,
        *,
        query: Mapping[str, Any] | None = None,
        name: str | None = None,
        changed_at: str | None = None,
        grace_seconds: Seconds = 30.0,
        limit: int = 10_000,
        every_seconds: Seconds = 300.0,
        keep_done_seconds: Seconds | None = None,
        routes: Routes | Mapping[str, str] | None = None,
        default_topic: str = DEFAULT_TOPIC,
    ) -> None:
        super().__init__()
        if limit < 1:
            raise ConfigError(f"reconciler: limit must be 1 or more, not {limit}")
        self.every_seconds = to_seconds(every_seconds)
        if not self.every_seconds > 0:
            raise ConfigError(f"reconciler: every_seconds must be more than 0, not {every_seconds}")
        self.store = MongoStore(store) if isinstance(store, str) else store
        self.collection = collection
        self.name = name or collection
        self.limit = limit
        self._event = event
        self._served = served
        self._after: Document | None = None  # where the last run has stopped
        self._routes = routes if isinstance(routes, Routes) else Routes(routes, default_topic)
        parts = [dict(query or {}), served.query()]
        if changed_at is not None:
            before = {"$subtract": ["$$NOW", Int64(milliseconds(to_seconds(grace_seconds)))]}
            parts.append({"$expr": {"$lte": [f"${changed_at}", before]}})
        self._query: Document = {"$and": [part for part in parts if part] or [{}]}
        kept = RelaySettings().keep_done_seconds if keep_done_seconds is None else keep_done_seconds
        self.check_retention(to_seconds(kept))

    @classmethod
    def load(cls, path: str) -> Reconciler:
        """Import the reconciler that `package.module:attribute` names."""
        module, colon, attribute = path.partition(":")
        if not module or not colon or not attribute:
            raise ConfigError("name a reconciler as package.module:attribute")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"the reconciler {path} cannot be loaded: {error}") from error
        if not isinstance(found, cls):
            raise ConfigError(f"{path} is {type(found).__name__}, not a Reconciler")
        return found

    def check_retention(self, keep_done_seconds: float) -> None:
        """Raise ConfigError if done events are pruned too early for this reconciler."""
        self._served.check(keep_done_seconds)

    # -- running ------------------------------------------------------------------------------
    async def run_once(self, progress: Progress | None = None) -> Report:
        """Examine up to `limit` documents from where the last run has stopped; returns a report.

        `progress` is called with it after each page. An interrupted run can be repeated: it adds
        nothing twice. Raises StoreError if the database is unreachable.
        """
        await self._open_store()
        db = self.store.connection
        report = Report()
        with translated(harmless=False):
            async for page in self._pages(db, report):
                await self._repair_page(db, page, report)
                await self._remember(db, page[-1])
                if progress is not None:
                    progress(report)
                if report.looked >= self.limit and not self._stands_still(page):
                    return report
            await db.meta.delete_one({"_id": self._ident})
        report.finished = True
        return report

    async def loop(self) -> None:
        """Walk over the documents periodically; only a ConfigError ends it.

        Any other error costs one run: it is logged when it changes, and the pause grows.
        """
        told, pause = "", 0.0
        while True:
            try:
                report = await self.run_once()
            except ConfigError:
                raise
            except Exception as error:  # also of the user's functions
                if (said := short_error(error)) != told:
                    _log.warning("reconciler %s: %s; it retries", self.name, said)
                told, pause = said, self._longer(pause)
            else:
                if told:
                    _log.info("reconciler %s has recovered", self.name)
                told, pause = "", self.every_seconds
                if not report.finished:
                    pause = min(_SHORTEST, self.every_seconds)
                if report.repaired:
                    _log.warning(
                        "reconciler %s added %d missing events: %s",
                        self.name, len(report.repaired), ", ".join(report.repaired[:5]),
                    )  # fmt: skip
            await asyncio.sleep(pause)

    def _longer(self, pause: float) -> float:
        first = min(_SHORTEST, self.every_seconds)
        return min(2 * max(pause, first / 2), max(self.every_seconds, _LONGEST))

    async def close(self) -> None:
        """Stop, and close the store, unless it is shared; idempotent."""
        await self.stop()
        await self._close_opened()  # after a `run_once`

    # -- life ---------------------------------------------------------------------------------
    @property
    def _title(self) -> str:
        return f"the reconciler {self.name}"

    @property
    def _fact_stream(self) -> str:
        return DEFAULT_STREAM

    async def _open(self) -> Loop:
        return Loop(self.loop, self._title)  # which opens the store: it may be unreachable

    def _begin(self, context: Loop) -> None:
        context.start(self._broke_down)

    async def _finish(self, context: Loop) -> None:
        await context.stop()

    async def _open_store(self) -> None:
        """Open the store, which relays of this process may share."""
        if self._opened:
            await self.store.open()
        else:
            await self._open_shared(self.store)

    # -- the walk -----------------------------------------------------------------------------
    @property
    def _ident(self) -> str:
        return f"reconciler:{self.name}"

    async def _pages(self, db: Connection, report: Report) -> AsyncIterator[list[Document]]:
        """Yield documents in the order of the walk, from where the last run has stopped."""
        database = plain(db)
        self._after = await database[db.meta.name].find_one({"_id": self._ident})
        order, query = self._served.order, self._query
        if order is not None and self._after is not None:  # others of the same time may follow
            query = {"$and": [query, {order: {"$gte": self._after["at"]}}]}
        cursor = database[self.collection].find(query).batch_size(_PAGE)
        if order is not None:
            cursor = cursor.sort({order: 1, "_id": 1})
        else:
            cursor = cursor.hint("_id_").sort({"_id": 1})
            if self._after is not None:
                cursor = cursor.min([("_id", self._after["at"])])  # all types of BSON, in order
        async with cursor:
            if order is None and self._after is not None:
                first = await cursor.to_list(1)
                if first and first[0]["_id"] != self._after["at"]:
                    yield first
            while page := await cursor.to_list(min(_PAGE, max(1, self.limit - report.looked))):
                yield page

    def _stands_still(self, page: Sequence[Document]) -> bool:
        """Return whether a whole run has met only documents of one time: it must go on
        past them.
        """
        order = self._served.order
        if order is None or self._after is None:
            return False
        return bool(_place(page[-1], order) == self._after["at"])

    async def _remember(self, db: Connection, last: Document) -> None:
        at = _place(last, self._served.order or "_id")
        meta = plain(db)[db.meta.name]
        await meta.update_one({"_id": self._ident}, {"$set": {"at": at}}, upsert=True)

    async def _repair_page(self, db: Connection, page: list[Document], report: Report) -> None:
        """Add missing events; if the database refuses, document by document."""
        try:
            with translated(harmless=False):
                await self._repair(db, page, report)
        except (StoreRetryableError, StoreUnknownError):
            raise
        except StoreError as error:
            if len(page) > 1:
                for document in page:
                    await self._repair_page(db, [document], report)
                return
            report.looked += 1
            self._failed(page[0], error, report)

    def _failed(self, document: Document, error: Exception, report: Report) -> None:
        report.failed.append((document["_id"], short_error(error)))
        ident = shown(document["_id"])
        _log.warning("reconciler %s: %s: %s", self.name, ident, short_error(error))

    async def _repair(self, db: Connection, page: Sequence[Document], report: Report) -> None:
        """Add missing events.

        The outbox is queried before the results: an event that is done and pruned by the first
        query has its result by the second.
        """
        due = self._due(page, report)
        ids = {"_id": {"$in": [one.event.id for one in due]}}
        there = {found["_id"] async for found in db.outbox.find(ids, {"_id": 1})}
        present = [one for one in due if one.event.id in there]
        absent = [one for one in due if one.event.id not in there]
        unserved = await self._served.unserved(db, self.collection, absent) if absent else []
        missing = {one.event.id: one.event for one in unserved}
        if missing:
            rows = [to_row(event, self._routes.topic_of(event)) for event in missing.values()]
            await AsyncBareWrites(db.client[db.database.name], db.prefix).insert(rows)
            notifier.kick(frozenset(row.stream for row in rows))
        await self._served.settled(db, self.collection, [*present, *unserved])
        report.looked += len(page)
        report.present += len(present)
        report.repaired += missing

    def _due(self, page: Sequence[Document], report: Report) -> list[Due]:
        """Return the events that the documents must have."""
        due: list[Due] = []
        for document in page:
            try:
                event = self._event(document)
                if event is not None:
                    to_row(event, self._routes.topic_of(event))
                    if not due:
                        self._check_stable(document, event)
                    due.append(Due(document, event))
            except ConfigError:
                raise
            except Exception as error:  # one bad document must not stop the others
                self._failed(document, error, report)
        return due

    def _check_stable(self, document: Document, event: Event) -> None:
        again = self._event(document)
        if again is None or again.id != event.id:
            raise ConfigError(
                f"reconciler {self.name}: the same document produced events with different ids; "
                "derive the id from the document: Event(…, "
                "id=f\"{page['_id']}:{page['revision']}\")"
            )


def _place(document: Document, path: str) -> Any:
    found: Any = document
    for name in path.split("."):
        found = found[name]
    return found
