"""Adapters for pymongo's sessions, sync and async, and for MongoDB without transactions.

A session does not say which database its events belong in. It is the first of these that is given:
the outbox' `schema`, what `in_database(session, name)` was told, the default database of the
session's client, which is the path of its URL (`mongodb://host/shop`).

A place in the order is (`ct`, `n`): the cluster time that the server writes when the event is
added, and a number that grows within the process, since statements may share one cluster time.
Two writers who both write one common document cannot get it in the wrong order (W8): the later
one's transaction can only begin after the commit of the earlier, which moves the time on.

Errors of the driver pass through as they are, with their labels, so that `with_transaction` runs
its callback again after a conflict.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from secrets import token_bytes
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from bson.codec_options import CodecOptions
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.timestamp import Timestamp
from pymongo import ReturnDocument, UpdateOne, WriteConcern
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import ConfigurationError

from postroom.clock import from_microseconds, host_microseconds
from postroom.errors import AutocommitError, SchemaError, TransactionError
from postroom.transaction import Counter, Mark, Proof, Row, Standing
from postroom.transactions.pymongo_standing import standing, transaction_of
from postroom.transactions.sql import DEFAULT_PREFIX, qualify
from postroom.transactions.steps import Steps, run, run_async

if TYPE_CHECKING:
    from pymongo.database import Database

S = TypeVar("S")
Expression = Any

MAJORITY = WriteConcern("majority", wtimeout=10_000)
_DURABLE = WriteConcern("majority", wtimeout=10_000, j=True)  # a standalone's majority is memory
CLUSTER_TIME = "$$CLUSTER_TIME"
NEVER = 0  # `awaits` of an event that waits for nothing
_ANY_TEXT: CodecOptions[dict[str, Any]] = CodecOptions(
    unicode_decode_error_handler="backslashreplace"
)
_FRESH = {"$eq": [{"$type": "$ct"}, "missing"]}

_LAST_MS = 253_402_300_799_999  # of the year 9999
_EPOCH = 1_577_836_800_000_000  # 2020 in microseconds: 63 bits are enough until 2091

_lock = Lock()
_last = 0
_bound: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # session → database
_known: WeakKeyDictionary[Any, dict[str, bool]] = WeakKeyDictionary()
"""Client → the outboxes that were found there, and whether that server has a cluster time."""


def in_database(session: S, name: str) -> S:
    """Say in which database the outbox and inbox of this session are; returns the session."""
    _bound[session] = name
    return session


# -- documents -------------------------------------------------------------------------------------
def place_numbers(count: int, salt: bytes) -> list[Int64]:
    """Return the next values of `n` in this process.

    They follow the host's clock, so that strangers who add at one cluster time are mostly in the
    order of their adds too, and never go back. The salt, 12 bits of the writer's own, keeps two
    processes from giving one number.
    """
    global _last  # noqa: PLW0603
    tail = int.from_bytes(salt[:2], "big") & 0xFFF
    with _lock:
        first = max(_last + 1, host_microseconds() - _EPOCH)
        _last = first + count - 1
    return [Int64(n << 12 | tail) for n in range(first, first + count)]


_SECONDS = {"$toLong": {"$floor": {"$divide": [{"$toLong": "$$NOW"}, 1000]}}}
_BEFORE = {"$ifNull": ["$seconds", 0]}
CLOCK = {"_id": "clock"}
TICK = [
    {
        "$set": {
            "seconds": {"$max": [_BEFORE, _SECONDS]},
            "tick": {"$cond": [{"$gt": [_SECONDS, _BEFORE]}, 1, {"$add": ["$tick", 1]}]},
        }
    }
]
"""The clock of a standalone server, a document: it never goes back, whatever the server's does.

The server's own timestamps begin at one again if it is started twice within a second.
"""


def clock_of(ticket: Mapping[str, Any]) -> Timestamp:
    """Return the time that a tick of the clock has brought."""
    return Timestamp(int(ticket["seconds"]), int(ticket["tick"]))


def document(row: Row, ct: Expression, n: int) -> Expression:
    """Return an expression for the document of a new event.

    What the user wrote is literal: a `$` in it means nothing.
    """
    payload = row.payload if row.payload is not None else row.payload_bytes
    due = None if row.available_us is None else _ceil(row.available_us)
    fixed = {
        "_id": row.id,
        "stream": row.stream,
        "lane": row.lane,
        "key_hash": row.key_hash,
        "event_type": row.type,
        "topic": row.topic,
        "key": row.key,
        "aggregate_type": row.aggregate_type,
        "aggregate_id": row.aggregate_id,
        "payload": payload,
        "content_type": row.content_type,
        "headers": row.headers,
        "correlation_id": row.correlation_id,
        "causation_path": row.causation_path,
        "schema_version": row.schema_version,
        "kseq": None if row.kseq is None else Int64(row.kseq),
        "size": row.size,
        "occurred_at": from_microseconds(row.occurred_us // 1000 * 1000),
        "occurred_us": row.occurred_us % 1000,
        "available_at": due,
        "status": "pending",
        "stage": "ready",
        "awaits": NEVER,
        "attempts": 0,
        "next_attempt_at": None,
        "last_error": None,
        "lease_owner": None,
        "lease_until": None,
        "settled_at": None,
        "n": Int64(n),
    }
    decided: dict[str, Expression] = {"ct": ct, "created_at": "$$NOW"}
    if due is not None:
        late = {"$gt": [due, "$$NOW"]}
        decided["stage"] = {"$cond": [late, "waiting", "ready"]}
        decided["awaits"] = {"$cond": [late, due, NEVER]}
        decided["next_attempt_at"] = {"$cond": [late, due, None]}
    return {"$mergeObjects": [{"$literal": fixed}, decided]}


def _ceil(microseconds: int) -> DatetimeMS:
    """Return an instant in MongoDB's whole milliseconds: never earlier than asked for.

    The last millisecond of the year 9999 is the last: drivers cannot read what comes after it.
    """
    return DatetimeMS(min(-(-microseconds // 1000), _LAST_MS))


def upsert_of(row: Row, ct: Expression, n: int) -> UpdateOne:
    """Write a new document; leave one that is there as it is.

    An insert would abort the whole transaction if the id is there (W5).
    """
    new = {"$cond": [_FRESH, document(row, ct, n), "$$ROOT"]}
    return UpdateOne({"_id": row.id}, [{"$replaceWith": new}], upsert=True)


def _accepted(mark: Mark) -> list[dict[str, Any]]:
    done = {"$eq": ["$status", "done"]}
    fields: dict[str, Expression] = {
        "event_type": {"$ifNull": ["$event_type", {"$literal": mark.type}]},
        "correlation_id": {"$ifNull": ["$correlation_id", {"$literal": mark.correlation_id}]},
        "status": "done",
        "received_at": {"$ifNull": ["$received_at", "$$NOW"]},
        "processed_at": {"$cond": [done, "$processed_at", "$$NOW"]},
    }
    return [{"$set": fields}]


# -- what every adapter does -----------------------------------------------------------------------
class _Writes:
    """The statements, in steps that run with and without a loop."""

    session: Any = None

    def __init__(self, database: Any, prefix: str) -> None:
        self._database = database
        self._prefix = prefix

    def check(self) -> None: ...

    def _is_open(self) -> bool:
        return True

    def after_commit(self, call: Callable[[], None]) -> bool:  # noqa: ARG002
        """Say that the driver has no such hook."""
        return False

    def _collection(self, name: str) -> Any:
        return self._database[self._prefix + name]

    def _places(self, count: int) -> Steps[tuple[Expression, list[Int64]]]:
        """Return the time and the numbers of so many new events."""
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
                {"_id": {"topic": counter.topic, "key_hash": counter.key_hash}},
                {"$inc": {"last": Int64(counter.step)}},
                upsert=True,
                return_document=ReturnDocument.AFTER,
                session=self.session,
            )
            values.append(int(found["last"]))
        return values

    def _accept(self, mark: Mark) -> Steps[bool]:
        self.check()
        yield from self._known()
        before = yield self._collection("inbox").find_one_and_update(
            {"_id": {"consumer": mark.consumer, "id": mark.id}},
            _accepted(mark),
            upsert=True,
            return_document=ReturnDocument.BEFORE,
            session=self.session,
        )
        return before is None or before["status"] != "done"

    def _count_done(self, marks: Sequence[Mark]) -> Steps[int]:
        ids = [{"consumer": mark.consumer, "id": mark.id} for mark in marks]
        done = {"_id": {"$in": ids}, "status": "done"}
        found: int = yield self._collection("inbox").count_documents(done, session=self.session)
        return found

    def _done_before(
        self, consumer: str, seconds: float, limit: int, skip: int
    ) -> Steps[list[str]]:
        """Ask by the host's clock: a little early or late makes no difference here."""
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
        marks = [{"consumer": consumer, "id": each} for each in ids]
        result = yield self._collection("inbox").delete_many(
            {"_id": {"$in": marks}, "status": "done"}, session=self.session
        )
        return int(result.deleted_count)

    def _hold(self) -> Steps[None]:
        """Return: writes that stand by themselves are in no transaction."""
        yield from ()

    def _standing(self, proofs: Sequence[Proof]) -> Steps[Standing]:  # noqa: ARG002
        yield from ()
        return Standing.HELD

    def _known(self) -> Steps[bool]:
        """Look once for each client whether the outbox is in this database.

        MongoDB makes whatever collection is written to: in the wrong database an event would be
        committed, and nobody would ever look there.
        """
        outboxes = _known.setdefault(self._database.client, {})
        name = f"{self._database.name}.{self._prefix}"
        if name not in outboxes:
            meta = self._collection("meta")
            if (yield meta.find_one({"_id": "schema_version"}, session=self.session)) is None:
                raise SchemaError(
                    f"the collections {self._prefix}… are not in the database "
                    f"{self._database.name!r}. Create them with `postroom migrate up` or `await "
                    "migrate(url)`, in the database of the business data; name another database "
                    "with Outbox(schema=…) or in_database(session, …)"
                )
            outboxes[name] = yield from self._has_clock()
        return outboxes[name]

    def _has_clock(self) -> Steps[bool]:
        """Say whether the server has a cluster time; a transaction needs one."""
        yield from ()
        return True


class _SessionWrites(_Writes):
    """On a session of the caller, in its transaction."""

    def __init__(self, session: Any, prefix: str) -> None:
        self.session = self.target = session
        schema, _, rest = prefix.rpartition(".")
        super().__init__(_database_of(session, schema), rest)
        self._number: int | None = None

    def check(self) -> None:
        if self.session.has_ended:
            raise TransactionError("this session has ended; start one and add within it")
        if not self.session.in_transaction:
            raise AutocommitError(
                "this session is in autocommit mode: no transaction is open on it, and the event "
                "would be committed on its own, apart from your data. Call start_transaction(), "
                "which is MongoDB's BEGIN, or use `with outbox.transaction(session):` or "
                "session.with_transaction(…). For a MongoDB without transactions see "
                "without_transaction(database)"
            )

    def _places(self, count: int) -> Steps[tuple[Expression, list[Int64]]]:
        yield from ()
        return CLUSTER_TIME, place_numbers(count, self.session.session_id["id"])

    def _is_open(self) -> bool:
        return transaction_of(self.session) is not None

    def _hold(self) -> Steps[None]:
        yield from ()
        if self._number is None:
            self._number = transaction_of(self.session)

    def _standing(self, proofs: Sequence[Proof]) -> Steps[Standing]:
        return standing(self.session, self._collection, self._number, proofs)

    def _refuse_open(self) -> None:
        if self.session.in_transaction:
            raise TransactionError(
                "a transaction is open on this session already. Add to it with "
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
            "it cannot be told in which database the outbox is: the client's URL names none. "
            "Connect with mongodb://host/database, or use Outbox(schema=…), or "
            "in_database(session, name)"
        ) from error


class _BareWrites(_Writes):
    """On a database, each write for itself."""

    def __init__(self, database: Any, prefix: str) -> None:
        super().__init__(database.with_options(write_concern=_DURABLE), prefix)

    def _places(self, count: int) -> Steps[tuple[Expression, list[Int64]]]:
        if (yield from self._known()):
            return CLUSTER_TIME, place_numbers(count, token_bytes(2))
        ticket = yield self._collection("meta").find_one_and_update(
            CLOCK, TICK, upsert=True, return_document=ReturnDocument.AFTER
        )
        return clock_of(ticket), place_numbers(count, b"")

    def _has_clock(self) -> Steps[bool]:
        hello = yield self._database.client.admin.command("hello")
        return has_cluster_time(hello)

    def _count_up(self, counters: Sequence[Counter]) -> Steps[list[int]]:  # noqa: ARG002
        yield from ()
        raise TransactionError(
            "strict order needs transactions: a crash between number and event would leave a gap "
            "for ever. Use ordering='keyed', or a replica set; one of a single member will do"
        )


def has_cluster_time(hello: Mapping[str, Any]) -> bool:
    """Say whether a server is part of a replica set or a cluster: with transactions and a clock."""
    return "setName" in hello or hello.get("msg") == "isdbgrid"


# -- the adapters ----------------------------------------------------------------------------------
class _Sync(_Writes):
    def insert(self, rows: Sequence[Row], *, whole: bool = False) -> int:
        return run(self._insert(rows, whole))

    def count_up(self, counters: Sequence[Counter]) -> list[int]:
        return run(self._count_up(counters))

    def accept(self, mark: Mark) -> bool:
        return run(self._accept(mark))

    def count_done(self, marks: Sequence[Mark]) -> int:
        return run(self._count_done(marks))

    def done_before(self, consumer: str, seconds: float, limit: int, skip: int) -> list[str]:
        return run(self._done_before(consumer, seconds, limit, skip))

    def forget(self, consumer: str, ids: Sequence[str]) -> int:
        return run(self._forget(consumer, ids))

    def is_open(self) -> bool:
        return self._is_open()

    def hold(self) -> None:
        run(self._hold())

    def standing(self, proofs: Sequence[Proof]) -> Standing:
        return run(self._standing(proofs))


class _Async(_Writes):
    async def insert(self, rows: Sequence[Row], *, whole: bool = False) -> int:
        return await run_async(self._insert(rows, whole))

    async def count_up(self, counters: Sequence[Counter]) -> list[int]:
        return await run_async(self._count_up(counters))

    async def accept(self, mark: Mark) -> bool:
        return await run_async(self._accept(mark))

    async def count_done(self, marks: Sequence[Mark]) -> int:
        return await run_async(self._count_done(marks))

    async def done_before(self, consumer: str, seconds: float, limit: int, skip: int) -> list[str]:
        return await run_async(self._done_before(consumer, seconds, limit, skip))

    async def forget(self, consumer: str, ids: Sequence[str]) -> int:
        return await run_async(self._forget(consumer, ids))

    async def is_open(self) -> bool:
        return self._is_open()

    async def hold(self) -> None:
        await run_async(self._hold())

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
    """Return what `add` and `accept` take where there is no transaction, by your own choice.

    Every write stands for itself, and G1 does not hold: write the business data first, add the
    event under an id that is derived from it, and let a Reconciler add what was lost in between.
    """
    qualify(prefix, None)
    if isinstance(database, AsyncDatabase):
        return AsyncBareWrites(database, prefix)
    return BareWrites(database, prefix)
