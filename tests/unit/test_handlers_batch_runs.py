"""Several events in one transaction, statement by statement."""

import asyncio

import pytest

from postroom.broker import CONFIRMED, REPEAT, Outcome, Verdict
from postroom.engine.handlers.dispatch import SKIPPED_TYPE
from postroom.engine.handlers.handlers import Handlers
from postroom.testing.broker_tools import make_record
from tests.unit.handler_database import PATIENCE, Database, made

KINDS = pytest.mark.parametrize("kind", ["async", "sync"])


@pytest.fixture
def database():
    return Database()


def charging(database, kind, broken=()):
    handlers = made(database)

    def charge(event, tx):
        tx.rows.append(("effect", event.id))
        if event.id in broken:
            raise ValueError("no such customer")

    async def async_charge(event, tx):
        charge(event, tx)

    handlers.on("order.created", name="charge")(async_charge if kind == "async" else charge)
    return handlers


async def together(handlers, *ids):
    records = [make_record(n, id=each, key=each) for n, each in enumerate(ids, 1)]
    async with asyncio.timeout(PATIENCE):
        return await handlers.handle_together(records)


@KINDS
@pytest.mark.promise("G6", "H2")
async def test_each_is_accepted_before_its_handler_and_all_are_counted_at_the_end(database, kind):
    handlers = charging(database, kind)
    assert await together(handlers, "e-2") == [CONFIRMED]
    database.log.clear()
    assert await together(handlers, "e-1", "e-2", "e-3") == [CONFIRMED, REPEAT, CONFIRMED]
    accept = "accept handlers/charge"
    assert database.log == ["begin", accept, accept, accept, "look", "commit"]
    assert database.rows == [
        ("inbox", "handlers/charge", "e-2"), ("effect", "e-2"),
        ("inbox", "handlers/charge", "e-1"), ("effect", "e-1"),
        ("inbox", "handlers/charge", "e-3"), ("effect", "e-3"),
    ]  # fmt: skip


@KINDS
@pytest.mark.promise("G7")
async def test_one_that_fails_undoes_all_and_nobody_is_blamed(database, kind):
    handlers = charging(database, kind, broken=["e-2"])
    assert await together(handlers, "e-1", "e-2", "e-3") is None
    accept = "accept handlers/charge"
    assert database.log == ["begin", accept, accept, "rollback"]
    assert database.rows == []


@KINDS
async def test_a_transaction_that_cannot_be_opened_is_told_to_all(database, kind):
    database.open_error = ConnectionError("no route to host")
    said = Outcome(Verdict.OUTAGE, "opening the transaction: ConnectionError: no route to host")
    assert await together(charging(database, kind), "e-1", "e-2") == [said, said]


@KINDS
async def test_an_accept_or_a_commit_that_fails_says_nothing_of_any(database, kind):
    handlers = charging(database, kind)
    database.commit_error = ConnectionError("gone")
    assert await together(handlers, "e-1", "e-2") is None
    database.commit_error, database.accept_error = None, ConnectionError("gone")
    assert await together(handlers, "e-1", "e-2") is None


@KINDS
@pytest.mark.promise("G6")
async def test_a_note_that_is_missing_at_the_end_undoes_all(database, kind):
    handlers = made(database)

    def forget(event, tx):
        del tx.rows[:]  # as a rollback does

    async def async_forget(event, tx):
        forget(event, tx)

    handlers.on("order.created", name="charge")(async_forget if kind == "async" else forget)
    assert await together(handlers, "e-1", "e-2") is None
    assert database.log[-2:] == ["look", "rollback"]


def test_which_events_share_a_transaction(database):
    handlers = made(database)

    async def here(event, tx): ...

    def there(event, tx): ...

    handlers.on("of.loop")(here)
    handlers.on("of.thread")(there)
    handlers.on("of.both")(here)
    handlers.on("of.both")(there)
    handlers.default(here)
    types = ["of.loop", "of.thread", "of.both", "anything", SKIPPED_TYPE]
    assert [handlers.transaction_kind(each) for each in types] == [
        "async",
        "sync",
        None,
        "async",
        None,
    ]
    alone = Handlers(transaction=False)
    alone.on("of.loop")(here)
    assert alone.transaction_kind("of.loop") is None
    unbound = Handlers()
    unbound.on("of.loop")(here)
    assert unbound.transaction_kind("of.loop") is None
    assert unbound.transaction_kind("unknown") is None
    strict = made(database, strict="current")
    strict.on("of.loop")(here)
    assert strict.transaction_kind("of.loop") is None
