"""Documents that people have edited: one that cannot be read costs one event (G7, S1.9)."""

from __future__ import annotations

import json
from importlib.resources import files

import bson
import pytest
from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo.errors import WriteError

from postroom.brokers.memory import MemoryBroker
from postroom.errors import NotFoundError
from postroom.event import Event
from postroom.lookup import Filter
from postroom.observer import Attempt
from postroom.retry import Constant, RetryPolicy
from postroom.stores.mongo.checks import examine
from tests.scenario.mongo_place import MongoPlace, StandalonePlace
from tests.scenario.place import ids, until

HARMS = {
    **{
        f"no-{field}": [{"$unset": field}]
        for field in (
            "aggregate_id", "aggregate_type", "attempts", "available_at", "causation_path",
            "content_type", "correlation_id", "created_at", "ct", "event_type", "headers", "key",
            "key_hash", "kseq", "last_error", "lease_owner", "lease_until", "n", "next_attempt_at",
            "occurred_at", "occurred_us", "payload", "schema_version", "settled_at", "size", "topic",
        )
    },
    "topic-17": {"$set": {"topic": 17}},
    "topic-object": {"$set": {"topic": {"$or": 1}}},
    "key_hash-object": {"$set": {"key_hash": {"a": 1}}},
    "headers-object": {"$set": {"headers": {"a": 1}}},
    "attempts-true": {"$set": {"attempts": True}},
    "created_at-text": {"$set": {"created_at": "yesterday"}},
    "lane-double": [{"$set": {"lane": {"$toDouble": "$lane"}}}],
    "n-double": [{"$set": {"n": {"$toDouble": "$n"}}}],
    "size-text": {"$set": {"size": "1"}},
    "payload-list": {"$set": {"payload": [1]}},
}  # fmt: skip

WRITTEN_BY_A_BURIAL = (
    "attempts", "last_error", "lease_owner", "lease_until", "next_attempt_at", "settled_at",
)  # fmt: skip


@pytest.fixture(params=["replica-set", "standalone"])
async def place(request):
    name = "mongo_url" if request.param == "replica-set" else "mongo_standalone_url"
    kind = MongoPlace if request.param == "replica-set" else StandalonePlace
    made = kind(request.getfixturevalue(name))
    await made.open()
    yield made
    await made.close()


def fields_of_the_validator():
    file = files("postroom.stores.mongo") / "migrations" / "0001_postroom.json"
    return [name for name in json.loads(file.read_text())[0]["validator"] if name[0] not in "$_"]


# T-B3
@pytest.mark.req("S1.9")
async def test_no_field_of_an_event_can_be_taken_away(place):
    await place.write_quietly(Event("t", id="e"))
    outbox = place.database["postroom_outbox"]
    there = set(await outbox.find_one()) - {"_id", "awaits", "stage", "status"}
    assert set(fields_of_the_validator()) == there
    for field in sorted(there):
        with pytest.raises(WriteError, match="validation"):
            await outbox.update_one({}, {"$unset": {field: 1}})


# T-B3
@pytest.mark.req("S1.9")
@pytest.mark.promise("G7", "G4", "F1")
async def test_a_document_that_cannot_be_read_becomes_a_dead_letter_and_costs_nobody(place, notes):
    broker, outbox = MemoryBroker(), place.database["postroom_outbox"]
    for harm in HARMS:
        await place.write_quietly(
            *(Event("t", id=f"{harm}:{n}", key=harm) for n in ("before", "odd", "after"))
        )
    for harm, change in HARMS.items():
        odd = {"_id": f"{harm}:odd"}
        await outbox.update_one(odd, change, bypass_document_validation=True)
    fine = [f"{harm}:{n}" for harm in HARMS for n in ("before", "after")]
    async with place.relay(broker, observers=[notes]):
        await until(lambda: len(broker.messages) == len(fine))
    assert sorted(ids(broker)) == sorted(fine)
    for harm in HARMS:
        assert ids(broker).index(f"{harm}:before") < ids(broker).index(f"{harm}:after")
    dead = {record.id: record for record in await place.store.find(Filter(state="dead"))}
    assert set(dead) == {f"{harm}:odd" for harm in HARMS}
    for harm in HARMS:
        record = dead[f"{harm}:odd"]
        assert f"{harm.split('-')[-2 if 'no-' not in harm else -1]} is" in record.last_error
    assert {a.id for a in notes.of(Attempt)} == set(dead)
    await look_at_everything(place, dead)


async def look_at_everything(place, dead):
    """What people do with dead letters does not fail because of them."""
    assert len(await place.store.find(Filter(limit=1_000))) >= len(dead)
    assert sum(cause.how_many for cause in await place.store.dead_causes()) == len(dead)
    stats = await place.store.stats()
    assert stats.counts["dead"] == len(dead)
    for name in dead:
        assert (await place.store.get(name)).id == name
        assert (await place.store.details(name)).stage == "over"
    assert any("cannot be read" in finding.what for finding in await examine(place.store))
    whole = [f"no-{name}:odd" for name in WRITTEN_BY_A_BURIAL] + ["attempts-true:odd"]
    assert await place.store.replay(list(dead), new_id=True) == len(whole)
    assert await place.store.replay(list(dead)) == len(dead)
    with pytest.raises(NotFoundError, match="topic is missing"):
        await place.store.skip("no-topic:odd", "why")
    assert (await place.store.stats()).counts["dead"] < len(dead)
    assert await place.store.bury(list(dead), "no use") == len(dead)


# T-B3
@pytest.mark.req("S1.9")
async def test_a_document_that_was_corrected_is_sent_when_it_is_replayed(place):
    broker, outbox = MemoryBroker(), place.database["postroom_outbox"]
    await place.write_quietly(Event("t", id="e", topic="mail"))
    await outbox.update_one({}, {"$set": {"topic": 17}}, bypass_document_validation=True)

    async def is_dead():
        return (await place.store.stats()).counts["dead"] == 1

    async with place.relay(broker):
        await until(is_dead)
        await place.store.replay(["e"])
        await until(is_dead)  # as long as it is not corrected
        await outbox.update_one({}, {"$set": {"topic": "mail"}})
        await place.store.replay(["e"])
        await until(lambda: ids(broker) == ["e"])


# T-B3
@pytest.mark.promise("G7", "B6")
async def test_what_must_not_be_left_out_blocks_its_key_and_says_so(place, notes):
    """With `on_exhausted="block"`, as for strict topics, its key waits for a person."""
    broker, outbox = MemoryBroker(), place.database["postroom_outbox"]
    await place.write_quietly(*(Event("t", id=f"e{n}", key="k") for n in (1, 2, 3)))
    await place.write_quietly(Event("t", id="other", key="other"))
    odd = {"_id": "e2"}
    await outbox.update_one(odd, {"$unset": {"headers": 1}}, bypass_document_validation=True)
    policy = RetryPolicy(backoff=Constant(0.01), on_exhausted="block")
    async with place.relay(broker, retry=policy, observers=[notes]):
        await until(lambda: sorted(ids(broker)) == ["e1", "other"])
        await until(lambda: len(notes.of(Attempt)) > 2)
        assert sorted(ids(broker)) == ["e1", "other"]
        await outbox.update_one(odd, {"$set": {"headers": None}})
        await until(lambda: len(broker.messages) == 4)
    assert [name for name in ids(broker) if name != "other"] == ["e1", "e2", "e3"]


# T-B3
@pytest.mark.promise("G7")
async def test_ids_that_are_no_text_and_text_that_is_no_utf8(place):
    broker, outbox = MemoryBroker(), place.database["postroom_outbox"]
    await place.write_quietly(Event("t", id="pattern", topic="XXXX", key="k"))
    fresh = await outbox.find_one()
    await outbox.delete_one({})
    pattern = bson.encode({**fresh, "_id": "not utf-8"})
    raw = place.client.get_default_database(
        codec_options=bson.codec_options.CodecOptions(document_class=RawBSONDocument)
    )["postroom_outbox"]
    await raw.insert_one(RawBSONDocument(pattern.replace(b"XXXX", b"\xff\xfe\xff\xfe")))
    for name in (ObjectId(), {"an": "object"}, 5):
        odd = {**fresh, "_id": name, "n": bson.Int64(fresh["n"] + 1)}
        await outbox.insert_one(odd, bypass_document_validation=True)
    placeless = {**fresh, "_id": 7, "ct": None, "n": None}
    await outbox.insert_one(placeless, bypass_document_validation=True)
    await place.write_quietly(Event("t", id="fine", key="k"))

    async def all_are_dead():
        return await outbox.count_documents({"status": "dead"}) == 5

    async with place.relay(broker):
        await until(lambda: ids(broker) == ["fine"])
        await until(all_are_dead)
    assert len(await place.store.find(Filter(state="dead"))) == 5
    assert len(await place.store.dead_causes()) >= 2


# T-B6
@pytest.mark.promise("L1")
async def test_leases_that_were_deleted_are_made_anew(place):
    broker = MemoryBroker()
    await place.write_quietly(*(Event("t", id=f"a{n}", key=f"k{n}") for n in range(10)))
    relay = place.relay(broker, lease_seconds=1.0)
    async with relay:
        await until(lambda: len(broker.messages) == 10)
        await place.database["postroom_lease"].delete_many({"lane": {"$lt": 50}})
        await place.write_quietly(*(Event("t", id=f"b{n}", key=f"k{n}") for n in range(10)))
        await until(lambda: len(set(ids(broker))) == 20)
        await until(lambda: relay.vitals.lanes == 64)
        assert await place.database["postroom_lease"].count_documents({}) == 64
