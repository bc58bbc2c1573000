"""Hearing of commits: a change stream that only wakes and never carries.

It is open only while there is nothing to do. Under load every event would have to pass through it,
at the server's cost, to say what the relay knows anyway.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from bson.int64 import Int64
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError

from postroom.stores.mongo.connection import Connection
from postroom.stores.mongo.documents import Document
from postroom.stores.mongo.troubles import translated

_LONGEST_AWAIT = 1.0
_PIPELINE: list[Document] = [
    {"$changeStream": {}},
    {"$match": {"operationType": "insert"}},
    {"$project": {"_id": 1}},
]


class Ear:
    """One cursor on the outbox' inserts."""

    def __init__(self, db: Connection) -> None:
        self._db = db
        self._session: AsyncClientSession | None = None
        self._cursor: Int64 | int = 0
        self._busy = 0  # reads that have found something since the last wait

    def found_work(self) -> None:
        """A read has found something: nobody needs to be woken."""
        self._busy += 1

    async def wait(self, timeout_seconds: float) -> bool:
        """Return True as soon as something may have been committed, False after the time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        if not self._cursor:
            await self._until_idle(deadline)
            with translated(harmless=True):
                await self._open()
            return True  # what was committed before the cursor stood is not heard by it
        while True:
            left = deadline - loop.time()
            try:
                with translated(harmless=True):
                    heard = await self._listen(max(0.0, min(left, _LONGEST_AWAIT)))
            except BaseException:
                await self.close()
                raise
            if heard:
                if self._busy:
                    await self.close()
                return True
            self._busy = 0
            if left <= 0:
                return False

    async def close(self) -> None:
        session, cursor = self._session, self._cursor
        self._session, self._cursor = None, 0
        if session is None:
            return
        with suppress(PyMongoError):
            if cursor:
                name = self._db.outbox.name
                await self._db.database.command(
                    {"killCursors": name, "cursors": [cursor]}, session=session
                )
        with suppress(PyMongoError):
            await session.end_session()

    async def _until_idle(self, deadline: float) -> None: ...

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

    async def _listen(self, seconds: float) -> bool:
        """Ask for news once; a whole batch of them is one."""
        reply: dict[str, Any] = await self._db.database.command(
            {
                "getMore": Int64(self._cursor),
                "collection": self._db.outbox.name,
                "maxTimeMS": max(1, round(seconds * 1000)),
            },
            session=self._session,
        )
        self._cursor = reply["cursor"]["id"]
        return bool(reply["cursor"]["nextBatch"])
