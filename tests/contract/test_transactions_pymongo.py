"""The contract of the write side on pymongo's sessions, sync and async."""

from __future__ import annotations

import asyncio
import re

import pymongo
import pytest
from pymongo.errors import OperationFailure

from postroom.errors import (
    AutocommitError,
    DuplicateEventError,
    SchemaError,
    TransactionError,
    UnsupportedConnectionError,
)
from postroom.event import Event
from postroom.inbox import Inbox
from postroom.outbox import Outbox, SyncOutbox
from postroom.testing.misbehaviour import MisbehaviourContract
from postroom.testing.transactions import Note, TransactionBench, TransactionContract
from postroom.transaction import Acceptance, Standing
from postroom.transactions import resolve
from postroom.transactions.mongo import in_database, without_transaction
from tests.contract import mongo_database

_INSERT = re.compile(r"INSERT INTO (\w+) \((.*?)\) VALUES \((.*?)\)")


def sql_row(document):
    """Show a document under the names that the tables of other databases have."""
    row = {**document, "id": document["_id"]}
    row["type"], row["state"] = row.get("event_type"), row.get("status")
    if isinstance(document["_id"], dict):
        row = {"processed_at": None, **row, **document["_id"]}
    if "payload" in document:
        is_text = isinstance(document["payload"], str)
        row["payload"] = document["payload"] if is_text else None
        row["payload_bytes"] = None if is_text else bytes(document["payload"])
    return row


def rows(url, table):
    order = {"ct": 1, "n": 1} if table == "postroom_outbox" else {"$natural": 1}
    with pymongo.MongoClient(url) as client:
        found = client.get_default_database()[table].find().sort(order)
        return [sql_row(document) for document in found]


class MongoBench(TransactionBench):
    """The few words of SQL that the contract speaks, as writes of documents."""

    after_end, aborts = "autocommit", True

    def __init__(self, url):
        self.url = url

    async def rows(self, table="postroom_outbox"):
        return await asyncio.to_thread(rows, self.url, table)

    async def orders(self):
        return [row["name"] for row in await self.rows("orders") if row["name"] != "there"]

    async def execute(self, tx, sql):
        table, names, values = _INSERT.fullmatch(sql).groups()
        document = dict(zip(names.split(", "), eval(f"({values},)"), strict=True))
        if table == "postroom_inbox":
            ident = {"consumer": document.pop("consumer"), "id": document.pop("id")}
            document = {"_id": ident, "status": document.pop("state"), **document}
        await self.insert(tx, table, document)


class AsyncBench(MongoBench):
    def __init__(self, url):
        super().__init__(url)
        self.client = pymongo.AsyncMongoClient(url)

    async def begin(self):
        session = self.client.start_session()
        await session.start_transaction()
        return session

    async def commit(self, tx):
        await tx.commit_transaction()
        await tx.end_session()

    async def rollback(self, tx):
        await tx.abort_transaction()
        await tx.end_session()

    async def commit_inside(self, tx):
        if tx.in_transaction:
            await tx.commit_transaction()

    async def roll_back_inside(self, tx):
        await tx.abort_transaction()

    async def close_inside(self, tx):
        await tx.end_session()

    leave = commit_inside

    async def undo(self, tx):
        if tx.in_transaction:
            await self.rollback(tx)

    async def fail(self, tx):
        """Write a document that is there: the server aborts the transaction."""
        orders = self.client.get_default_database().orders
        await orders.update_one({"_id": "there"}, {"$set": {"name": "there"}}, upsert=True)
        await self.insert(tx, "orders", {"_id": "there"})

    async def insert(self, tx, table, document):
        await self.client.get_default_database()[table].insert_one(document, session=tx)

    async def autocommitting(self):
        return self.client.start_session()

    async def close(self):
        await self.client.close()


class SyncBench(MongoBench):
    sync = True

    def __init__(self, url):
        super().__init__(url)
        self.client = pymongo.MongoClient(url)

    async def begin(self):
        session = self.client.start_session()
        session.start_transaction()
        return session

    async def commit(self, tx):
        tx.commit_transaction()
        tx.end_session()

    async def rollback(self, tx):
        tx.abort_transaction()
        tx.end_session()

    async def commit_inside(self, tx):
        if tx.in_transaction:
            tx.commit_transaction()

    async def roll_back_inside(self, tx):
        tx.abort_transaction()

    async def close_inside(self, tx):
        tx.end_session()

    leave = commit_inside

    async def undo(self, tx):
        if tx.in_transaction:
            await self.rollback(tx)

    async def fail(self, tx):
        orders = self.client.get_default_database().orders
        orders.update_one({"_id": "there"}, {"$set": {"name": "there"}}, upsert=True)
        await self.insert(tx, "orders", {"_id": "there"})

    async def insert(self, tx, table, document):
        self.client.get_default_database()[table].insert_one(document, session=tx)

    async def autocommitting(self):
        return self.client.start_session()

    async def close(self):
        self.client.close()


class SyncSessionInAsyncOutbox(SyncBench):
    sync = False


@pytest.fixture
async def url(mongo_url):
    async with mongo_database.emptied(mongo_url) as url:
        yield url


class TestPymongo(TransactionContract):
    @pytest.fixture(params=[AsyncBench, SyncBench, SyncSessionInAsyncOutbox])
    async def bench(self, request, url):
        bench = request.param(url)
        yield bench
        await bench.close()


class TestMisbehaviour(MisbehaviourContract):
    @pytest.fixture(params=[AsyncBench, SyncBench])
    async def bench(self, request, url):
        bench = request.param(url)
        yield bench
        await bench.close()


@pytest.fixture
async def bench(url):
    bench = AsyncBench(url)
    yield bench
    await bench.close()


def found_ids(rows):
    return [row["id"] for row in rows]


# -- conflicts and repeats -----------------------------------------------------------------------
@pytest.mark.req("S4.2")
@pytest.mark.promise("W6", "G1")
async def test_a_callback_that_runs_again_adds_its_event_once(bench):
    """with_transaction repeats the callback after a conflict; the first run left nothing."""
    database = bench.client.get_default_database()
    await database.orders.insert_one({"_id": "shared", "n": 0})
    event = Event("order.changed", id="stable")
    runs = 0

    async def callback(session):
        nonlocal runs
        runs += 1
        await Outbox().add(session, event)
        if runs == 1:  # somebody else is quicker
            await database.orders.update_one({"_id": "shared"}, {"$inc": {"n": 1}})
        await database.orders.update_one({"_id": "shared"}, {"$inc": {"n": 10}}, session=session)

    async with bench.client.start_session() as session:
        await session.with_transaction(callback)
    assert runs == 2
    assert found_ids(await bench.rows()) == ["stable"]
    assert (await database.orders.find_one({"_id": "shared"}))["n"] == 11


@pytest.mark.promise("W5", "W6")
async def test_two_transactions_that_add_one_id_leave_one_event(bench):
    first, second = await bench.begin(), await bench.begin()
    await bench.add(first, Event("t", "first", id="same"))
    with pytest.raises(OperationFailure, match="WriteConflict") as caught:
        await bench.add(second, Event("t", "second", id="same"))
    assert caught.value.has_error_label("TransientTransactionError")
    await bench.rollback(second)
    await bench.commit(first)
    again = await bench.begin()
    with pytest.raises(DuplicateEventError):
        await bench.add(again, Event("t", "second", id="same"))
    await bench.rollback(again)
    assert [row["payload"] for row in await bench.rows()] == ['"first"']


@pytest.mark.req("S4.6")
@pytest.mark.promise("W9")
async def test_strict_writers_of_one_key_leave_no_gap_however_they_meet(bench):
    async def write(writer):
        async def callback(session):
            event = Event("t", key="k", id=f"{writer}")
            await Outbox(ordering="strict").add(session, event)

        async with bench.client.start_session() as session:
            await session.with_transaction(callback)

    async with asyncio.timeout(30):
        await asyncio.gather(*(write(n) for n in range(8)))
    assert sorted(row["kseq"] for row in await bench.rows()) == list(range(1, 9))


@pytest.mark.promise("G4", "W8")
async def test_writers_of_one_document_have_their_events_in_the_order_of_its_versions(bench):
    """They need not agree on anything else: who writes the document second, comes second."""
    database = bench.client.get_default_database()
    await database.orders.insert_one({"_id": "order-1", "version": 0})

    async def change(session):
        order = await database.orders.find_one_and_update(
            {"_id": "order-1"},
            {"$inc": {"version": 1}},
            return_document=pymongo.ReturnDocument.AFTER,
            session=session,
        )
        await Outbox().add(session, Event("order.changed", order["version"], key="order-1"))

    async def write():
        async with bench.client.start_session() as session:
            for _ in range(10):
                await session.with_transaction(change)

    async with asyncio.timeout(30):
        await asyncio.gather(*(write() for _ in range(4)))
    assert [int(row["payload"]) for row in await bench.rows()] == list(range(1, 41))


@pytest.mark.promise("I2")
async def test_a_message_that_is_being_handled_elsewhere_is_a_conflict(bench):
    first, second = await bench.begin(), await bench.begin()
    assert await bench.accept(first, Note("m-1"))
    with pytest.raises(OperationFailure, match="WriteConflict") as caught:
        await bench.accept(second, Note("m-1"))
    assert caught.value.has_error_label("TransientTransactionError")
    await bench.rollback(second)
    await bench.commit(first)
    third = await bench.begin()
    assert await bench.accept(third, Note("m-1")) is False
    await bench.rollback(third)


# -- the transaction -----------------------------------------------------------------------------
@pytest.mark.promise("G1")
async def test_a_transaction_opened_by_the_outbox(bench):
    outbox = Outbox()
    async with bench.client.start_session() as session:
        async with outbox.transaction(session) as tx:
            assert tx is session
            await bench.order(session, "A")
            await outbox.add(session, Event("t", id="e-1"))
            assert await bench.rows() == []
        with pytest.raises(ZeroDivisionError):
            async with outbox.transaction(session):
                await outbox.add(session, Event("t", id="e-2"))
                1 / 0
        await session.start_transaction()
        with pytest.raises(TransactionError, match="already open on this session"):
            async with outbox.transaction(session):
                pytest.fail("not reached")
    assert found_ids(await bench.rows()) == ["e-1"]
    assert await bench.orders() == ["A"]


@pytest.mark.promise("G1")
def test_a_transaction_opened_by_the_sync_outbox(url):
    outbox = SyncOutbox()
    with pymongo.MongoClient(url) as client, client.start_session() as session:
        with outbox.transaction(session):
            outbox.add(session, Event("t", id="e-1"))
        with pytest.raises(ZeroDivisionError):
            with outbox.transaction(session):
                outbox.add(session, Event("t", id="e-2"))
                1 / 0
    assert found_ids(rows(url, "postroom_outbox")) == ["e-1"]


@pytest.mark.promise("W1")
async def test_a_session_that_has_ended_is_refused(bench):
    session = await bench.begin()
    await bench.rollback(session)
    with pytest.raises(TransactionError, match="has ended"):
        await bench.add(session, Event("t"))


@pytest.mark.promise("H2")
@pytest.mark.parametrize(
    ("end", "expected"), [("commit", Standing.COMMITTED), ("abort", Standing.LOOSE)]
)
async def test_what_became_of_a_session_that_has_ended_can_be_asked(url, end, expected):
    mark = Acceptance("c", "m", "t", None)
    async with pymongo.AsyncMongoClient(url) as client:
        async with client.start_session() as session:
            await session.start_transaction()
            tx = resolve(session)
            assert await tx.accept(mark)
            await tx.hold([])
            await getattr(session, f"{end}_transaction")()
        assert await tx.standing([mark]) is expected


@pytest.mark.promise("W1")
async def test_a_client_or_database_is_refused_with_advice(bench):
    for wrong in (bench.client, bench.client.get_default_database()):
        with pytest.raises(UnsupportedConnectionError, match="Pass a session"):
            await bench.add(wrong, Event("t"))


# -- the database --------------------------------------------------------------------------------
@pytest.mark.promise("G1")
async def test_the_database_can_be_named_in_three_ways(url):
    nameless = mongo_database.url_of(url, "")
    name = url.rpartition("/")[2].partition("?")[0]
    async with pymongo.AsyncMongoClient(nameless) as client:
        async with client.start_session() as session, await session.start_transaction():
            with pytest.raises(TransactionError, match="cannot determine the outbox's database"):
                await Outbox().add(session, Event("t"))
            await Outbox(schema=name).add(session, Event("t", id="by schema"))
            await Outbox().add(in_database(session, name), Event("t", id="by session"))
    async with pymongo.AsyncMongoClient(url) as client:
        async with client.start_session() as session, await session.start_transaction():
            await Outbox().add(session, Event("t", id="by URL"))
    assert found_ids(rows(url, "postroom_outbox")) == ["by schema", "by session", "by URL"]


@pytest.mark.promise("G1", "G2")
async def test_a_database_without_an_outbox_is_refused(url):
    """MongoDB would make the collections at the first write, and no relay would look there."""
    async with pymongo.AsyncMongoClient(url) as client:
        async with client.start_session() as session, await session.start_transaction():
            with pytest.raises(SchemaError, match="'elsewhere'.*migrate"):
                await Outbox(schema="elsewhere").add(session, Event("t"))
            with pytest.raises(SchemaError):
                await Inbox("c", schema="elsewhere").accept(session, Note("m"))
        assert "elsewhere" not in await client.list_database_names()


@pytest.mark.promise("G1", "G2")
async def test_an_outbox_of_another_prefix_is_looked_for_in_its_turn(url):
    """That one outbox was found in a database says nothing of another one there."""
    async with pymongo.AsyncMongoClient(url) as client:
        async with client.start_session() as session:
            async with await session.start_transaction():
                await Outbox().add(session, Event("t", id="known"))
            async with await session.start_transaction():
                with pytest.raises(SchemaError, match="shop_.*migrate"):
                    await Outbox(prefix="shop_").add(session, Event("t"))
        names = await client.get_default_database().list_collection_names()
    assert "shop_outbox" not in names


# -- without transactions ------------------------------------------------------------------------
@pytest.fixture(params=["mongo_standalone_url", "mongo_url"])
async def bare_url(request):
    async with mongo_database.emptied(request.getfixturevalue(request.param)) as url:
        yield url


@pytest.mark.req("S2.6")
async def test_events_can_be_added_without_a_transaction_by_choice(bare_url):
    async with pymongo.AsyncMongoClient(bare_url) as client:
        bare = without_transaction(client.get_default_database())
        await Outbox().add(bare, Event("t", id="e-9", key="k"))
        await Outbox().add_many(bare, [Event("t", id=f"e-{n}", key="k") for n in (5, 7, 1)])
        with pytest.raises(DuplicateEventError):
            await Outbox().add(bare, Event("changed", id="e-5"))
        assert await Inbox("c").accept(bare, Note("m-1")) is True
        assert await Inbox("c").accept(bare, Note("m-1")) is False
    with pymongo.MongoClient(bare_url) as client:
        SyncOutbox().add(without_transaction(client.get_default_database()), Event("t", id="e-0"))
    found = rows(bare_url, "postroom_outbox")
    assert found_ids(found) == ["e-9", "e-5", "e-7", "e-1", "e-0"]
    assert {row["type"] for row in found} == {"t"}


@pytest.mark.req("S2.6")
@pytest.mark.promise("W9")
async def test_strict_order_without_transactions_is_refused(bare_url):
    async with pymongo.AsyncMongoClient(bare_url) as client:
        bare = without_transaction(client.get_default_database())
        with pytest.raises(TransactionError, match="strict order needs transactions"):
            await Outbox(ordering="strict").add(bare, Event("t", key="k"))
    assert rows(bare_url, "postroom_outbox") == []


@pytest.mark.req("S2.6")
@pytest.mark.promise("G4")
async def test_the_order_without_a_cluster_time_is_the_servers_over_all_processes(
    mongo_standalone_url,
):
    async with mongo_database.emptied(mongo_standalone_url) as url:
        async with pymongo.AsyncMongoClient(url) as one, pymongo.AsyncMongoClient(url) as two:
            for n in range(10):
                bare = without_transaction((one if n % 2 else two).get_default_database())
                await Outbox().add(bare, Event("t", id=f"e-{n}"))
        assert found_ids(rows(url, "postroom_outbox")) == [f"e-{n}" for n in range(10)]


@pytest.mark.req("S2.6")
@pytest.mark.promise("G4")
async def test_the_clock_of_a_standalone_never_goes_back(mongo_standalone_url):
    """Nor does it stand still if the server is started again within a second."""
    async with mongo_database.emptied(mongo_standalone_url) as url:
        async with pymongo.AsyncMongoClient(url) as client:
            database = client.get_default_database()
            bare = without_transaction(database)
            await Outbox().add(bare, Event("t", id="e-0"))
            clock = await database["postroom_meta"].find_one({"_id": "clock"})
            ahead = {"seconds": clock["seconds"] + 100, "tick": 7}
            await database["postroom_meta"].update_one({"_id": "clock"}, {"$set": ahead})
            for n in (1, 2):
                await Outbox().add(bare, Event("t", id=f"e-{n}"))
            await database["postroom_meta"].delete_one({"_id": "clock"})
        found = rows(url, "postroom_outbox")
        assert found_ids(found) == ["e-0", "e-1", "e-2"]
        assert [row["ct"].inc for row in found[1:]] == [8, 9]
        assert found[1]["ct"].time == found[2]["ct"].time == ahead["seconds"]


@pytest.mark.promise("W1")
async def test_a_transaction_on_a_standalone_fails_as_the_driver_says(mongo_standalone_url):
    async with mongo_database.emptied(mongo_standalone_url) as url:
        async with pymongo.AsyncMongoClient(url) as client, client.start_session() as session:
            with pytest.raises(OperationFailure, match="replica set"):
                async with await session.start_transaction():
                    await Outbox().add(session, Event("t"))


@pytest.mark.promise("W1")
async def test_autocommit_advice_names_the_way_without_transactions(bench):
    async with bench.client.start_session() as session:
        with pytest.raises(AutocommitError, match=r"without_transaction\(database\)"):
            await bench.add(session, Event("t"))
