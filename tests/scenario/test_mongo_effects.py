"""Handlers that write by a natural key: a handler that runs twice leaves one result (S2.5)."""

from __future__ import annotations

import asyncio
import uuid

import pymongo
import pytest

from postroom import Event, Handlers, Outbox, Relay
from postroom.stores.mongo import MongoStore, upsert, upsert_sync
from postroom.transactions.mongo import without_transaction
from tests.contract.mongo_database import url_of
from tests.scenario.place import QUICK


@pytest.fixture(params=["mongo_standalone_url", "mongo_url"])
async def database(request):
    url = url_of(request.getfixturevalue(request.param), f"effects_{uuid.uuid4().hex[:12]}")
    await MongoStore(url).migrate()
    async with pymongo.AsyncMongoClient(url) as client:
        made = client.get_default_database()
        made.url = url
        await made.create_collection("rendered")
        yield made
        await client.drop_database(made.name)


async def found(database):
    return [page async for page in database["rendered"].find().sort("_id")]


@pytest.mark.req("S2.5")
@pytest.mark.promise("G6")
async def test_a_handler_that_runs_twice_leaves_one_result(database):
    """It dies after its first write; without transactions that write stands, and comes again."""
    handlers = Handlers()
    runs = []

    @handlers.on("page.saved")
    async def render(event, tx):
        runs.append(event.id)
        rendered = database["rendered"]
        if hasattr(tx, "client"):  # a session: its own client's collections
            rendered = tx.client[database.name]["rendered"]
        html = f"<p>{event.data['text']}</p>"
        await upsert(rendered, event.id, {"html": html, "$odd.name": "$x"}, tx=tx)
        if len(runs) == 1:
            raise ZeroDivisionError

    bare = without_transaction(database)
    await Outbox().add(bare, Event("page.saved", {"text": "hello"}, id="page:1", key="page"))
    async with asyncio.timeout(30):
        while len(runs) < 2:
            await Relay(database.url, handlers, **QUICK).drain()
    assert runs == ["page:1", "page:1"]
    assert await found(database) == [{"_id": "page:1", "html": "<p>hello</p>", "$odd.name": "$x"}]


@pytest.mark.req("S2.5")
async def test_only_a_newer_version_is_written_over_a_result(database):
    rendered = database["rendered"]
    assert await upsert(rendered, "page", {"text": "two"}, version=2) is True
    assert await upsert(rendered, "page", {"text": "one"}, version=1) is False
    assert await upsert(rendered, "page", {"text": "again"}, version=2) is False
    assert await upsert(rendered, "page", {"title": "T"}, version=3) is True
    assert await found(database) == [{"_id": "page", "text": "two", "title": "T", "version": 3}]


@pytest.mark.req("S2.5")
async def test_many_at_once_leave_one_result(database):
    rendered = database["rendered"]
    async with asyncio.timeout(30):
        results = await asyncio.gather(
            *(upsert(rendered, "page", {"n": n}, version=n) for n in range(1, 31))
        )
    assert await found(database) == [{"_id": "page", "n": 30, "version": 30}]
    assert results[-1] is True


def write_twice(url):
    with pymongo.MongoClient(url) as client:
        rendered = client.get_default_database()["rendered"]
        return [upsert_sync(rendered, {"page": 1}, {"html": html}) for html in ("a", "b")]


@pytest.mark.req("S2.5")
async def test_the_same_in_a_thread(database):
    assert await asyncio.to_thread(write_twice, database.url) == [True, True]
    assert await found(database) == [{"_id": {"page": 1}, "html": "b"}]
