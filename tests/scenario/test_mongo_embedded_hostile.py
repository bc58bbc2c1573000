"""Documents of strangers that carry events: one that cannot be served costs its own events only."""

from __future__ import annotations

import logging
import time

import bson
import pymongo
import pytest

from postroom import Event, Relay
from postroom.observer import Alarm
from postroom.stores.mongo import MongoStore
from postroom.stores.mongo.postponed import Postponed
from tests.scenario import test_mongo_embedded
from tests.scenario.place import QUICK, ids, until
from tests.scenario.test_mongo_embedded import outbox, saved

scene = test_mongo_embedded.scene  # the fixture

FULL = 16 * 1024 * 1024


async def fill(scene, page, *, spare):
    """Let a page grow until an update that adds more than this is refused."""
    (found,) = await (
        await scene.pages.aggregate(
            [{"$match": {"_id": page}}, {"$project": {"size": {"$bsonSize": "$$ROOT"}}}]
        )
    ).to_list()
    text = "x" * (FULL - found["size"] - len(bson.encode({"text": ""})) + 5 - spare)
    await scene.pages.update_one({"_id": page}, {"$set": {"text": text}})


# T-A2
@pytest.mark.promise("G2", "G4", "G7")
async def test_a_document_that_is_full_is_served_and_so_are_its_neighbours(scene):
    for n in range(20):
        await scene.save(f"p{n}", saved(f"p{n}", 1))
    await scene.save("full", *(saved("full", n) for n in range(96)))
    await fill(scene, "full", spare=10)
    with pytest.raises(pymongo.errors.WriteError):
        await scene.save("full", saved("full", 96))
    await scene.drain()
    assert sorted(ids(scene.broker)) == sorted(
        [f"p{n}:1" for n in range(20)] + [f"full:{n}" for n in range(96)]
    )
    of_full = [name for name in ids(scene.broker) if name.startswith("full")]
    assert of_full == [f"full:{n}" for n in range(96)]
    assert await scene.left() == {}


# X-H5, T-B4
@pytest.mark.promise("G7")
@pytest.mark.parametrize(
    "junk",
    [
        [{"$gt": ""}, {"id": "x"}],
        [{"$where": "1", "id": "x"}, {"$ref": "a", "$id": 1, "id": "y"}],
        [{"id": "x", "big": "y" * 6_000_000}],
        [{"id": "x"}, "text", 7, None, [{"id": "deep"}]],
    ],
    ids=["operator", "dollars", "6MB", "kinds"],
)
async def test_junk_of_any_kind_is_moved_beside_and_costs_nobody(scene, junk):
    await scene.save("a", saved("a", 1))
    await scene.pages.update_one({"_id": "a"}, {"$push": {outbox.field: {"$each": junk}}})
    await scene.save("a", saved("a", 2))
    for n in range(5):
        await scene.save(f"p{n}", saved(f"p{n}", 1))
    await scene.drain()
    assert sorted(ids(scene.broker)) == ["a:1", "a:2", *(f"p{n}:1" for n in range(5))]
    page = await scene.pages.find_one({"_id": "a"})
    there = bson.decode(bson.encode({"junk": junk}))["junk"]  # references are a class of their own
    assert (page[outbox.field], page[f"{outbox.field}_refused"]) == ([], there)


# T-A2, X-H5: the class. Whatever a document does, the others are served, and it has a pause.
@pytest.mark.promise("G7", "F1")
async def test_a_document_that_cannot_be_changed_is_set_aside_and_named(scene, caplog, notes):
    good = [f"p{n}" for n in range(120)]
    await scene.save({"bad": "x" * 500}, saved("bad", 1), kind="old")
    for page in good:
        await scene.save(page, saved(page, 1), kind="new")
    await scene.database.command({"collMod": "pages", "validator": {"kind": "new"}})
    store = MongoStore(scene.url)
    with caplog.at_level(logging.ERROR):
        async with Relay(store, scene.broker, observers=[notes], **QUICK):
            await until(lambda: len(scene.broker.messages) == len(good))
            await until(lambda: notes.of(Alarm))

            async def one_waits():
                stats = await store.stats()
                return stats.counts["pending"] == 1 and stats.lag_seconds > 0

            await until(one_waits)
            (alarm,) = notes.of(Alarm)
            assert "embedded events of pages {'bad': 'xxx" in alarm.about
            assert len(alarm.about) < 200
            assert "validation" in alarm.error
            assert store._collector.asides.times < 10  # not at every look
            await scene.database.command({"collMod": "pages", "validator": {}})
            await until(lambda: "bad:1" in ids(scene.broker))
    assert caplog.text.count("cannot be collected") == 1
    assert await scene.left() == {}
    assert (await scene.database["pages"].count_documents({})) == len(good) + 1


# T-B4
@pytest.mark.promise("G7")
async def test_collecting_never_raises(scene, monkeypatch, caplog):
    """Not even for what no driver should raise; and it says so once."""
    store = MongoStore(scene.url)
    await store.open()
    await scene.save("a", saved("a", 1))
    collector = store._collector

    async def breaks(*_):
        raise KeyError("odd")

    monkeypatch.setattr(collector, "_look", breaks)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert await collector.collect() == (0, False)
    assert caplog.text.count("KeyError") == 1
    monkeypatch.undo()
    assert (await collector.collect())[0] == 1
    await store.close()


async def test_a_collectors_lease_that_was_deleted_is_made_anew(scene):
    """T-B6, its sibling; and one that lies ahead, after a clock was set back."""
    store = MongoStore(scene.url)
    await store.open()
    await scene.save("a", saved("a", 1))
    assert (await store._collector.collect())[0] == 1
    await scene.database["postroom_meta"].delete_one({"_id": "collector"})
    await scene.save("a", saved("a", 2))
    moved = [(await store._collector.collect())[0] for _ in range(2)]
    assert sum(moved) == 1
    ahead = {"owner": "a stranger", "until": bson.DatetimeMS(int(time.time() * 1000) + 3_600_000)}
    await scene.database["postroom_meta"].update_one({"_id": "collector"}, {"$set": ahead})
    await scene.save("a", saved("a", 3))
    assert (await store._collector.collect())[0] == 1
    await store.close()


# T-A2
@pytest.mark.req("S2.7")
async def test_the_lag_knows_of_events_that_wait_in_their_documents(scene):
    store = MongoStore(scene.url)
    await store.open()
    assert (await store.stats()).lag_seconds == 0.0
    old = Event("page.saved", id="old", key="a", occurred_at=saved("a", 1).occurred_at)
    await scene.save("a", old, Event("page.saved", id="elsewhere", stream="other"))
    await scene.pages.update_one({"_id": "a"}, {"$push": {outbox.field: {"id": 7}}})
    both, main, other = [await store.stats(name) for name in (None, "main", "other")]
    assert [s.counts["pending"] for s in (both, main, other)] == [2, 1, 1]
    assert min(both.lag_seconds, main.lag_seconds, other.lag_seconds) > 0
    await store.close()


@pytest.mark.promise("F2")
def test_the_pause_of_a_document_grows():
    now = [0.0]
    asides = Postponed(lambda: now[0])
    tries = 0
    while now[0] < 3_600:
        if not len(asides) or asides.due("pages"):
            asides.put("pages", "a", ValueError("no"))
            tries += 1
        now[0] += 0.5
    assert tries < 25
    assert len(asides.complaints()) == 1
    assert asides.complaints() == []
    asides.collected("pages", "a")
    assert (len(asides), asides.of("pages")) == (0, [])
