"""The store's client: collections, transactions, snapshots, and the server's capabilities."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from functools import wraps
from typing import Any, TypeVar, cast

from bson.binary import Binary
from bson.int64 import Int64
from pymongo import AsyncMongoClient, ReadPreference, ReturnDocument
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from postroom.errors import StoreRetryableError, StoreUnknownError
from postroom.model.pauses import Pauses
from postroom.stores.mongo.errors import (
    UNFIT,
    UNKNOWN_COMMIT,
    is_transient,
    translate,
    translated,
    unfit,
)
from postroom.stores.mongo.records import CODEC
from postroom.transactions.mongo.documents import (
    CLOCK,
    CLUSTER_TIME,
    TICK,
    Document,
    clock_of,
    place_numbers,
)
from postroom.transactions.mongo.sessions import MAJORITY, has_cluster_time

T = TypeVar("T")
Call = TypeVar("Call", bound=Callable[..., Coroutine[Any, Any, Any]])
Session = AsyncClientSession | None
Collection = AsyncCollection[Document]

_TRIES = 5
_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.1
_GRACE_SECONDS = 2.0
_COMMIT_SECONDS = 10.0
_KEPT_SESSIONS = 8

_SNAPSHOT = ReadConcern("snapshot")
_MAJORITY_READ = ReadConcern("majority")


def faithful(call: Call) -> Call:
    """Raise CancelledError if the caller was cancelled, even if the driver has swallowed it.

    pymongo connects with `asyncio.wait_for`, which before Python 3.12 drops a cancellation at the
    moment of success; a relay that is stopped would then never end.
    """

    @wraps(call)
    async def checked(*args: Any, **kwargs: Any) -> Any:
        task = asyncio.current_task()
        before = task.cancelling() if task is not None else 0
        result = await call(*args, **kwargs)
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError
        return result

    return cast("Call", checked)


class Connection:
    """A client and the collections of one outbox.

    transactions    whether the server has them and they are enabled: known once it is open
    """

    def __init__(
        self, client: AsyncMongoClient[Document], database: str, prefix: str, *, transactions: bool
    ) -> None:
        self.client = client
        self.prefix = prefix
        self.transactions = transactions
        self.clustered = transactions  # it has a cluster time, used or not
        self.database: AsyncDatabase[Document] = client.get_database(
            database,
            codec_options=CODEC,
            read_preference=ReadPreference.PRIMARY,
            write_concern=MAJORITY,
            read_concern=_MAJORITY_READ,
        )
        self.outbox = self._collection("outbox")
        self.lease = self._collection("lease")
        self.member = self._collection("member")
        self.block = self._collection("block")
        self.counter = self._collection("counter")
        self.inbox = self._collection("inbox")
        self.meta = self._collection("meta")
        self.streams: set[str] = set()  # streams whose lanes are known to exist
        self.weights: dict[str, int] = {}  # stream → the mean size of an event in the last read
        self.depths: dict[str, Any] = {}  # stream → its deep lanes (`read_past_keys.Depths`)
        self._idle: list[AsyncClientSession] = []
        self._session_ids: dict[bytes, None] = {}
        self._lost: list[Binary] = []  # sessions whose commit is unknown

    def _collection(self, name: str) -> Collection:
        return self.database[self.prefix + name]

    def name(self, collection: str) -> str:
        return self.prefix + collection

    async def close(self) -> None:
        for session in self._idle:
            with suppress(PyMongoError):
                await session.end_session()
        self._idle.clear()
        await self.client.close()

    # -- transactions -------------------------------------------------------------------------
    @property
    def session_ids(self) -> list[Binary]:
        """The ids of the sessions whose transactions may be left open if this process dies."""
        return [Binary(one, 4) for one in self._session_ids]

    async def transact(self, work: Callable[[Session], Awaitable[T]], *, tries: int = _TRIES) -> T:
        """Run work in a transaction, repeated after a conflict; without one where there are none.

        Raises StoreRetryableError if nothing was changed, StoreUnknownError if that is unknown. A
        cancelled caller leaves after the work has ended: a statement still in flight would reopen
        the transaction that an abort has just ended.
        """
        task = asyncio.ensure_future(self._transact(work, tries))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                await asyncio.wait({task}, timeout=_GRACE_SECONDS)
            if not task.done():
                task.cancel()
            elif not task.cancelled():
                task.exception()
            raise

    async def _transact(self, work: Callable[[Session], Awaitable[T]], tries: int) -> T:
        if not self.transactions:
            with translated(harmless=False):
                return await work(None)
        pauses = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
        for more in reversed(range(tries)):
            try:
                async with self.borrowed() as session:
                    return await self._attempt(session, work)
            except PyMongoError as error:
                if not (more and is_transient(error)):
                    raise translate(error, harmless=True) from error
            except UNFIT as error:
                raise unfit(error) from error
            await asyncio.sleep(pauses.grow() * (0.5 + random.random()))
        raise StoreRetryableError("MongoDB: every attempt of the transaction met a conflict")

    async def _attempt(
        self, session: AsyncClientSession, work: Callable[[Session], Awaitable[T]]
    ) -> T:
        ident = session.session_id["id"]
        async with await session.start_transaction(_SNAPSHOT, MAJORITY, ReadPreference.PRIMARY):
            result = await work(session)
            try:
                await commit(session)
            except (StoreUnknownError, asyncio.CancelledError):
                self._lost.append(ident)
                raise
        return result

    async def end_lost_sessions(self) -> None:
        """End transactions whose commit may still be in flight: from now on it has no effect."""
        lost, self._lost = self._lost, []
        await self.end_sessions(lost)

    async def end_sessions(self, ids: Sequence[Binary]) -> None:
        """Abort open transactions of these sessions, whichever process they belong to."""
        if ids:
            with suppress(PyMongoError):  # this user lacks the privilege: MongoDB takes a minute
                await self.client.admin.command({"killSessions": [{"id": one} for one in ids]})

    @asynccontextmanager
    async def borrowed(self) -> AsyncIterator[AsyncClientSession]:
        """Use a session. One that met an error is not used again."""
        session = self._idle.pop() if self._idle else self.client.start_session()
        self._session_ids[bytes(session.session_id["id"])] = None
        try:
            yield session
        except BaseException:
            await self._forget(session)
            raise
        if len(self._idle) < _KEPT_SESSIONS:
            self._idle.append(session)
        else:
            await self._forget(session)

    async def _forget(self, session: AsyncClientSession) -> None:
        ident = bytes(session.session_id["id"])
        await session.end_session()  # aborts the open transaction
        self._session_ids.pop(ident, None)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Session]:
        """Read at one point in time; None where the server, a standalone, cannot."""
        with translated(harmless=True):
            if not self.clustered:
                yield None
                return
            async with self.client.start_session(snapshot=True) as session:
                yield session

    # -- clock and order ----------------------------------------------------------------------
    async def places(self, count: int) -> tuple[Any, list[Int64]]:
        """Return an expression for the time of new events, and their numbers."""
        numbers = place_numbers(count, random.randbytes(2))
        if self.clustered:
            return CLUSTER_TIME, numbers
        clock = await self.meta.find_one_and_update(
            CLOCK, TICK, upsert=True, return_document=ReturnDocument.AFTER
        )
        assert clock is not None
        return clock_of(clock), numbers

    async def can_transact(self) -> bool:
        """Return whether the server has transactions."""
        return has_cluster_time(await self.client.admin.command("hello"))


async def commit(session: AsyncClientSession) -> None:
    """Commit; retries for a while as long as the outcome is unknown.

    Raises StoreUnknownError if it stays unknown.
    """
    pauses = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
    deadline = asyncio.get_running_loop().time() + _COMMIT_SECONDS
    while True:
        try:
            await session.commit_transaction()
        except PyMongoError as error:
            if not error.has_error_label(UNKNOWN_COMMIT):
                raise
            if asyncio.get_running_loop().time() > deadline:
                raise StoreUnknownError(
                    f"MongoDB: the commit was not confirmed: {error}"
                ) from error
            await asyncio.sleep(pauses.grow())
        else:
            return
