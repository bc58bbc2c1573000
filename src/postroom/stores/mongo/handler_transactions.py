"""Transactions for handlers (H2, H3), and deferred writes where there are no transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from threading import Lock
from typing import Any

from pymongo import MongoClient, ReadPreference
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.client_session import ClientSession
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from postroom.errors import StoreUnknownError, TransactionEndedError
from postroom.stores.handler_transactions import guarded
from postroom.stores.mongo.connection import Connection, commit
from postroom.stores.mongo.errors import UNKNOWN_COMMIT, translate, translated
from postroom.transaction import Acceptance, AsyncTransaction, Counter, Proof, Row, Standing
from postroom.transactions.mongo.documents import Document, inbox_id
from postroom.transactions.mongo.sessions import MAJORITY, AsyncBareWrites, in_database

_SNAPSHOT = ReadConcern("snapshot")
_ON_ITS_WAY_SECONDS = 0.05
_ENDED = (
    "the handler ended its own transaction. Let postroom commit or abort it; otherwise the effects "
    "and the inbox document can be committed separately"
)


# A handler that aborts would go on without a transaction.
_ENDINGS = ("commit_transaction", "abort_transaction", "start_transaction", "end_session")


@asynccontextmanager
async def handler_transaction(db: Connection) -> AsyncIterator[AsyncClientSession | DeferredWrites]:
    """Open a transaction for a handler; commit it at the end, abort it on an error."""
    if not db.transactions:
        writes = DeferredWrites(db)
        yield writes
        with translated(harmless=False):
            await writes.finish()
        return
    async with db.borrowed() as session:
        in_database(session, db.database.name)
        with translated(harmless=True):
            await session.start_transaction(_SNAPSHOT, MAJORITY, ReadPreference.PRIMARY)
        try:
            with guarded(session, *_ENDINGS):
                yield session
        except BaseException as error:
            await _abort(db, session, cancelled=not isinstance(error, Exception))
            raise
        if not session.in_transaction:
            raise TransactionEndedError(_ENDED)
        with translated(harmless=True):
            await commit(session)


async def _abort(db: Connection, session: AsyncClientSession, *, cancelled: bool) -> None:
    if session.in_transaction:
        await session.abort_transaction()
    if cancelled:
        # A statement may still be in flight, and would reopen the transaction.
        await asyncio.sleep(_ON_ITS_WAY_SECONDS)
        await db.end_sessions([session.session_id["id"]])


class DeferredWrites(AsyncTransaction):
    """The work of a handler without transactions: effects at least once.

    Events that the handler adds, and its inbox document, are deferred until it has succeeded: after
    a crash before that it runs again. Its own writes take effect at once and must be idempotent.
    """

    def __init__(self, db: Connection) -> None:
        self.database = db.client[db.database.name]
        self._writes = AsyncBareWrites(self.database, db.prefix)
        self._inbox = db.database[db.name("inbox")]
        self._rows: list[Row] = []
        self._acceptances: list[Acceptance] = []

    def check(self) -> None: ...

    async def insert(self, rows: Sequence[Row], *, whole: bool = False) -> int:  # noqa: ARG002
        known = {row.id for row in self._rows}
        fresh = [row for row in rows if row.id not in known]
        self._rows += fresh
        return len(fresh)

    async def count_up(self, counters: Sequence[Counter]) -> list[int]:
        return await self._writes.count_up(counters)

    async def cancel(self, event_id: str) -> str | None:
        """Cancel at once, like the handler's own writes: the caller needs the answer."""
        return await self._writes.cancel(event_id)

    async def reschedule(self, event_id: str, at_us: int) -> str | None:
        return await self._writes.reschedule(event_id, at_us)

    async def accept(self, acceptance: Acceptance) -> bool:
        found = await self._inbox.find_one(
            {"_id": inbox_id(acceptance.consumer, acceptance.id)}, {"status": 1}
        )
        if acceptance in self._acceptances or (found is not None and found["status"] == "done"):
            return False
        self._acceptances.append(acceptance)
        return True

    async def count_done(self, acceptances: Sequence[Acceptance]) -> int:
        kept = sum(acceptance in self._acceptances for acceptance in acceptances)
        return kept + await self._writes.count_done(
            [acceptance for acceptance in acceptances if acceptance not in self._acceptances]
        )

    async def done_before(self, consumer: str, seconds: float, limit: int, skip: int) -> list[str]:
        return await self._writes.done_before(consumer, seconds, limit, skip)

    async def forget(self, consumer: str, ids: Sequence[str]) -> int:
        return await self._writes.forget(consumer, ids)

    async def hold(self, earlier: Sequence[Proof]) -> bool:  # noqa: ARG002
        return True

    async def is_open(self) -> bool:
        return True

    async def standing(self, proofs: Sequence[Proof]) -> Standing:  # noqa: ARG002
        return Standing.HELD  # the handler cannot end the deferred writes

    def after_commit(self, call: Callable[[], None]) -> bool:  # noqa: ARG002
        return False

    async def finish(self) -> None:
        """Write the deferred documents: the events first, so that none is lost."""
        if self._rows:
            await self._writes.insert(self._rows)
        for acceptance in self._acceptances:
            await self._writes.accept(acceptance)


class SyncHandlerTransactions:
    """The same for handlers in threads, on a separate client that is opened on demand."""

    def __init__(self, target: str, options: dict[str, Any], database: str) -> None:
        self._target = target
        self._options = options
        self._database = database
        self._client: MongoClient[Document] | None = None
        self._opening = Lock()  # handlers start in several threads at a time

    @contextmanager
    def transaction(self) -> Iterator[ClientSession]:
        with self._opening:
            client = self._client
            if client is None:
                client = self._client = MongoClient(self._target, **self._options)
        with translated(harmless=True):
            session = in_database(client.start_session(), self._database)
        with session:
            session.start_transaction(_SNAPSHOT, MAJORITY, ReadPreference.PRIMARY)
            try:
                with guarded(session, *_ENDINGS):
                    yield session
            except BaseException:
                if session.in_transaction:
                    session.abort_transaction()
                raise
            if not session.in_transaction:
                raise TransactionEndedError(_ENDED)
            _commit(session)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _commit(session: ClientSession) -> None:
    for last in (False, False, True):
        try:
            session.commit_transaction()
        except PyMongoError as error:
            if not error.has_error_label(UNKNOWN_COMMIT):
                raise translate(error, harmless=True) from error
            if last:
                raise StoreUnknownError(
                    f"MongoDB: the commit was not confirmed: {error}"
                ) from error
        else:
            return
