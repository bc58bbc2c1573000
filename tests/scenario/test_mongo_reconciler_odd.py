"""A reconciler among odd documents, odd functions, and relays that use its store."""

from __future__ import annotations

import asyncio
import logging
import uuid
from datetime import UTC, datetime

import pytest

from postroom import Event, Relay
from postroom.brokers.memory import MemoryBroker
from postroom.errors import ConfigError
from postroom.integrations.asgi import lifespan, problems
from postroom.stores.mongo import FoundBy, Marked, MongoStore, Reconciler
from tests.scenario import test_mongo_reconciler
from tests.scenario.place import QUICK, ids, until
from tests.scenario.test_mongo_reconciler import Wiki, made_wiki

standalone = test_mongo_reconciler.standalone  # the fixture


def any_id(page):
    return Event("page.saved", id=f"page-{page['n']}", key=str(page["n"]))


# T-A3
@pytest.mark.req("S2.6")
@pytest.mark.parametrize("options", ["", "uuidRepresentation=standard"])
async def test_documents_are_found_again_whatever_their_id_holds(mongo_standalone_url, options):
    day = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    idents = ["text", 7, day, {"sensor": 1, "day": day}, {"a": None}]
    if options:
        idents.append(uuid.uuid4())
    async for wiki in made_wiki(mongo_standalone_url):
        url = f"{wiki.url}?{options}" if options else wiki.url
        client = Wiki(url)
        for n, ident in enumerate(idents):
            await client.pages.insert_one({"_id": ident, "n": n})
        reconciler = Reconciler(url, "pages", any_id, Marked("event"))
        first = await reconciler.run_once()
        assert sorted(first.repaired) == [f"page-{n}" for n in range(len(idents))]
        assert await client.pages.count_documents({"event": {"$gt": ""}}) == len(idents)
        await wiki.forget()
        again = await reconciler.run_once()
        assert (again.looked, again.repaired, again.failed) == (len(idents), [], [])
        await reconciler.close()
        await client.client.close()


# X-H5
@pytest.mark.promise("G7")
async def test_a_mark_may_hold_anything(standalone):
    marks = [{"$bad": 1}, {"$gt": ""}, {"$in": [1]}, ["$x"], None, "old"]
    for n, mark in enumerate(marks):
        await standalone.pages.insert_one({"_id": n, "n": n, "event": mark})
    reconciler = Reconciler(standalone.url, "pages", any_id, Marked("event"))
    standalone.open.append(reconciler)
    report = await reconciler.run_once()
    assert sorted(report.repaired) == [f"page-{n}" for n in range(len(marks))]
    assert [page["event"] async for page in standalone.pages.find()] == sorted(report.repaired)


# T-A3: the class
@pytest.mark.promise("G7")
async def test_what_the_database_refuses_costs_one_document(standalone):
    """The marks of these together are more than one command can hold."""
    for n in range(5):
        mark = "x" * 15_000_000 if n == 2 else None
        await standalone.pages.insert_one({"_id": n, "n": n, "event": mark})
    for n in (5, 6, 7):
        await standalone.pages.insert_one({"_id": n, "n": n, "event": "y" * 14_000_000})
    reconciler = Reconciler(standalone.url, "pages", any_id, Marked("event"))
    standalone.open.append(reconciler)
    report = await reconciler.run_once()
    assert (report.looked, report.finished) == (8, True)
    assert {"page-0", "page-1", "page-3", "page-4"} <= set(report.repaired)
    assert len(report.repaired) + len(report.failed) == 8


# T-A4
@pytest.mark.req("S2.6")
async def test_an_error_of_the_users_function_costs_one_run(standalone, caplog):
    await standalone.save("a")
    asked = []

    async def look(names):
        asked.append(names)
        if len(asked) < 4:
            raise ConnectionError("no route")
        return []

    reconciler = standalone.reconciler(FoundBy(look), every_seconds=0.01)

    async def repaired():
        return await standalone.event_ids() == ["a:1"]

    with caplog.at_level(logging.INFO):
        async with reconciler:
            await until(repaired)
            assert reconciler.is_running
            await until(lambda: "has recovered" in caplog.text)
    assert caplog.text.count("ConnectionError: no route") == 1


# T-A4
@pytest.mark.promise("F2")
async def test_the_pause_after_errors_grows(standalone, monkeypatch):
    reconciler = standalone.reconciler(every_seconds=300.0)
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 12:
            raise asyncio.CancelledError

    async def fails(*_):
        raise ValueError("no")

    monkeypatch.setattr(reconciler, "run_once", fails)
    monkeypatch.setattr("postroom.stores.mongo.reconciler.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await reconciler.loop()
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]


# T-A4
async def test_a_wrong_configuration_ends_it_and_is_seen(standalone, caplog):
    await standalone.save("a")
    names = iter(range(100))

    def unstable(page):
        return Event("page.saved", id=f"{page['_id']}:{next(names)}")

    reconciler = Reconciler(standalone.url, "pages", unstable, Marked("event"))
    told = []
    async with lifespan(reconciler, on_crash=lambda *about: told.append(about))(None):
        await until(lambda: told)
        assert told == [(reconciler, reconciler.error)]
        assert problems(reconciler) == ["Reconciler pages crashed; see the log of this process"]
        with pytest.raises(ConfigError):
            await reconciler.wait()
    assert caplog.text.count("the reconciler pages crashed and stops") == 1
    assert caplog.text.count("ConfigError: ") == 1
    assert "produced events with different ids" in caplog.text


# T-B5
@pytest.mark.promise("G7")
async def test_a_store_that_a_relay_uses_stays_open(standalone):
    store, broker = MongoStore(standalone.url), MemoryBroker()
    async with Relay(store, broker, **QUICK):
        async with Reconciler(store, "pages", any_id, Marked("event"), every_seconds=0.01):
            await standalone.pages.insert_one({"_id": 1, "n": 1})
            await until(lambda: ids(broker) == ["page-1"])
        await standalone.add(await standalone.save("later"))
        await until(lambda: ids(broker) == ["page-1", "later:1"])
    assert store._db is None
