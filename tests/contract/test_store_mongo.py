"""The MongoDB store keeps the contract of stores: on replica sets of one and three, and alone."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
from bson import Binary, DatetimeMS, Int64, Timestamp
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient
from pymongo.errors import WriteError

from postroom.outbox import Outbox
from postroom.store import Capabilities
from postroom.stores.mongo import MongoStore
from postroom.testing.store import StoreContract
from postroom.testing.store.strays import StrayContract
from postroom.testing.store.tools import Hand, event
from postroom.testing.store.unreadable_rows import FlawContract
from tests.contract import mongo_database

LONG_AGO, EVER = DatetimeMS(0), DatetimeMS(2**62)
DONE = {"status": "done", "processed_at": LONG_AGO}
HARMS = {
    "status-dead": {"$set": {"status": "dead"}},
    "awaits-text": {"$set": {"awaits": "long ago"}},
    "awaits-ever": {"$set": {"awaits": EVER}},
    "awaits-nothing": {"$set": {"awaits": 0}},
    "awaits-object": {"$set": {"awaits": {"$gt": ""}, "next_attempt_at": "soon"}},
    "awaits-dates": {"$set": {"awaits": [LONG_AGO, EVER]}},  # any of them matches
    "no-size": {"$unset": {"size": 1}},
    "stream-7": {"$set": {"stream": 7}},
    "stream-object": {"$set": {"stream": {"$or": 1}}},
    "stream-not-utf8": None,
}

# A list of what is valid, too: an index with one in it is slow for all others.
INDEXED = ("stream", "lane", "key_hash", "key", "ct", "n", "status", "stage", "awaits")


def member(owner, **more):
    fields = {"stream": "main", "owner": owner, "until": EVER, "length": Int64(1000), **more}
    return "member", {"_id": {"stream": "main", "owner": f"m{owner}"}}, {"$set": fields}


def lease(**fields):
    return lambda lane: ("lease", {"_id": {"stream": "main", "lane": lane}}, {"$set": fields})


def block(ident, **more):
    key = Binary(bytes([7]) * 16)
    fields = {"stream": "main", "lane": 7, "key_hash": key, "head": "none", **more}
    fields = {"ct": Timestamp(1, 1), "n": Int64(1), "since": LONG_AGO} | fields
    return "block", {"_id": ident}, {"$set": {k: v for k, v in fields.items() if v is not None}}


def note(ident, **more):
    return "inbox", {"_id": {"consumer": "payments", **ident}}, {"$set": DONE | more}


class MongoContract(StoreContract):
    odd_members = (
        member(7),
        member({"$gt": ""}, healthy="perhaps", name=7),
        member("m1", length="long"),
        member("m2", length=float("nan")),
        member("m3", length=Int64(2**63 - 1), until="soon"),
        member("m4", sessions=7, until=LONG_AGO),
        member("m5", sessions=[7, {"a": 1}, b"x"], until=DatetimeMS(-(2**62))),
        member("m6", length=Int64(-(2**63)), until=Timestamp(2**31, 1)),
        ("member", {"_id": 7}, {"$set": {"stream": "main", "until": EVER}}),
    )
    odd_leases = (
        lease(length="long"),
        lease(length=Int64(2**63 - 1), until=EVER, owner=None),
        lease(token="x"),
        lease(token=1.5, owner=17),
        lease(token=Int64(2**63 - 1), owner=None),
        lease(lane="x", settles="x"),
        lease(stream=7, until="soon"),
        lease(replayed_at="soon", owner={"$gt": ""}),
        lambda lane: ("lease", {"_id": lane}, {"$set": {"stream": "main", "lane": lane}}),
        lambda lane: ("lease", {"_id": {"stream": "main", "lane": lane}}, None),
    )
    odd_blocks = (
        block(7),
        block({"stream": "main", "key_hash": Binary(bytes([9]) * 16)}),
        block({"stream": "main"}, key_hash={"a": 1}),
        block({"stream": "main", "key_hash": Binary(bytes([7]) * 16)}, head=None, ct="x"),
        block("no key", key_hash=None),
    )
    odd_done = {"status-dead": False, "awaits-text": False, "awaits-ever": False, "no-size": True}
    odd_streams = ("stream-7", "stream-object", "stream-not-utf8")
    odd_notes = (
        note({}),
        note({"id": 7}),
        note({"id": "odd", "more": 1}),
        note({"id": {"a": 1}}),
        note({"id": "never"}, processed_at="long ago"),
        note({"id": "XXXX"}, raw=True),
    )
    waiting = ("awaits-text", "awaits-ever", "awaits-nothing", "awaits-object", "awaits-dates")
    test_a_row_that_waits_for_no_time_holds_up_nobody = (
        FlawContract.test_a_row_that_waits_for_no_time_holds_up_nobody
    )
    refused = (
        member("m", until="soon"),
        member("m", length="long"),
        member(7),
        lease(length="long"),
        lease(token="x"),
        lease(settles="x"),
        lease(lane=64),
        block({"stream": "main", "key_hash": Binary(b"k")}, head=None),
        block({"stream": "main", "key_hash": Binary(b"k")}, key_hash="x"),
        ("outbox", {"_id": "e"}, {"$inc": {"size": 1}}),
        ("outbox", {"_id": "e"}, {"$set": {"payload": "x" * 100}}),
        *(("outbox", {"_id": "e"}, [{"$set": {name: [f"${name}"]}}]) for name in INDEXED),
    )
    refusals = (WriteError,)

    @pytest.fixture
    def raw(self, store):
        """The collections as bytes."""
        options = CodecOptions(document_class=RawBSONDocument)
        return store.connection.database.with_options(codec_options=options)

    @pytest.fixture
    def spoil(self, store, raw):
        async def spoil(event_id, harm):
            outbox = store.connection.outbox
            if HARMS[harm] is not None:
                which = {"_id": event_id}
                await outbox.update_one(which, HARMS[harm], bypass_document_validation=True)
                return
            await outbox.update_one({"_id": event_id}, {"$set": {"stream": "XXXX"}})
            await misspell(raw["postroom_outbox"], event_id)

        return spoil

    @pytest.fixture
    def meddle(self, store, raw):
        async def meddle(what):
            name, which, change = what
            collection = store.connection.database[f"postroom_{name}"]
            if change is None:
                await collection.delete_one(which)
                return
            passing = {"upsert": True, "bypass_document_validation": True}
            await collection.update_one(which, change, **passing)
            if change["$set"].get("raw"):
                await misspell(raw[collection.name], which["_id"])

        return meddle

    @pytest.fixture
    async def try_to(self, store, add):
        await add(event("e", "k"))
        await Hand(store).take()

        async def try_to(what):
            name, which, change = what
            collection = store.connection.database[f"postroom_{name}"]
            await collection.update_one(which, change, upsert=True)

        return try_to

    @pytest.fixture
    async def another(self, url):
        async with AsyncExitStack() as stack:

            async def another():
                store = MongoStore(url)
                await store.migrate()
                await store.open()
                stack.push_async_callback(store.close)
                return store

            yield another

    @pytest.fixture
    async def store(self, another):
        return await another()

    @pytest.fixture
    def set_back(self, store):
        async def set_back(seconds):
            later = [{"$set": {"until": {"$add": ["$until", round(seconds * 1_000)]}}}]
            db = store.connection
            for collection in (db.lease, db.member, db.database[db.name("operation")]):
                await collection.update_many({}, later)

        return set_back


async def misspell(collection, ident):
    """Put bytes that are not UTF-8 in the place of XXXX; MongoDB takes them."""
    found = await collection.find_one({"_id": ident})
    await collection.delete_one({"_id": ident})
    changed = RawBSONDocument(found.raw.replace(b"XXXX", b"\xff\xfe\xff\xfe"))
    await collection.insert_one(changed, bypass_document_validation=True)


class ReplicaSetContract(MongoContract):
    @pytest.fixture
    def write(self, url):
        return lambda store: mongo_database.in_transaction(url)

    @pytest.fixture
    def add(self, url):
        """Add as an application does: a conflict runs the callback again."""

        async def add(*events, strict=False):
            async def callback(session):
                await Outbox(ordering="strict" if strict else "keyed").add_many(session, events)

            async with AsyncMongoClient(url) as client, client.start_session() as session:
                await session.with_transaction(callback)

        return add


class TestReplicaSetOfOne(ReplicaSetContract, StrayContract):
    @pytest.fixture
    async def url(self, mongo_url):
        async with mongo_database.emptied(mongo_url) as url:
            yield url


@pytest.mark.nightly  # the same server as the set of one; test_mongo_faults has its elections
class TestReplicaSetOfThree(ReplicaSetContract):
    @pytest.fixture
    async def url(self, mongo_cluster_url):
        async with mongo_database.emptied(mongo_cluster_url) as url:
            yield url


class WithoutTransactions(MongoContract):
    capabilities = Capabilities(transactions=False, notify=False)

    @pytest.fixture
    def write(self):
        return lambda store: store.transaction()


class TestStandalone(WithoutTransactions, StrayContract):
    @pytest.fixture
    async def url(self, mongo_standalone_url):
        async with mongo_database.emptied(mongo_standalone_url) as url:
            yield url


@pytest.mark.nightly  # the same statements as on a standalone server
class TestWithoutTransactionsByChoice(WithoutTransactions):
    @pytest.fixture
    async def url(self, mongo_url):
        async with mongo_database.emptied(mongo_url) as url:
            yield f"{url}&transactions=false"
