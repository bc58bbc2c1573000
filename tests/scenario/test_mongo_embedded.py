"""Events inside of the documents that they are about: collected, in order, whoever dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from datetime import UTC, datetime, timedelta

import pymongo
import pytest

from postroom import DuplicateEventError, Event, PayloadError, Relay, SchemaError
from postroom.brokers.memory import MemoryBroker
from postroom.stores.mongo import EmbeddedOutbox, MongoStore
from tests.contract.mongo_database import url_of
from tests.scenario.mongo_dying import die_at
from tests.scenario.mongo_harm import (
    FAST,
    PATIENCE,
    freeze_primary,
    kill_primary,
    make_whole,
    step_down,
)
from tests.scenario.place import QUICK, ids, until

LONG_AGO = datetime.fromtimestamp(0, UTC)
outbox = EmbeddedOutbox(routes={"page.*": "pages"})


@pytest.fixture(params=["mongo_url", "mongo_standalone_url"])
async def scene(request):
    """A database with pages: the URL of its store, and a client."""
    url = url_of(request.getfixturevalue(request.param), f"embed_{uuid.uuid4().hex[:12]}")
    url += ("&" if "?" in url else "?") + "embedded=pages"
    async with scene_at(url) as made:
        yield made


class scene_at:  # noqa: N801 - it reads as a function
    def __init__(self, url):
        self.url = url

    async def __aenter__(self):
        self.client = pymongo.AsyncMongoClient(self.url.partition("embedded")[0][:-1])
        self.database = self.client.get_default_database()
        self.pages = self.database["pages"]
        store = MongoStore(self.url)
        await store.migrate()
        await store.close()
        self.broker = MemoryBroker()
        return self

    async def __aexit__(self, *_):
        await self.client.drop_database(self.database.name)
        await self.client.close()

    async def save(self, page, *events, **fields):
        await self.pages.update_one(
            {"_id": page}, {"$set": fields, "$push": outbox.push(*events)}, upsert=True
        )

    async def drain(self, **settings):
        relay = Relay(MongoStore(self.url), self.broker, **{**QUICK, **settings})
        return await relay.drain()

    async def left(self):
        """Page → the embedded events that nobody has collected."""
        found = self.pages.find({f"{outbox.field}.0": {"$exists": True}})
        return {page["_id"]: page[outbox.field] async for page in found}


def saved(page, revision):
    name = f"{page}:{revision}"
    return Event("page.saved", {"revision": revision}, id=name, key=page)


@pytest.mark.req("S2.6")
@pytest.mark.promise("G1", "G2", "G4")
async def test_embedded_events_are_collected_in_the_order_of_the_document(scene):
    for revision in range(1, 6):
        for page in ("a", "b"):
            await scene.save(page, saved(page, revision), revision=revision)
    await scene.save("c", saved("c", 1), saved("c", 2))
    await scene.pages.insert_one({"_id": "d", **outbox.fields(saved("d", 1))})
    counts = await scene.drain()
    assert counts.done == 13
    by_page = {}
    for message in scene.broker.messages:
        by_page.setdefault(message.record.key, []).append(message.record.data["revision"])
    assert by_page == {"a": [1, 2, 3, 4, 5], "b": [1, 2, 3, 4, 5], "c": [1, 2], "d": [1]}
    assert {message.record.topic for message in scene.broker.messages} == {"pages"}
    assert await scene.left() == {}
    assert (await scene.pages.find_one({"_id": "a"}))["revision"] == 5
    assert (await scene.drain()).done == 0


@pytest.mark.promise("G1")
async def test_an_update_that_changes_nothing_leaves_no_event(scene):
    await scene.save("a", saved("a", 1), revision=1)
    stale = await scene.pages.update_one(
        {"_id": "a", "revision": 7}, {"$set": {"revision": 8}, "$push": outbox.push(saved("a", 8))}
    )
    assert stale.matched_count == 0
    with pytest.raises(PayloadError):
        outbox.push(Event("page.saved", float("nan")))
    with pytest.raises(DuplicateEventError):
        outbox.push(saved("a", 2), saved("a", 2))
    await scene.drain()
    assert ids(scene.broker) == ["a:1"]


async def test_a_running_relay_finds_them(scene):
    async with Relay(MongoStore(scene.url), scene.broker, **QUICK):
        await scene.save("a", saved("a", 1))
        await until(lambda: ids(scene.broker) == ["a:1"])
        await scene.save("a", saved("a", 2))
        await until(lambda: ids(scene.broker) == ["a:1", "a:2"])


@pytest.mark.promise("G3")
async def test_an_event_that_is_in_the_outbox_is_not_sent_twice(scene):
    await scene.save("a", saved("a", 1))
    await scene.drain()
    await scene.save("a", saved("a", 1), saved("a", 2))
    await scene.drain()
    assert ids(scene.broker) == ["a:1", "a:2"]


async def test_whatever_a_payload_holds_arrives_as_it_was(scene):
    payload = {"$set": {"a.b": 1}, "x.y": "$$NOW", "": {"$literal": "$x"}, "n": None}
    await scene.save("a", Event("page.saved", payload, id="json", key="a"))
    raw = Event("page.saved", b"\x00\xff$", id="bytes", key="a", headers={"$h.x": "1"})
    await scene.save("a", raw)
    await scene.drain()
    json, raw = (message.record for message in scene.broker.messages)
    assert json.data == payload
    assert raw.payload == b"\x00\xff$"
    assert raw.headers == {"$h.x": "1"}


@pytest.mark.promise("G7")
async def test_what_is_no_event_is_set_aside_and_buries_no_neighbour(scene, caplog):
    await scene.save("a", saved("a", 1))
    await scene.pages.update_one(
        {"_id": "a"}, {"$push": {outbox.field: {"$each": [{"id": "by hand"}, {"id": "", "x": 1}]}}}
    )
    (odd,) = outbox.fields(saved("a", 9))[outbox.field]
    await scene.pages.update_one({"_id": "a"}, {"$push": {outbox.field: {**odd, "ct": 7}}})
    await scene.save("a", saved("a", 2))
    await scene.pages.insert_one({"_id": "b", outbox.field: {"id": "not in a list"}})
    await scene.save("c", saved("c", 1))
    with caplog.at_level(logging.ERROR):
        await scene.drain()
    assert sorted(ids(scene.broker)) == ["a:1", "a:2", "c:1"]
    page = await scene.pages.find_one({"_id": "a"})
    assert page[outbox.field] == []
    *refused, placed = page[f"{outbox.field}_refused"]
    assert refused == [{"id": "by hand"}, {"id": "", "x": 1}]
    assert (placed["id"], placed["ct"]) == ("a:9", 7)
    assert "not created by EmbeddedOutbox" in caplog.text


@pytest.mark.promise("G1", "G2")
async def test_a_document_near_its_limit_refuses_the_event_with_the_change_and_goes_on(scene):
    big = Event("page.saved", "x" * 800_000, id="big-0", key="a")
    await scene.save("a", big, text="y" * 13_000_000)
    refused = 0
    for number in range(1, 6):
        event = Event("page.saved", "x" * 800_000, id=f"big-{number}", key="a")
        try:
            await scene.save("a", event, revision=number)
        except pymongo.errors.WriteError:
            refused += 1
    page = await scene.pages.find_one({"_id": "a"})
    assert (page["revision"], refused) == (3, 2)
    await scene.drain()
    assert ids(scene.broker) == ["big-0", "big-1", "big-2", "big-3"]
    assert await scene.left() == {}


async def test_a_document_is_deleted_only_when_its_events_are_out(scene):
    await scene.save("a", saved("a", 1))
    assert (await scene.pages.delete_one({"_id": "a", **outbox.empty})).deleted_count == 0
    await scene.drain()
    assert (await scene.pages.delete_one({"_id": "a", **outbox.empty})).deleted_count == 1


async def test_a_collection_without_its_index_is_refused_with_advice(scene):
    await scene.pages.drop_indexes()
    store = MongoStore(scene.url)
    with pytest.raises(SchemaError, match=r"'pages' has no index.*postroom migrate up"):
        await store.open()
    await store.close()
    assert '"createIndexes": "pages"' in store.migration_sql(after=1)


async def test_documents_without_events_are_not_looked_at(scene):
    await scene.pages.insert_many([{"n": n, outbox.field: []} for n in range(300)])
    await scene.pages.insert_many([{"n": n} for n in range(300)])
    await scene.save("a", saved("a", 1))
    where = {outbox.field: {"$type": "array"}, f"{outbox.field}.id": {"$gt": ""}}
    plan = await scene.database.command(
        {"explain": {"find": "pages", "filter": where}, "verbosity": "executionStats"}
    )
    stats = plan["executionStats"]
    assert (stats["totalDocsExamined"], stats["totalKeysExamined"]) == (1, 1)


# -- several at once, and deaths ------------------------------------------------------------------
@pytest.mark.promise("G3", "G4")
async def test_two_relays_and_busy_writers_repeat_nothing(scene):
    """Also where done events are deleted at once, so that nothing remembers them."""
    quick = {**QUICK, "keep_done_seconds": 0}
    relays = [Relay(MongoStore(scene.url), scene.broker, **quick) for _ in range(2)]
    async with relays[0], relays[1]:

        async def write(page):
            for revision in range(1, 31):
                await scene.save(page, saved(page, revision))

        await asyncio.gather(*(write(page) for page in "abcd"))
        await until(lambda: len(set(ids(scene.broker))) == 120, 40)
        await until(lambda: not any(relay._context.busy_lanes() for relay in relays))
    assert len(ids(scene.broker)) == 120
    for page in "abcd":
        mine = [i for i in ids(scene.broker) if i.startswith(page)]
        assert mine == [f"{page}:{revision}" for revision in range(1, 31)]


@pytest.mark.promise("G4")
async def test_whoever_copies_an_event_gives_it_the_same_place(scene):
    """Two collectors that both believe to have the lease: each writes what the other writes."""
    stores = [MongoStore(scene.url) for _ in range(2)]
    for store in stores:
        await store.open()
    one, two = (store._collector for store in stores)
    pages = one._collections[0]
    for revision in (1, 2):
        await scene.save("a", saved("a", revision))
    await one._place(pages, ["a"])
    first = await one._look(pages)
    await scene.save("a", saved("a", 3))
    await two._place(pages, ["a"])
    second = await two._look(pages)
    await two._copy([second[0]._replace(placed=second[0].placed[1:])])
    await one._copy(first)
    for store in stores:
        await store.close()
    await scene.drain()
    assert ids(scene.broker) == ["a:1", "a:2", "a:3"]


@pytest.mark.promise("G3")
async def test_what_was_seen_before_the_lease_does_not_count(scene):
    """Another one collects the event while this one waits; it is sent, done and deleted."""
    store = MongoStore(scene.url)
    await store.open()
    slow = store._collector
    await scene.save("a", saved("a", 1))
    await slow._place(slow._collections[0], ["a"])
    begin, drained = slow._begin, []

    async def begin_late():
        if not drained:
            drained.append(await scene.drain(keep_done_seconds=0))
        return await begin()

    slow._begin = begin_late
    assert await slow.collect() == (0, False)
    await store.close()
    await scene.drain()
    assert ids(scene.broker) == ["a:1"]


async def collect(url, listener):
    """What a process does that dies in the middle of it."""
    store = MongoStore(url)
    store._address.options["event_listeners"] = [listener]
    await store.open()
    listener.armed = True
    await store._collector.collect()
    await store.close()


@pytest.mark.slow
@pytest.mark.req("S2.6")
@pytest.mark.promise("G1", "G2", "G3", "G4")
async def test_a_collector_that_is_killed_at_any_step_loses_and_repeats_nothing(scene):
    expected = []
    for number in range(1, 20):
        for revision in (2 * number - 1, 2 * number):
            await scene.save("a", saved("a", revision), revision=revision)
            expected.append(f"a:{revision}")
        died = await die_at(number, scene.url, collect)
        await scene.database["postroom_meta"].update_one(  # its lease has run out
            {"_id": "collector"}, {"$set": {"until": LONG_AGO}}
        )
        await scene.drain()
        assert ids(scene.broker) == expected
        assert await scene.left() == {}
        if not died:
            break
    else:
        pytest.fail("it died at every step: it never came to its end")
    assert number > 4


@pytest.mark.slow
@pytest.mark.promise("G4")
async def test_a_standalone_gives_no_places_in_the_second_of_its_start(own_server):
    """Its timestamps begin again: those of the same second before a kill would be later."""
    server = await asyncio.to_thread(own_server, "mongo_standalone")
    async with scene_at(f"{server.url}?embedded=pages") as scene:
        async with Relay(MongoStore(scene.url), scene.broker, **QUICK):
            for revision in range(1, 21):
                await scene.save("a", saved("a", revision))
            await until(lambda: "a:20" in ids(scene.broker))
        await asyncio.to_thread(server.restart)
        await scene.save("b", saved("b", 1))
        store = MongoStore(scene.url)
        await store.open()
        assert await store._collector.collect() == (1, False)
        await store.close()
        hello = await scene.client.admin.command("hello")
        started = hello["topologyVersion"]["processId"].generation_time
        placed = await scene.database["postroom_outbox"].find_one({"_id": "b:1"})
        assert placed["ct"].as_datetime() >= started + timedelta(seconds=1)
        async with Relay(MongoStore(scene.url), scene.broker, **QUICK):
            await scene.save("a", saved("a", 21))
            await until(lambda: "a:21" in ids(scene.broker))
    seen = [i for i in dict.fromkeys(ids(scene.broker)) if i.startswith("a")]
    assert seen == [f"a:{n}" for n in range(1, 22)]


# -- elections -----------------------------------------------------------------------------------
class Writer:
    """Saves one page over and over; an unknown outcome is looked up before the next try."""

    def __init__(self, pages, page):
        self.pages, self.page, self.revision = pages, page, 0

    async def save(self):
        event = saved(self.page, self.revision + 1)
        try:
            await self.pages.update_one(
                {"_id": self.page, "revision": self.revision},
                {"$set": {"revision": self.revision + 1}, "$push": outbox.push(event)},
            )
        except pymongo.errors.PyMongoError:
            await asyncio.sleep(0.02)
        with contextlib.suppress(pymongo.errors.PyMongoError):
            self.revision = (await self.pages.find_one({"_id": self.page}))["revision"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.req("S2.6", "S1.8")
@pytest.mark.promise("G1", "G2", "G4")
@pytest.mark.parametrize(
    "harms",
    [
        pytest.param([kill_primary], id="kill"),
        pytest.param(
            [step_down, freeze_primary], id="step down, freeze", marks=pytest.mark.nightly
        ),
    ],
)
async def test_embedded_events_go_on_over_elections(own_server, harms):
    cluster = await asyncio.to_thread(own_server, "mongo_cluster")
    url = f"{cluster.url}&{FAST}"
    broker = MemoryBroker()
    relay = {**QUICK, "lease_seconds": 4.0, "keep_done_seconds": 0}
    await MongoStore(url, embedded=["pages"]).migrate()
    async with pymongo.AsyncMongoClient(url, readConcernLevel="majority", w="majority") as client:
        pages = client.get_default_database()["pages"]
        await pages.insert_many([{"_id": page, "revision": 0} for page in "abc"])
        writers = [Writer(pages, page) for page in "abc"]
        stop = asyncio.Event()

        async def write(writer):
            while not stop.is_set():
                await writer.save()

        def written(number):
            return lambda: all(writer.revision >= number for writer in writers)

        stores = [MongoStore(url, embedded=["pages"]) for _ in range(2)]
        async with Relay(stores[0], broker, **relay), Relay(stores[1], broker, **relay):
            tasks = [asyncio.create_task(write(writer)) for writer in writers]
            for harm in harms:
                goal = max(writer.revision for writer in writers) + 10
                await until(written(goal), PATIENCE)
                await asyncio.to_thread(harm, cluster)
                await until(written(goal + 10), PATIENCE)
                await asyncio.to_thread(make_whole, cluster)
            stop.set()
            await asyncio.gather(*tasks)
            expected = {page["_id"]: page["revision"] async for page in pages.find()}
            await until(lambda: len(set(ids(broker))) == sum(expected.values()), PATIENCE)
    for page, revision in expected.items():
        seen = dict.fromkeys(i for i in ids(broker) if i.startswith(page))
        assert list(seen) == [f"{page}:{number}" for number in range(1, revision + 1)]
