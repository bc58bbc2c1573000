"""What becomes of an event by what its handler or its database does."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta

import asyncmy
import asyncpg
import psycopg
import pymongo
import pymysql
import pytest

from postroom.broker import Outcome, Verdict
from postroom.engine.handlers.handlers import Handlers
from postroom.errors import AutocommitError, Reject, Retry
from postroom.testing.broker_tools import RecordingReporter, make_record
from tests.unit.handler_database import Database, Tx, made, outcome_of


@pytest.fixture
def database():
    return Database()


@pytest.fixture
def reporter():
    return RecordingReporter()


# -- outcomes ---------------------------------------------------------------------------------
class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no")


class Odd(BaseException):
    pass


@pytest.mark.req("S2.4", "S3.5")
@pytest.mark.promise("P2")
@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (Retry("later", after=5), Outcome(Verdict.FAILED, "later", 5)),
        (Retry(after=timedelta(minutes=1)), Outcome(Verdict.FAILED, "asked for a retry", 60.0)),
        (Retry(after=-3), Outcome(Verdict.FAILED, "asked for a retry", 0.0)),
        (Retry(after=float("inf")), Outcome(Verdict.FAILED, "asked for a retry", None)),
        (Reject("no such order"), Outcome(Verdict.REJECTED, "no such order")),
        (Reject(), Outcome(Verdict.REJECTED, "rejected by its handler")),
        (ValueError("bad"), Outcome(Verdict.FAILED, "ValueError: bad")),
        (StopIteration(), Outcome(Verdict.FAILED, "StopIteration")),
        (SystemExit(3), Outcome(Verdict.FAILED, "SystemExit: 3")),
        (TimeoutError("its own"), Outcome(Verdict.FAILED, "TimeoutError: its own")),
        (asyncio.CancelledError(), Outcome(Verdict.FAILED, "CancelledError")),
        (Unprintable(), Outcome(Verdict.FAILED, "Unprintable: (its message cannot be printed)")),
    ],
    ids=lambda value: (
        repr(value)[:40]
        if isinstance(value, BaseException) and not isinstance(value, Unprintable)
        else None
    ),
)
async def test_what_a_handler_raises_decides_the_outcome(database, kind, raised, expected):
    handlers = made(database)

    async def async_handler(event, tx):
        tx.rows.append(("effect", event.id))
        raise raised

    def sync_handler(event, tx):
        tx.rows.append(("effect", event.id))
        raise raised

    handlers.on("order.created", name="h")(async_handler if kind == "async" else sync_handler)
    got = await outcome_of(handlers)
    if isinstance(raised, StopIteration) and kind == "async":
        # A coroutine cannot raise StopIteration; Python turns it into a RuntimeError.
        expected = Outcome(Verdict.FAILED, "RuntimeError: coroutine raised StopIteration")
    assert got == expected
    assert database.rows == []
    assert database.log[-1] == "rollback"


@pytest.mark.promise("G7")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_handler_that_can_be_retried_keeps_the_event_alive(database, kind):
    """A dead letter would end it for the handler that only failed."""
    handlers = made(database)

    async def poison(event, tx):
        raise Reject("never")

    def poison_sync(event, tx):
        raise Reject("never")

    async def busy(event, tx):
        raise Retry("busy", after=5)

    handlers.on("order.created", name="poison")(poison if kind == "async" else poison_sync)
    handlers.on("order.created")(busy)
    assert await outcome_of(handlers) == Outcome(Verdict.FAILED, "busy: busy", 5)


@pytest.mark.req("S2.4")
async def test_of_the_waits_that_several_handlers_ask_for_the_longest_counts(database):
    handlers = made(database)

    @handlers.on("order.created")
    async def soon(event, tx):
        raise Retry("busy", after=5)

    @handlers.on("order.created")
    async def late(event, tx):
        raise Retry("closed", after=60)

    @handlers.on("order.created")
    async def whenever(event, tx):
        raise ValueError("bad")

    said = "soon: busy; late: closed; whenever: ValueError: bad"
    assert await outcome_of(handlers) == Outcome(Verdict.FAILED, said, 60)


@pytest.mark.promise("P2")
async def test_no_handler_is_a_wrong_configuration_and_spends_nothing(database, reporter):
    handlers = made(database)
    outcome = await outcome_of(handlers, make_record(type="x"), reporter)
    assert outcome == Outcome(
        Verdict.MISCONFIGURED,
        "no handler for type 'x'; register one with @handlers.on('x')",
        local=True,
    )
    assert reporter.begun == []


async def test_the_marker_of_a_skipped_event_needs_no_handler(database, reporter):
    handlers = made(database)
    outcome = await outcome_of(handlers, make_record(type="postroom.skipped"), reporter)
    assert outcome.verdict is Verdict.CONFIRMED
    seen = []

    @handlers.on("postroom.skipped")
    async def note(event, tx):
        seen.append(event.id)

    await outcome_of(handlers, make_record(type="postroom.skipped"))
    assert seen == ["event-1"]


@pytest.mark.promise("H1")
@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize(
    ("fault", "verdict", "error"),
    [
        (
            "open_error",
            Verdict.OUTAGE,
            "opening the transaction: OperationalError: database is locked",
        ),
        (
            "accept_error",
            Verdict.OUTAGE,
            "accepting the event: OperationalError: database is locked",
        ),
        ("commit_error", Verdict.UNKNOWN, "OperationalError: database is locked"),
    ],
)
async def test_a_database_that_does_not_answer(database, kind, fault, verdict, error):
    setattr(database, fault, sqlite3.OperationalError("database is locked"))
    handlers = made(database)
    ran = []

    async def async_handler(event, tx):
        ran.append(event.id)

    def sync_handler(event, tx):
        ran.append(event.id)

    handlers.on("order.created", name="h")(async_handler if kind == "async" else sync_handler)
    assert await outcome_of(handlers) == Outcome(verdict, error)
    assert ran == (["event-1"] if fault == "commit_error" else [])


@pytest.mark.promise("W1")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_factory_that_yields_no_transaction_is_a_wrong_configuration(kind):
    @contextmanager
    def sync_transaction():
        conn = sqlite3.connect(":memory:", isolation_level=None)  # commits by itself
        yield conn
        conn.close()

    @asynccontextmanager
    async def transaction():
        yield "not a connection"

    handlers = Handlers(name="handlers", transaction=transaction, sync_transaction=sync_transaction)

    async def async_handler(event, tx): ...

    def sync_handler(event, tx): ...

    handlers.on("order.created", name="h")(async_handler if kind == "async" else sync_handler)
    outcome = await outcome_of(handlers)
    assert outcome.verdict is Verdict.MISCONFIGURED
    assert (
        "AutocommitError" if kind == "sync" else "cannot write through builtins.str"
    ) in outcome.error


@pytest.mark.promise("W1")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_nothing_is_written_where_it_would_commit_by_itself(database, kind):
    database.accept_error = AutocommitError("it would")
    handlers = made(database)

    async def async_handler(event, tx): ...

    def sync_handler(event, tx): ...

    handlers.on("order.created", name="h")(async_handler if kind == "async" else sync_handler)
    assert await outcome_of(handlers) == Outcome(Verdict.MISCONFIGURED, "AutocommitError: it would")
    assert database.log == ["begin", "accept handlers/h", "rollback"]


async def test_unbound_handlers_say_what_is_missing(reporter):
    handlers = Handlers()
    handlers.on("order.created", name="h")(lambda event, tx: None)
    outcome = await outcome_of(handlers)
    assert outcome.verdict is Verdict.MISCONFIGURED
    assert "sync_transaction=" in outcome.error


async def test_a_sync_function_that_returns_an_awaitable_is_told_so(database):
    handlers = made(database)

    async def work():
        raise AssertionError

    handlers.on("order.created", name="h")(lambda event, tx: work())
    outcome = await outcome_of(handlers)
    assert outcome.verdict is Verdict.FAILED
    assert "declare it with `async def`" in outcome.error


async def test_a_factory_that_swallows_exceptions_does_not_turn_a_failure_into_a_success():
    @asynccontextmanager
    async def transaction():
        with suppress(ValueError):
            yield Tx(Database())

    handlers = Handlers(name="handlers", transaction=transaction)

    @handlers.on("order.created")
    async def fail(event, tx):
        raise ValueError("bad")

    assert await outcome_of(handlers) == Outcome(Verdict.FAILED, "ValueError: bad")


async def test_the_handlers_error_is_told_when_the_rollback_fails_too():
    @asynccontextmanager
    async def transaction():
        try:
            yield Tx(Database())
        except ValueError:
            raise ConnectionError("rollback failed") from None

    handlers = Handlers(name="handlers", transaction=transaction)

    @handlers.on("order.created")
    async def fail(event, tx):
        raise ValueError("the cause")

    assert await outcome_of(handlers) == Outcome(Verdict.FAILED, "ValueError: the cause")


async def test_a_begin_that_fails_keeps_the_handler_from_running(database, reporter):
    handlers = made(database)
    ran = []
    handlers.on("order.created", name="h")(lambda event, tx: ran.append(event.id))

    async def begin(record):
        raise ConnectionError("the store is away")

    reporter.begin = begin
    outcome = await outcome_of(handlers, reporter=reporter)
    assert outcome == Outcome(Verdict.UNSENT, "ConnectionError: the store is away")
    assert ran == []


@pytest.mark.promise("P2")
async def test_after_an_outage_nothing_further_of_the_batch_is_begun(database, reporter):
    database.open_error = ConnectionError("away")
    handlers = made(database, concurrency=1)
    handlers.on("order.created", name="h")(lambda event, tx: None)
    batch = [make_record(n, key=f"k{n}") for n in range(1, 6)]
    await handlers.publish(batch, reporter)
    assert [reporter.verdict(r) for r in batch] == [Verdict.OUTAGE] + [Verdict.UNSENT] * 4
    assert reporter.begun == ["event-1"]


# -- values that a database refuses ------------------------------------------------------------
def of_mongo():
    return pymongo.errors.OperationFailure("$inc overflows", code=2)


REFUSED = {
    "psycopg, out of range": lambda: psycopg.errors.NumericValueOutOfRange("bigint out of range"),
    "psycopg, too long": lambda: psycopg.errors.StringDataRightTruncation("too long"),
    "asyncpg": lambda: asyncpg.exceptions.NumericValueOutOfRangeError("bigint out of range"),
    "pymysql": lambda: pymysql.err.DataError(1264, "Out of range value for column 'last'"),
    "pymysql, an expression": lambda: pymysql.err.OperationalError(1690, "BIGINT out of range"),
    "asyncmy": lambda: asyncmy.errors.DataError(1406, "Data too long"),
    "sqlite3": lambda: OverflowError("Python int too large to convert to SQLite INTEGER"),
    "pymongo": of_mongo,
}


@pytest.mark.promise("P2")
@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("error", REFUSED.values(), ids=REFUSED)
async def test_values_that_the_database_refuses_are_no_outage(database, error, kind):  # R-D7
    database.accept_error = error()
    handlers = made(database)

    def charge(event, tx): ...

    async def async_charge(event, tx): ...

    handlers.on("order.created", name="charge")(async_charge if kind == "async" else charge)
    assert (await outcome_of(handlers)).verdict is Verdict.FAILED
    database.accept_error, database.commit_error = None, error()
    assert (await outcome_of(handlers)).verdict is Verdict.FAILED  # not unknown: it was refused


# -- bodies that are no JSON -------------------------------------------------------------------
def reads(event, tx):
    return event.data


def reads_and_wraps(event, tx):
    try:
        return event.data
    except ValueError as error:
        raise KeyError("order") from error


def asks(event, tx):
    raise Retry("the mail server is busy")


def reads_and_asks(event, tx):
    try:
        return event.data
    except ValueError as error:
        raise Retry("the schema may be on its way") from error


def fails(event, tx):
    raise ConnectionError("gone")


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize(
    ("function", "verdict"),
    [
        (reads, Verdict.REJECTED),
        (reads_and_wraps, Verdict.REJECTED),
        (asks, Verdict.FAILED),
        (reads_and_asks, Verdict.FAILED),
        (fails, Verdict.FAILED),
    ],
)
async def test_only_a_handler_that_cannot_decode_its_event_rejects_it(
    database, function, verdict, kind
):  # R-D2
    handlers = made(database)

    async def on_the_loop(event, tx):
        function(event, tx)

    handlers.on("order.created", name="h")(on_the_loop if kind == "async" else function)
    record = make_record(payload=b"[INFO] started", content_type="application/json")
    outcome = await outcome_of(handlers, record)
    assert outcome.verdict is verdict
    assert ("the body is not JSON" in outcome.error) is (verdict is Verdict.REJECTED)
