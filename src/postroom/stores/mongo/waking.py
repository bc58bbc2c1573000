"""Hearing of commits: a change stream that only wakes and never carries.

It wakes for the lanes that are held here, so that of many relays one reads after a commit and not
all of them. Under load it is closed: every event would have to pass through it, at the server's
cost, to say what the relay's own reads tell it anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from bson.int64 import Int64
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError

from postroom.stores.mongo.connection import Connection
from postroom.stores.mongo.documents import Document
from postroom.stores.mongo.troubles import translated

_LONGEST_AWAIT = 2.0
_SHORTEST_NAP = 0.01  # between two wakings
_IDLE_AFTER = 0.1  # without a read that found something
_MANY = 100  # news at once: this is load
_PIPELINE: list[Document] = [
    {"$changeStream": {}},
    {"$match": {"operationType": "insert"}},
    {"$project": {"fullDocument.stream": 1, "fullDocument.lane": 1}},
]


class Ear:
    """One cursor on the inserts into the outbox."""

    def __init__(self, db: Connection) -> None:
        self._db = db
        self._session: AsyncClientSession | None = None
        self._cursor: Any = 0
        self._finds = 0
        self._heard_at = 0.0
        self._held: dict[tuple[str, str], set[int]] = {}  # stream and owner → lanes

    def holds(self, stream: str, owner: str, lanes: Iterable[int]) -> None:
        """Hear of these lanes of a relay. Until any relay has one, it is heard of all."""
        self._held[stream, owner] = set(lanes)

    def took(self, stream: str, owner: str, lanes: Iterable[int]) -> None:
        """Hear of these lanes, too."""
        self._held.setdefault((stream, owner), set()).update(lanes)

    def _concerns(self, change: Document) -> bool:
        event = change["fullDocument"]
        stream, lane = event["stream"], event["lane"]
        return any(
            held_stream == stream and lane in lanes
            for (held_stream, _), lanes in self._held.items()
        )

    def found_work(self) -> None:
        """A read has found something: for a while nobody needs to be woken."""
        self._finds += 1

    async def wait(self, timeout_seconds: float) -> bool:
        """Return True as soon as something may have been committed, False after the time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        if not self._cursor:
            if not await self._idle(deadline):
                return False
            with translated(harmless=True):
                await self._open()
            return True  # what was committed before the cursor stood is not heard by it
        await asyncio.sleep(min(timeout_seconds, self._heard_at + _SHORTEST_NAP - loop.time()))
        try:
            with translated(harmless=True):
                while True:
                    left = deadline - loop.time()
                    news = await self._listen(max(0.0, min(left, _LONGEST_AWAIT)))
                    if any(self._held.values()):
                        news = list(filter(self._concerns, news))
                    if news or left <= 0:
                        break
        except BaseException:
            await self._drop()
            raise
        self._heard_at = loop.time()
        if len(news) >= _MANY:
            await self.close()
        return bool(news)

    async def close(self) -> None:
        """Close the cursor on the server; twice is safe."""
        if self._cursor:
            cursor, self._cursor = self._cursor, 0
            command = {"killCursors": self._db.outbox.name, "cursors": [Int64(cursor)]}
            with suppress(PyMongoError):
                await self._db.database.command(command, session=self._session)
        await self._drop()

    async def _drop(self) -> None:
        session, self._session, self._cursor = self._session, None, 0
        if session is not None:
            await session.end_session()

    async def _idle(self, deadline: float) -> bool:
        """Wait until reads find nothing any more; False if that takes too long."""
        loop = asyncio.get_running_loop()
        while True:
            finds, self._finds = self._finds, 0
            if not finds:
                return True
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(min(_IDLE_AFTER, deadline - loop.time()))

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

    async def _listen(self, seconds: float) -> list[Document]:
        """Ask for news once."""
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
