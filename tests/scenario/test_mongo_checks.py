"""What a doctor says of a MongoDB."""

from __future__ import annotations

import uuid

import pymongo
import pytest

from postroom.stores.mongo import MongoStore
from postroom.stores.mongo.checks import check_clock, check_kind, check_version, examine
from tests.contract.mongo_database import url_of


async def told(server, *, drop=(), embedded=()):
    """The findings about an outbox, by level and first words."""
    url = url_of(server, f"checks_{uuid.uuid4().hex[:12]}")
    store = MongoStore(url, embedded=embedded)
    await store.migrate()
    await store.open()
    async with pymongo.AsyncMongoClient(url) as client:
        database = client.get_default_database()
        for collection, index in drop:
            await database[collection].drop_index(index)
        findings = await examine(store)
        await store.close()
        await client.drop_database(database.name)
    return [(finding.level, finding.what) for finding in findings]


async def test_a_replica_set_of_three_has_nothing_to_tell(mongo_cluster_url):
    assert await told(mongo_cluster_url) == []


async def test_one_member_is_no_fail_over(mongo_url):
    assert await told(mongo_url) == [("info", "the replica set has one member")]


@pytest.mark.req("S2.6")
@pytest.mark.promise("G5")
async def test_a_standalone_is_told_which_promises_do_not_hold(mongo_standalone_url):
    assert await told(mongo_standalone_url) == [
        ("warning", "this outbox runs without transactions")
    ]
    (finding,) = check_kind({}, transactions=False)
    assert "G5 does not hold" in finding.why


@pytest.mark.req("S2.2")
async def test_a_missing_index_is_seen(mongo_cluster_url):
    drop = [("postroom_outbox", "work"), ("pages", "postroom_events")]
    assert await told(mongo_cluster_url, drop=drop, embedded=["pages"]) == [
        ("error", "the index 'work' on postroom_outbox is missing or different"),
        ("error", "the index 'postroom_events' on pages is missing or different"),
    ]


def test_an_old_server_and_another_clock():
    assert [f.what for f in check_version({"version": "4.4.1", "versionArray": [4, 4, 1, 0]})] == [
        "MongoDB 4.4.1 is too old"
    ]
    assert list(check_version({"version": "8.0", "versionArray": [8, 0, 0, 0]})) == []
    assert list(check_clock(1_000_000, 1_900_000)) == []
    (finding,) = check_clock(5_000_000, 1_000_000)
    assert finding.what == "the clocks of this host and the server differ by 4.0 s"
