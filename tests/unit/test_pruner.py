"""The pruner: dead letters of its own stream go by age, in bounded rounds; so do old operations."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from postroom.brokers import MemoryBroker
from postroom.engine.relay.pruner import Pruner
from postroom.engine.relay.relay import Relay
from postroom.errors import ConfigError, StoreError
from postroom.event import Event
from postroom.lookup import Filter
from postroom.operation import Change, NewOperation
from postroom.outbox import Outbox
from postroom.settings import ConsumerSettings, RelaySettings
from postroom.store import PrunedDead
from postroom.stores.memory import MemoryStore


async def store_with_dead(*names, stream="main"):
    store = MemoryStore()
    async with store.transaction() as tx:
        await Outbox().add_many(tx, [Event("t", id=name, stream=stream) for name in names])
    await store.bury(list(names), "poison")
    return store


def pruner_of(store, **settings):
    context = SimpleNamespace(store=store, settings=RelaySettings(**settings), stream="main")
    return Pruner(context)


class Calls:
    """A store that only counts calls; its dead letters are endless."""

    def __init__(self):
        self.asked = []

    async def prune_dead(self, stream, older_than_seconds, after_seq, limit):
        self.asked.append(after_seq)
        return PrunedDead(0, after_seq + limit)


async def test_a_round_is_bounded_and_the_next_one_goes_on():
    calls = Calls()
    pruner = pruner_of(calls)
    await pruner.prune_dead(60.0)
    await pruner.prune_dead(60.0)
    assert calls.asked == [n * 1_000 for n in range(20)]


async def test_a_walk_begins_again_after_its_end():
    store = await store_with_dead("a", "b")
    pruner = pruner_of(store)
    assert await pruner.prune_dead(3_600.0) == 0
    assert await pruner.prune_dead(-1.0) == 2
    assert await store.find(Filter()) == []


async def _ends(relay, condition):
    async with relay, asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0.01)


async def test_a_relay_deletes_old_dead_letters_of_its_stream(caplog):
    caplog.set_level("INFO", "postroom.engine.relay.pruner")
    store = await store_with_dead("mine")
    async with store.transaction() as tx:
        await Outbox().add(tx, Event("t", id="other", stream="other"))
    await store.bury(["other"], "poison")
    relay = Relay(store, MemoryBroker(), keep_dead_seconds=0.001, prune_seconds=0.01)

    async def gone():
        return await store.get("mine") is None

    await _ends(relay, gone)
    assert [r.id for r in await store.find(Filter())] == ["other"]
    assert "deleted 1 dead letters of stream main that were older than 0.001 s" in caplog.text


@pytest.mark.parametrize("failing", [False, True])
async def test_without_the_setting_nothing_is_asked_for(monkeypatch, failing):
    """No extra statement; and an error with done events does not keep dead letters."""
    store = await store_with_dead("dead")
    asked, done = [], []

    async def prune_dead(*arguments):
        asked.append(arguments)
        return PrunedDead(0, None)

    async def prune(*arguments):
        done.append(arguments)
        if failing:
            raise StoreError("no")
        return 0

    monkeypatch.setattr(store, "prune_dead", prune_dead)
    monkeypatch.setattr(store, "prune", prune)
    settings = {"keep_dead_seconds": 60.0} if failing else {}
    relay = Relay(store, MemoryBroker(), prune_seconds=0.01, **settings)

    async def three_rounds():
        return len(done) >= 3

    await _ends(relay, three_rounds)
    assert bool(asked) is failing


@pytest.mark.parametrize("failing", [False, True])
async def test_a_relay_deletes_operations_that_ended_a_month_ago(monkeypatch, failing):
    """Also if done events cannot be pruned."""
    store = MemoryStore()
    kept, asked = NewOperation("replay", "{}", "kept"), []
    for new in (NewOperation("replay", "{}", "old"), kept):
        one, _ = await store.start_operation(new, by="olga")
        await store.change_operation(one.id, Change.CANCEL, by="olga")
        if new is not kept:
            old = store.data.operations[one.id]
            month_us = 31 * 86_400_000_000
            store.data.operations[one.id] = old._replace(changed_us=old.changed_us - month_us)

    async def prune(*arguments):
        asked.append(arguments)
        if failing:
            raise StoreError("no")
        return 0

    async def one_is_left():
        return len(await store.operations()) == 1

    monkeypatch.setattr(store, "prune", prune)
    await _ends(Relay(store, MemoryBroker(), prune_seconds=0.01), one_is_left)
    assert asked


@pytest.mark.parametrize("settings", [RelaySettings, ConsumerSettings])
def test_the_setting_is_checked(settings):
    assert settings().keep_dead_seconds is None
    assert settings(keep_dead_seconds=60).keep_dead_seconds == 60
    with pytest.raises(ConfigError, match="keep_dead_seconds must be more than 0, not 0"):
        settings(keep_dead_seconds=0)
