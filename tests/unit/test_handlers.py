"""Handlers as a destination: registration, accept, running side by side, binding."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import sqlite3
import threading
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace

import pytest

from postroom.broker import Outcome, Verdict
from postroom.engine.handlers.handlers import Handlers
from postroom.errors import ConfigError, Reject
from postroom.stores.migration_scripts import Place, script
from postroom.testing.broker_tools import RecordingReporter, make_record
from tests.unit.handler_database import PATIENCE, Database, Tx, made, outcome_of


@pytest.fixture
def database():
    return Database()


@pytest.fixture
def reporter():
    return RecordingReporter()


# -- registration -----------------------------------------------------------------------------
async def test_a_function_is_called_with_the_record_and_the_transaction(database):
    handlers = made(database)
    seen = []

    @handlers.on("order.created")
    async def charge(event, tx):
        seen.append((event.data, event.type, tx))

    assert (await outcome_of(handlers)).verdict is Verdict.CONFIRMED
    ((data, type_, tx),) = seen
    assert (data, type_) == ({"n": 1}, "order.created")
    assert isinstance(tx, Tx)


async def test_the_default_takes_what_nobody_else_takes(database):
    handlers = made(database)
    seen = []
    handlers.on("a", name="a")(lambda event, tx: seen.append("a"))

    @handlers.default
    def rest(event, tx):
        seen.append("rest")

    await outcome_of(handlers, make_record(1, type="a"))
    await outcome_of(handlers, make_record(2, type="b"))
    assert seen == ["a", "rest"]


def refused(call, match):
    with pytest.raises(ConfigError, match=match):
        call()


def test_what_cannot_be_registered_is_refused_with_a_reason():
    handlers = Handlers()

    async def charge(event, tx): ...

    async def generator(event, tx):
        yield

    handlers.on("a")(charge)
    refused(lambda: handlers.on("a")(charge), r"already has a handler named 'charge'.*name=")
    handlers.on("b")(charge)
    handlers.on("a", name="second")(charge)
    refused(lambda: handlers.on(charge), r'@handlers\.on\("order\.created"\)')
    refused(lambda: handlers.on(""), "event type is empty")
    refused(lambda: handlers.on("a\x00b"), "control character")
    refused(lambda: handlers.on("c")(lambda event, tx: None), "this handler has no name")
    refused(lambda: handlers.on("c")(functools.partial(charge)), "this handler has no name")
    refused(lambda: handlers.on("c")(generator), "generator")
    refused(lambda: handlers.on("c")(42), "must be a function")
    refused(lambda: handlers.on("c", name="n" * 300)(charge), "limit is 255")
    handlers.default(charge)
    refused(lambda: handlers.default(charge), "already a default handler: 'charge'")


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"time_limit_seconds": 0},
        {"time_limit_seconds": float("nan")},
        {"name": ""},
    ],
)
def test_settings_that_make_no_sense_are_refused(options):
    refused(lambda: Handlers(**options), next(iter(options)))


async def test_partials_and_objects_with_an_async_call_are_awaited(database):
    handlers = made(database)
    seen = []

    async def work(tag, event, tx):
        seen.append(tag)

    class Callee:
        async def __call__(self, event, tx):
            seen.append("object")

    handlers.on("order.created", name="partial")(functools.partial(work, "partial"))
    handlers.on("order.created", name="object")(Callee())
    assert (await outcome_of(handlers)).verdict is Verdict.CONFIRMED
    assert seen == ["partial", "object"]


# -- accept and the transaction (H2) ----------------------------------------------------------
@pytest.mark.req("S3.4", "S2.5")
@pytest.mark.promise("G6", "H2")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_accept_is_the_first_statement_and_a_repeat_has_no_effect(database, kind):
    handlers = made(database, name="payments")

    def effect(event, tx):
        database.log.append("effect")
        tx.rows.append(("effect", event.id))

    async def async_effect(event, tx):
        effect(event, tx)

    handlers.on("order.created", name="charge")(async_effect if kind == "async" else effect)
    first = await outcome_of(handlers)
    again = await outcome_of(handlers)
    assert (first.verdict, again.verdict) == (Verdict.CONFIRMED, Verdict.CONFIRMED)
    assert database.log == [
        "begin",
        "accept payments/charge",
        "effect",
        "look",
        "commit",
        "begin",
        "accept payments/charge",
        "commit",
    ]
    assert database.effects() == [("effect", "event-1")]


@pytest.mark.promise("G6", "H2")
async def test_each_handler_has_its_own_row_and_one_that_fails_holds_back_no_other(database):
    handlers = made(database)
    broken = {"b"}

    def register(name):
        @handlers.on("order.created", name=name)
        async def handle(event, tx):
            if name in broken:
                raise ValueError(f"{name} is broken")
            tx.rows.append(("effect", name))

    for name in "abc":
        register(name)
    outcome = await outcome_of(handlers)
    assert outcome == Outcome(Verdict.FAILED, "b: ValueError: b is broken")
    assert database.effects() == [("effect", "a"), ("effect", "c")]
    broken.clear()
    assert (await outcome_of(handlers)).verdict is Verdict.CONFIRMED
    assert database.effects() == [("effect", "a"), ("effect", "c"), ("effect", "b")]


@pytest.mark.promise("G7")
async def test_an_event_is_not_charged_while_one_of_its_handlers_had_no_chance(database):
    away = Database()
    away.open_error = ConnectionError("away")
    handlers = Handlers(
        name="handlers", transaction=database.transaction, sync_transaction=away.sync_transaction
    )

    @handlers.on("order.created")
    async def poison(event, tx):
        raise Reject("never")

    @handlers.on("order.created")
    def innocent(event, tx): ...

    assert (await outcome_of(handlers)).verdict is Verdict.OUTAGE
    away.open_error = None
    assert await outcome_of(handlers) == Outcome(Verdict.REJECTED, "poison: never")


@pytest.mark.req("S3.4", "S3.5")
@pytest.mark.promise("G6", "H2")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_on_sqlite_effect_and_inbox_row_share_one_commit(tmp_path, kind):
    import aiosqlite

    path = tmp_path / "app.db"
    schema = script(Place("sqlite", "postroom_"), 0, transaction=False)
    with sqlite3.connect(path) as conn:
        conn.executescript(schema + "CREATE TABLE charge (id TEXT)")
    conn.close()

    @asynccontextmanager
    async def transaction():
        async with aiosqlite.connect(path) as conn:
            await conn.execute("BEGIN IMMEDIATE")
            try:
                yield conn
            except BaseException:
                await conn.rollback()
                raise
            await conn.commit()

    @contextmanager
    def sync_transaction():
        conn = sqlite3.connect(path, isolation_level=None)
        try:
            conn.execute("BEGIN IMMEDIATE")
            with conn:
                yield conn
        finally:
            conn.close()

    handlers = Handlers(name="handlers", transaction=transaction, sync_transaction=sync_transaction)
    fails = [True, False, False]

    async def charge(event, tx):
        await tx.execute("INSERT INTO charge VALUES (?)", [event.id])
        if fails.pop(0):
            raise RuntimeError("crash")

    def sync_charge(event, tx):
        tx.execute("INSERT INTO charge VALUES (?)", [event.id])
        if fails.pop(0):
            raise RuntimeError("crash")

    handlers.on("order.created", name="charge")(charge if kind == "async" else sync_charge)

    def rows():
        conn = sqlite3.connect(path)
        charges = conn.execute("SELECT id FROM charge").fetchall()
        marks = conn.execute("SELECT consumer, id, state FROM postroom_inbox").fetchall()
        conn.close()
        return charges, marks

    assert await outcome_of(handlers) == Outcome(Verdict.FAILED, "RuntimeError: crash")
    assert rows() == ([], [])
    for _ in range(2):
        assert (await outcome_of(handlers)).verdict is Verdict.CONFIRMED
        assert rows() == ([("event-1",)], [("handlers/charge", "event-1", "done")])
    assert fails == [False]


async def test_without_a_transaction_nothing_is_accepted():
    handlers = Handlers(transaction=False, sync_transaction=False)
    seen = []

    @handlers.on("order.created")
    async def one(event, tx):
        seen.append(tx)

    @handlers.on("order.created")
    def two(event, tx):
        seen.append(tx)

    for _ in range(2):
        assert (await outcome_of(handlers)).verdict is Verdict.CONFIRMED
    assert seen == [None] * 4


# -- side by side and alone -------------------------------------------------------------------
async def test_keys_run_side_by_side_up_to_the_limit(database, reporter):
    handlers = made(database, concurrency=3)
    running, most, full, release = 0, 0, asyncio.Event(), asyncio.Event()

    @handlers.on("order.created")
    async def work(event, tx):
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await release.wait()
        running -= 1

    batches = [[make_record(n, key=f"k{n}") for n in range(b * 10, b * 10 + 10)] for b in range(2)]
    tasks = [asyncio.create_task(handlers.publish(batch, reporter)) for batch in batches]
    async with asyncio.timeout(PATIENCE):
        await full.wait()
        release.set()
        await asyncio.gather(*tasks)
    assert most == 3
    assert len(reporter.ids(Verdict.CONFIRMED)) == 20


@pytest.mark.promise("H1", "P3")
async def test_alone_means_that_no_other_handler_runs(database, reporter):
    handlers = made(database)
    log, entered, release = [], asyncio.Event(), asyncio.Event()

    @handlers.on("order.created")
    async def work(event, tx):
        log.append(f"+{event.key}")
        if event.key == "first":
            entered.set()
            await release.wait()
        log.append(f"-{event.key}")

    first, alone, later = (make_record(n, key=k) for n, k in enumerate(("first", "alone", "later")))
    tasks = [asyncio.create_task(handlers.publish([first], reporter))]
    async with asyncio.timeout(PATIENCE):
        await entered.wait()
        tasks.append(asyncio.create_task(handlers.publish_alone(alone, reporter)))
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(handlers.publish([later], reporter)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert log == ["+first"]
        release.set()
        await asyncio.gather(*tasks)
    assert log == ["+first", "-first", "+alone", "-alone", "+later", "-later"]


async def test_context_variables_reach_a_sync_handler(database):
    variable = contextvars.ContextVar("variable", default="unset")
    handlers = made(database)
    seen = []
    handlers.on("order.created", name="h")(lambda event, tx: seen.append(variable.get()))
    variable.set("set")
    await outcome_of(handlers)
    assert seen == ["set"]


def test_threads_of_handlers_do_not_keep_the_process_alive(database):
    handlers = made(database)
    kinds = []
    handlers.on("order.created", name="h")(
        lambda event, tx: kinds.append(threading.current_thread().daemon)
    )
    asyncio.run(outcome_of(handlers))
    assert kinds == [True]


# -- binding to a store -----------------------------------------------------------------------
async def test_bound_handlers_use_the_transactions_of_the_store(database):
    handlers = Handlers(name="handlers")

    @handlers.on("order.created")
    async def one(event, tx):
        tx.rows.append(("effect", "one"))

    handlers.on("order.created", name="two")(lambda event, tx: tx.rows.append(("effect", "two")))
    assert handlers.bind(database) is handlers
    assert handlers.bind(database) is handlers
    assert (await outcome_of(handlers)).verdict is Verdict.CONFIRMED
    assert database.effects() == [("effect", "one"), ("effect", "two")]


async def test_a_second_store_gets_a_twin_that_shares_functions_and_limits():
    handlers, one, two = Handlers(name="handlers"), Database(), Database()
    handlers.bind(one)
    twin = handlers.bind(two)
    assert twin is not handlers
    handlers.on("order.created", name="h")(lambda event, tx: tx.rows.append(("effect", event.id)))
    await outcome_of(handlers, make_record(1))
    await outcome_of(twin, make_record(2))
    assert one.effects() == [("effect", "event-1")]
    assert two.effects() == [("effect", "event-2")]
    await handlers.close()
    await outcome_of(twin, make_record(3))
    assert two.effects()[-1] == ("effect", "event-3")
    three = Database()
    assert handlers.bind(three) is handlers


@pytest.mark.promise("H4")
async def test_where_transactions_exclude_each_other_events_run_one_by_one(database, reporter):
    database.capabilities = SimpleNamespace(concurrent_writers=False)
    handlers = Handlers(name="shop", concurrency=5).bind(database)
    running, most = 0, 0

    @handlers.on("order.created")
    async def work(event, tx):
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1

    await handlers.publish([make_record(n, key=f"k{n}") for n in range(8)], reporter)
    assert most == 1
    assert len(reporter.ids(Verdict.CONFIRMED)) == 8
