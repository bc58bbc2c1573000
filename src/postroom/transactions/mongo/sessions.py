"""Adapters for pymongo's sessions, sync and async, and for MongoDB without transactions.

A session does not determine the database of its events. It is the first of these that is given: the
outbox' `schema`, the name passed to `in_database(session, name)`, the default database of the
session's client, which is the path of its URL (`mongodb://host/shop`).

A position is (`ct`, `n`): the cluster time that the server writes when the event is added, and a
number that grows within the process, since statements may share one cluster time. Two writers that
both write one common document cannot get the wrong order (W8): the later one's transaction can only
begin after the commit of the earlier, which advances the time.

Errors of the driver are raised unchanged, with their labels, so that `with_transaction` runs its
callback again after a conflict.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from bson.codec_options import CodecOptions
from bson.int64 import Int64
from pymongo import ReturnDocument, WriteConcern
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import ConfigurationError

from postroom.errors import AutocommitError, SchemaError, TransactionError
from postroom.model.clock import from_microseconds, host_microseconds
from postroom.transaction import (
    Acceptance,
    AsyncTransaction,
    Counter,
    Proof,
    Row,
    Standing,
    SyncTransaction,
)
from postroom.transactions.mongo.documents import (
    CANCELLED,
    CLOCK,
    CLUSTER_TIME,
    TICK,
    Document,
    Expression,
    accept_of,
    clock_of,
    counter_id,
    inbox_id,
    place_numbers,
    reschedule_of,
    upsert_of,
    waiting_of,
)
from postroom.transactions.mongo.state import standing, transaction_of
from postroom.transactions.queries import DEFAULT_PREFIX, qualify
from postroom.transactions.steps import Steps, run, run_async

if TYPE_CHECKING:
    from pymongo.database import Database

S = TypeVar("S")

MAJORITY = WriteConcern("majority", wtimeout=10_000)
_DURABLE = WriteConcern("majority", wtimeout=10_000, j=True)  # a standalone's majority is in memory
_ANY_TEXT: CodecOptions[dict[str, Any]] = CodecOptions(
    unicode_decode_error_handler="backslashreplace"
)


_bound: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # session → database
_known: WeakKeyDictionary[Any, dict[str, bool]] = WeakKeyDictionary()
"""Client → the outboxes that were found there, and whether that server has a cluster time."""


def in_database(session: S, name: str) -> S:
    """Set the database of this session's outbox and inbox; returns the session."""
    _bound[session] = name
    return session


# -- common to all adapters ------------------------------------------------------------------------
class _Writes:
    """The statements, in steps that run with and without a loop."""

    session: Any = None

    def __init__(self, database: Any, prefix: str) -> None:
        self._database = database
        self._prefix = prefix

    def check(self) -> None: ...

    @property
    def target(self) -> Any:
        return self if self.session is None else self.session

    def _is_open(self) -> bool:
        return True

    def after_commit(self, call: Callable[[], None]) -> bool:  # noqa: ARG002
        """Return that the driver has no such hook."""
        return False

    def _collection(self, name: str) -> Any:
        return self._database[self._prefix + name]

    def _places(self, count: int) -> Steps[tuple[Expression, list[Int64]]]:
        """Return the time and the numbers of this many new events."""
        raise NotImplementedError

    def _insert(self, rows: Sequence[Row], whole: bool) -> Steps[int]:
        self.check()
        yield from self._known()
        outbox = self._collection("outbox")
        if whole and len(rows) > 1:
            ids = {"_id": {"$in": [row.id for row in rows]}}
            if (yield outbox.find_one(ids, {"_id": 1}, session=self.session)) is not None:
                return 0
        ct, numbers = yield from self._places(len(rows))
        changes = [upsert_of(row, ct, n) for row, n in zip(rows, numbers, strict=True)]
        result = yield outbox.bulk_write(changes, ordered=True, session=self.session)
        return int(result.upserted_count)

    def _count_up(self, counters: Sequence[Counter]) -> Steps[list[int]]:
        self.check()
        yield from self._known()
        collection = self._collection("counter")
        values: list[int] = []
        for counter in counters:
            found = yield collection.find_one_and_update(
                {"_id": counter_id(counter.topic, counter.key_hash)},
                {"$inc": {"last": Int64(counter.step)}},
                upsert=True,
                return_document=ReturnDocument.AFTER,
                session=self.session,
            )
            values.append(int(found["last"]))
        return values

    def _cancel(self, event_id: str) -> Steps[str | None]:
        return (yield from self._change_waiting(waiting_of(event_id), CANCELLED))

    def _reschedule(self, event_id: str, at_us: int) -> Steps[str | None]:
        return (yield from self._change_waiting(*reschedule_of(event_id, at_us)))

    def _change_waiting(self, wanted: Document, change: Document) -> Steps[str | None]:
        """Change an event that was never ready. If the stager has just made it ready, or changed it
        since this transaction began, the server reports a write conflict.
        """
        self.check()
        yield from self._known()
        found = yield self._collection("outbox").find_one_and_update(
            wanted, change, {"stream": 1}, session=self.session
        )
        return None if found is None else str(found["stream"])

    def _accept(self, acceptance: Acceptance) -> Steps[bool]:
        self.check()
        yield from self._known()
        before = yield self._collection("inbox").find_one_and_update(
            {"_id": inbox_id(acceptance.consumer, acceptance.id)},
            accept_of(acceptance),
            upsert=True,
            return_document=ReturnDocument.BEFORE,
            session=self.session,
        )
        return before is None or before["status"] != "done"

    def _count_done(self, acceptances: Sequence[Acceptance]) -> Steps[int]:
        ids = [inbox_id(each.consumer, each.id) for each in acceptances]
        done = {"_id": {"$in": ids}, "status": "done"}
        found: int = yield self._collection("inbox").count_documents(done, session=self.session)
        return found

    def _done_before(
        self, consumer: str, seconds: float, limit: int, skip: int
    ) -> Steps[list[str]]:
        """Query by the host's clock: a small difference does not matter here."""
        self.check()
        before = from_microseconds(host_microseconds() - int(seconds * 1_000_000))
        old = {
            "_id.consumer": consumer,
            "_id.id": {"$type": "string"},
            "status": "done",
            "processed_at": {"$lt": before},
        }
        inbox = self._collection("inbox").with_options(codec_options=_ANY_TEXT)
        found = inbox.find(old, {"_id": 1}, session=self.session)
        page = found.sort("processed_at").skip(skip).limit(limit)
        return [each["_id"]["id"] for each in (yield page.to_list())]

    def _forget(self, consumer: str, ids: Sequence[str]) -> Steps[int]:
        self.check()
        acceptances = [inbox_id(consumer, each) for each in ids]
        result = yield self._collection("inbox").delete_many(
            {"_id": {"$in": acceptances}, "status": "done"}, session=self.session
        )
        return int(result.deleted_count)

    def _hold(self) -> bool:
        """Return True: separate writes are in no transaction."""
        return True

    def _standing(self, proofs: Sequence[Proof]) -> Steps[Standing]:  # noqa: ARG002
        yield from ()
        return Standing.HELD

    def _known(self) -> Steps[bool]:
        """Check once per client whether the outbox is in this database.

        MongoDB creates any collection that is written to: in the wrong database an event would be
        committed, and no relay would ever read it.
        """
        outboxes = _known.setdefault(self._database.client, {})
        name = f"{self._database.name}.{self._prefix}"
        if name not in outboxes:
            meta = self._collection("meta")
            if (yield meta.find_one({"_id": "schema_version"}, session=self.session)) is None:
                raise SchemaError(
                    f"the collections {self._prefix}… do not exist in the database "
                    f"{self._database.name!r}. Create them with `postroom migrate up` or `await "
                    "migrate(url)`, in the database of the business data; name another database "
                    "with Outbox(schema=…) or in_database(session, …)"
                )
            outboxes[name] = yield from self._has_clock()
        return outboxes[name]

    def _has_clock(self) -> Steps[bool]:
        """Return whether the server has a cluster time; a transaction needs one."""
        yield from ()
        return True


class _SessionWrites(_Writes):
    """Writes on a session of the caller, in its transaction."""

    def __init__(self, session: Any, prefix: str) -> None:
        self.session = session
        schema, _, rest = prefix.rpartition(".")
        super().__init__(_database_of(session, schema), rest)
        self._number: int | None = None

    def check(self) -> None:
        if self.session.has_ended:
            raise TransactionError("this session has ended; start a new one and add within it")
        if not self.session.in_transaction:
            raise AutocommitError(
                "this session is in autocommit mode: no transaction is open on it, and the event "
                "would be committed separately from your data. Call start_transaction(), "
                "which is MongoDB's BEGIN, or use `with outbox.transaction(session):` or "
                "session.with_transaction(…). For a MongoDB without transactions see "
                "without_transaction(database)"
            )

    def _places(self, count: int) -> Steps[tuple[Expression, list[Int64]]]:
        yield from ()
        return CLUSTER_TIME, place_numbers(count, self.session.session_id["id"])

    def _is_open(self) -> bool:
        return transaction_of(self.session) is not None

    def _hold(self) -> bool:
        number = transaction_of(self.session)
        if self._number is None:
            self._number = number
        return number == self._number

    def _standing(self, proofs: Sequence[Proof]) -> Steps[Standing]:
        return standing(self.session, self._collection, self._number, proofs)

    def _refuse_open(self) -> None:
        if self.session.in_transaction:
            raise TransactionError(
                "a transaction is already open on this session. Add to it with "
                "outbox.add(session, …), commit it where it was begun, and call outbox.kick() "
                "after that"
            )


def _database_of(session: Any, schema: str) -> Any:
    name = schema or _bound.get(session)
    if name:
        return session.client[name]
    try:
        return session.client.get_default_database()
    except ConfigurationError as error:
        raise TransactionError(
            "cannot determine the outbox's database: the client's URL names none. "
            "Connect with mongodb://host/database, or use Outbox(schema=…), or "
            "in_database(session, name)"
        ) from error


class _BareWrites(_Writes):
    """Writes on a database, each separate."""

    def __init__(self, database: Any, prefix: str) -> None:
        super().__init__(database.with_options(write_concern=_DURABLE), prefix)

    def _places(self, count: int) -> Steps[tuple[Expression, list[Int64]]]:
        if (yield from self._known()):
            return CLUSTER_TIME, place_numbers(count, token_bytes(2))
        clock = yield self._collection("meta").find_one_and_update(
            CLOCK, TICK, upsert=True, return_document=ReturnDocument.AFTER
        )
        return clock_of(clock), place_numbers(count, b"")

    def _has_clock(self) -> Steps[bool]:
        hello = yield self._database.client.admin.command("hello")
        return has_cluster_time(hello)

    def _count_up(self, counters: Sequence[Counter]) -> Steps[list[int]]:  # noqa: ARG002
        yield from ()
        raise TransactionError(
            "strict order needs transactions: a crash between number and event would leave a "
            "permanent gap. Use ordering='keyed', or a replica set (a single member is enough)"
        )


def has_cluster_time(hello: Mapping[str, Any]) -> bool:
    """Return whether a server is part of a replica set or a cluster, with transactions and
    a clock.
    """
    return "setName" in hello or hello.get("msg") == "isdbgrid"


# -- the adapters ----------------------------------------------------------------------------------
class _Sync(_Writes, SyncTransaction):
    def insert(self, rows: Sequence[Row], *, whole: bool = False) -> int:
        return run(self._insert(rows, whole))

    def count_up(self, counters: Sequence[Counter]) -> list[int]:
        return run(self._count_up(counters))

    def cancel(self, event_id: str) -> str | None:
        return run(self._cancel(event_id))

    def reschedule(self, event_id: str, at_us: int) -> str | None:
        return run(self._reschedule(event_id, at_us))

    def accept(self, acceptance: Acceptance) -> bool:
        return run(self._accept(acceptance))

    def count_done(self, acceptances: Sequence[Acceptance]) -> int:
        return run(self._count_done(acceptances))

    def done_before(self, consumer: str, seconds: float, limit: int, skip: int) -> list[str]:
        return run(self._done_before(consumer, seconds, limit, skip))

    def forget(self, consumer: str, ids: Sequence[str]) -> int:
        return run(self._forget(consumer, ids))

    def is_open(self) -> bool:
        return self._is_open()

    def hold(self, earlier: Sequence[Proof]) -> bool:  # noqa: ARG002 - the session knows
        return self._hold()

    def standing(self, proofs: Sequence[Proof]) -> Standing:
        return run(self._standing(proofs))


class _Async(_Writes, AsyncTransaction):
    async def insert(self, rows: Sequence[Row], *, whole: bool = False) -> int:
        return await run_async(self._insert(rows, whole))

    async def count_up(self, counters: Sequence[Counter]) -> list[int]:
        return await run_async(self._count_up(counters))

    async def cancel(self, event_id: str) -> str | None:
        return await run_async(self._cancel(event_id))

    async def reschedule(self, event_id: str, at_us: int) -> str | None:
        return await run_async(self._reschedule(event_id, at_us))

    async def accept(self, acceptance: Acceptance) -> bool:
        return await run_async(self._accept(acceptance))

    async def count_done(self, acceptances: Sequence[Acceptance]) -> int:
        return await run_async(self._count_done(acceptances))

    async def done_before(self, consumer: str, seconds: float, limit: int, skip: int) -> list[str]:
        return await run_async(self._done_before(consumer, seconds, limit, skip))

    async def forget(self, consumer: str, ids: Sequence[str]) -> int:
        return await run_async(self._forget(consumer, ids))

    async def is_open(self) -> bool:
        return self._is_open()

    async def hold(self, earlier: Sequence[Proof]) -> bool:  # noqa: ARG002 - the session knows
        return self._hold()

    async def standing(self, proofs: Sequence[Proof]) -> Standing:
        return await run_async(self._standing(proofs))


class SessionTransaction(_SessionWrites, _Sync):
    """The caller's pymongo ClientSession."""

    @contextmanager
    def open(self) -> Iterator[None]:
        """Open a transaction, commit it at the end, abort it on an error."""
        self._refuse_open()
        with self.session.start_transaction():
            yield


class AsyncSessionTransaction(_SessionWrites, _Async):
    """The caller's pymongo AsyncClientSession."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Open a transaction, commit it at the end, abort it on an error."""
        self._refuse_open()
        async with await self.session.start_transaction():
            yield


class BareWrites(_BareWrites, _Sync):
    """A pymongo Database, without a transaction; made by `without_transaction`."""


class AsyncBareWrites(_BareWrites, _Async):
    """A pymongo AsyncDatabase, without a transaction; made by `without_transaction`."""


def without_transaction(
    database: Database[Any] | AsyncDatabase[Any], prefix: str = DEFAULT_PREFIX
) -> BareWrites | AsyncBareWrites:
    """Return the object that `add` and `accept` take where there is no transaction.

    Every write is separate, and G1 does not hold: write the business data first, add the event
    under an id that is derived from it, and let a Reconciler add events that were lost in between.
    """
    qualify(prefix, None)
    if isinstance(database, AsyncDatabase):
        return AsyncBareWrites(database, prefix)
    return BareWrites(database, prefix)
