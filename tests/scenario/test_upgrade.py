"""The upgrade of a database that an earlier version left, on every store: nothing is lost, old processes go on."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.errors import SchemaError
from postroom.inbox import Inbox
from postroom.lookup import Filter
from postroom.outbox import Outbox
from postroom.testing.transaction_tools import Note
from tests.released.load import TABLES, VERSIONS, loaded
from tests.released.make import as_json, event
from tests.scenario.place import QUICK, ids, until

KINDS = ("sqlite", "postgres", "mysql", "mongo")
DELIVERABLE = {
    "strict-3", "head", "follower-1", "follower-2", "processing", "pending-1", "bytes", "ž-1", "pending-2",
}  # fmt: skip


@pytest.fixture(params=[(v, kind) for v in VERSIONS for kind in KINDS], ids="-".join)
async def old(request):
    """A database of an earlier version, with data."""
    async with loaded(request, *request.param) as old:
        yield old


@asynccontextmanager
async def opened(old):
    store = old.store()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def add(store, *events, strict=False):
    async with store.transaction() as tx:
        await Outbox(ordering="strict" if strict else "keyed").add_many(tx, events)


def everything(old):
    return {table: old.rows(table) for table in TABLES}


def of_key(seen, *names):
    return [name for name in seen if name in names]


async def delivered(old, expected):
    """Run a relay of this version until all of these have arrived; returns the ids in order."""
    broker = MemoryBroker()
    async with Relay(old.store(), broker, **QUICK):
        await until(lambda: set(ids(broker)) >= expected)
    assert set(ids(broker)) == expected
    return ids(broker)


async def test_everything_is_still_there_after_the_upgrade(old):
    before = everything(old)
    assert {row["state" if "state" in row else "status"] for row in before["outbox"]} == {
        "pending", "processing", "failed", "done", "dead",
    }  # fmt: skip
    assert {row["stage"] for row in before["outbox"]} == {"ready", "waiting", "parked", "over"}
    assert all(before.values())  # the dump has rows in every table
    newest = await old.store().migrate()
    after = everything(old)
    versions = [rows["meta"].pop() for rows in (before, after)]
    assert [int(row["value"]) for row in versions] == [int(versions[0]["value"]), newest]
    for table in TABLES:
        assert len(after[table]) == len(before[table])
        for was, now in zip(before[table], after[table], strict=True):
            assert {name: now[name] for name in was} == was
            assert {value for name, value in now.items() if name not in was} <= {None}
    async with opened(old) as store:
        found = [as_json(record) for record in await store.find(Filter(limit=100))]
        for was, now in zip(old.records, found, strict=True):
            assert {name: now[name] for name in was} == was
            assert {value for name, value in now.items() if name not in was} <= {None}
        assert {entry.who for entry in await store.audit_log(10)} == {"ops"}
        async with store.transaction() as tx:
            assert await Inbox("payments").accept(tx, Note("m-1")) is False
            assert await Inbox("payments").accept(tx, Note("m-2")) is True
    assert await old.store().migrate() == newest


async def test_a_relay_of_this_version_delivers_what_is_left_in_order(old):
    await old.store().migrate()
    async with opened(old) as store:
        await add(store, event("strict-4", "s"), strict=True)
        assert [(await store.get(f"strict-{n}")).kseq for n in (1, 2, 3, 4)] == [1, 2, 3, 4]
        seen = await delivered(old, DELIVERABLE | {"strict-4"})
        assert of_key(seen, "strict-3", "strict-4") == ["strict-3", "strict-4"]
        blocked = ["head", "follower-1", "follower-2"]
        assert of_key(seen, *blocked) == blocked
        assert of_key(seen, "pending-1", "pending-2") == ["pending-1", "pending-2"]
        states = {record.id: record.state for record in await store.find(Filter(limit=100))}
        assert [name for name, state in states.items() if state != "done"] == [
            "dead", "scheduled", "by-hand",
        ]  # fmt: skip
        assert old.rows("block") == []
        assert await store.replay(["dead"]) == 1
        assert await delivered(old, {"dead"}) == ["dead"]


async def test_writers_and_relays_of_the_old_version_go_on_beside_new_ones(old):
    await old.store().migrate()
    old.old_writer(event("old-writer", "k"))
    assert old.old_relay(done="pending-1", failed="ž-1") >= {"pending-1", "ž-1", "old-writer"}
    async with opened(old) as store:
        assert (await store.get("pending-1")).state == "done"
        failed = await store.get("ž-1")
        assert (failed.state, failed.attempts, failed.last_error) == (
            "failed", 1, "from an old relay",
        )  # fmt: skip
        await add(store, event("new-writer", "k"))
        await store.leave("main", "anna")  # the old relay stops
    seen = await delivered(old, DELIVERABLE - {"pending-1"} | {"old-writer", "new-writer"})
    assert of_key(seen, "old-writer", "new-writer", "pending-2") == [
        "pending-2", "old-writer", "new-writer",
    ]  # fmt: skip


async def test_a_relay_of_this_version_does_not_start_before_the_upgrade(old):
    found = await old.store().schema()
    assert found.current < found.newest
    told = (
        f"have version {found.current}; version {found.newest} is required.*; run: postroom migrate"
    )
    with pytest.raises(SchemaError, match=told):
        await old.store().open()
    with pytest.raises(SchemaError, match=told):
        async with Relay(old.store(), MemoryBroker(), **QUICK):
            pass
