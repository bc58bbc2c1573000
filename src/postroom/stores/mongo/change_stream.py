"""A change stream that wakes relays after commits; it carries no events.

One task listens for all relays that share the store, on one cursor. It wakes only for lanes that
are held here, so that one relay reads after a commit and not all of them. Under load the cursor is
closed: every event would pass through it, at the server's cost, although the relay's own reads
already find them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from bson.int64 import Int64
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError

from postroom.engine.service import end
from postroom.model.pauses import Pauses
from postroom.stores.mongo.connection import Connection
from postroom.stores.mongo.errors import translated
from postroom.transactions.mongo.documents import Document

_LONGEST_AWAIT = 2.0
_SHORTEST_NAP = 0.01  # between two wake-ups
_IDLE_AFTER = 0.1  # without a read that found something
_MANY = 100  # changes at once: this is load
_KILL_SECONDS = 2.0
_FIRST_PAUSE = 0.1  # after an error …
_LONGEST_PAUSE = 10.0  # … and after many
_PIPELINE: list[Document] = [
    {"$changeStream": {}},
    {"$match": {"operationType": "insert"}},
    {"$project": {"fullDocument.stream": 1, "fullDocument.lane": 1}},
]


class ChangeStream:
    """One cursor on the inserts into the outbox, and any number of waiting callers."""

    def __init__(self, db: Connection) -> None:
        self._db = db
        self._session: AsyncClientSession | None = None
        self._cursor: Any = 0
        self._finds = 0
        self._task: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()  # attempts to listen
        self._news = 0  # how often there was something
        self._seen: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()
        self._waiting: set[asyncio.Future[None]] = set()
        self._held: dict[tuple[str, str], set[int]] = {}  # stream and owner → lanes

    def holds(self, stream: str, owner: str, lanes: Iterable[int]) -> None:
        """Listen for these lanes of a relay. Until any relay has one, all lanes are listened to."""
        self._held[stream, owner] = set(lanes)
        if not self._held[stream, owner]:
            del self._held[stream, owner]

    def took(self, stream: str, owner: str, lanes: Iterable[int]) -> None:
        """Listen for these lanes, too."""
        self._held.setdefault((stream, owner), set()).update(lanes)

    def _concerns(self, change: Document) -> bool:
        event = change.get("fullDocument", {})
        stream, lane = event.get("stream"), event.get("lane")
        return any(
            held_stream == stream and lane in lanes
            for (held_stream, _), lanes in self._held.items()
        )

    def found_work(self) -> None:
        """A read has found something: no wake-ups are needed for a while."""
        self._finds += 1

    async def wait(self, timeout_seconds: float) -> bool:
        """Return True as soon as something may have been committed, False after the time.

        A change between two calls of a task ends the second at once. Raises StoreError if the
        stream fails while this call waits; it is reopened after a pause.
        """
        caller = asyncio.current_task()
        assert caller is not None
        seen = self._seen.setdefault(caller, self._news)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="postroom change stream")
        await self._tried.wait()
        try:
            return self._news > seen or await self._hear(timeout_seconds)
        finally:
            self._seen[caller] = self._news

    async def _hear(self, timeout_seconds: float) -> bool:
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(heard)
        try:
            async with asyncio.timeout(timeout_seconds):
                await heard
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(heard)
            if heard.done() and not heard.cancelled():
                heard.exception()  # read, also if the caller was cancelled at this moment
        return True

    def _wake(self) -> None:
        self._news += 1
        for heard in self._waiting:
            if not heard.done():
                heard.set_result(None)

    def _fail(self, error: Exception) -> None:
        for heard in self._waiting:
            if not heard.done():
                heard.set_exception(error)

    async def close(self) -> None:
        """Stop listening, and close the cursor on the server; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            await end(task)
        await self._drop()
        self._wake()

    # -- the task -----------------------------------------------------------------------------
    async def _run(self) -> None:
        pauses = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                with translated(harmless=True):
                    await self._idle()
                    await self._open()
                    self._wake()  # the cursor does not report earlier commits
                    self._tried.set()
                    await self._listen_until_load(pauses)
            except Exception as error:  # whatever the error, relays poll meanwhile
                self._fail(error)
                self._tried.set()
                await self._drop()
                await asyncio.sleep(pauses.grow())
            else:
                await self._drop()

    async def _idle(self) -> None:
        """Wait until reads find nothing any more."""
        while self._finds:
            self._finds = 0
            self._tried.set()
            await asyncio.sleep(_IDLE_AFTER)

    async def _open(self) -> None:
        self._session = self._db.client.start_session(causal_consistency=False)
        reply = await self._db.database.command(
            {
                "aggregate": self._db.outbox.name,
                "pipeline": _PIPELINE,
                "cursor": {},
                "readConcern": {"level": "majority"},
            },
            session=self._session,
        )
        self._cursor = reply["cursor"]["id"]

    async def _listen_until_load(self, pauses: Pauses) -> None:
        while self._cursor:
            news = await self._listen(_LONGEST_AWAIT)
            pauses.reset()  # a cursor that opens and never answers is not a success
            many = len(news) >= _MANY
            if any(self._held.values()):
                news = list(filter(self._concerns, news))
            if news:
                self._wake()
                await asyncio.sleep(_SHORTEST_NAP)
            if many:
                return

    async def _listen(self, seconds: float) -> list[Document]:
        """Poll the cursor once."""
        reply: Document = await self._db.database.command(
            {
                "getMore": Int64(self._cursor),
                "collection": self._db.outbox.name,
                "maxTimeMS": max(1, round(seconds * 1000)),
            },
            session=self._session,
        )
        self._cursor = reply["cursor"]["id"]
        found: list[Document] = reply["cursor"]["nextBatch"]
        return found

    async def _drop(self) -> None:
        """Close the cursor, on the server too: it would keep it for ten minutes."""
        session, self._session = self._session, None
        cursor, self._cursor = self._cursor, 0
        if cursor:
            command = {"killCursors": self._db.outbox.name, "cursors": [Int64(cursor)]}
            with suppress(PyMongoError, TimeoutError):
                async with asyncio.timeout(_KILL_SECONDS):
                    await self._db.database.command(command, session=session)
        if session is not None:
            with suppress(PyMongoError):
                await session.end_session()
