"""A store that has lost what handlers committed: a relay believes it, not its memory (G2, G4, G6)."""

from __future__ import annotations

import asyncio
import copy

import pytest

from postroom.engine.handlers.handlers import Handlers
from postroom.engine.relay.relay import Relay
from postroom.engine.relay.witnesses import Witnesses
from postroom.errors import StoreLockedError
from postroom.event import Event
from postroom.observer import EffectsLost
from postroom.outbox import Outbox
from postroom.retry import RetryPolicy
from postroom.settlement import Settlement
from postroom.stores.memory import MemoryStore
from postroom.testing.broker_tools import make_record
from postroom.transaction import Acceptance, Claim


class Replica(MemoryStore):
    """A store that is set back to an earlier copy of itself, once, right before a settle."""

    def __init__(self, when):
        super().__init__()
        self.when, self.copy, self.effects = when, None, []
        self.lags = False

    def lag(self):
        if not self.lags:
            self.lags, self.copy = True, (copy.deepcopy(self.data), len(self.effects))

    async def settle(self, settlement):
        if self.copy is not None and self.when(settlement):
            self.data, effects = self.copy
            self.copy = None
            del self.effects[effects:]
        return await super().settle(settlement)


class Told:
    def __init__(self):
        self.ids = []

    def observe(self, fact):
        if isinstance(fact, EffectsLost):
            self.ids += fact.ids


async def handled(store, names, **settings):
    """Handle events of one key; the replica lags from the first effect on. Returns what was lost."""
    handlers, told = Handlers(name="shop"), Told()

    @handlers.on("paid")
    async def charge(event, tx):
        store.lag()
        tx.after_commit(lambda: store.effects.append(event.id))

    async with store.begin() as tx:
        await Outbox().add_many(tx, [Event("paid", id=name, key="k") for name in names])
    relay = Relay(store, handlers, poll_seconds=0.01, observers=[told], **settings)
    async with asyncio.timeout(20), relay:
        while (await store.stats()).counts["done"] < len(names):
            await asyncio.sleep(0.001)
    assert relay.counts.effects_lost == len(told.ids)
    return told.ids


@pytest.mark.promise("G2", "G6")
async def test_a_lost_effect_is_done_again():
    store = Replica(lambda settlement: settlement.done)
    retry = RetryPolicy(max_attempts=1)  # what the database lost is charged to nobody
    assert await handled(store, ["e1"], retry=retry) == ["e1"]
    assert store.effects == ["e1"]
    assert (await store.get("e1")).attempts == 1


@pytest.mark.promise("G4")
async def test_the_next_of_the_key_waits_for_a_lost_effect():
    """It was read when the first was settled, and that settle is lost together with the effect."""
    store = Replica(lambda s: [record.id for record in s.starts] == ["e2"] and not s.done)
    assert await handled(store, ["e1", "e2"], batch_size=1) == ["e1"]
    assert store.effects == ["e1", "e2"]


class Forgetful(MemoryStore):
    """A store from which somebody deletes the notes of handlers as soon as they are written."""

    async def settle(self, settlement):
        self.data.inbox.clear()
        return await super().settle(settlement)


@pytest.mark.promise("F2", "G7")
async def test_an_effect_that_is_never_found_is_not_done_for_ever():
    store, handlers, runs = Forgetful(), Handlers(name="shop"), []

    @handlers.on("paid")
    async def charge(event, tx):
        runs.append(event.id)

    async with store.begin() as tx:
        await Outbox().add(tx, Event("paid", id="e1", key="k"))
    relay = Relay(store, handlers, poll_seconds=0.01, retry=RetryPolicy(max_attempts=3))
    async with asyncio.timeout(20), relay:
        while not (await store.stats()).counts["dead"]:
            await asyncio.sleep(0.001)
    assert len(runs) == 4  # its attempts, and the one that was given back


async def test_a_lane_that_cannot_be_released_keeps_nobody_from_being_renewed():
    """Its row is locked by a stranger: it ends by itself, and is taken again."""

    class Locked(Replica):
        async def release(self, *_):
            raise StoreLockedError("locked")

    store = Locked(lambda settlement: settlement.done)
    assert await handled(store, ["e1"], lease_seconds=0.5) == ["e1"]
    assert store.effects == ["e1"]


def record(number):
    return make_record(number, key="k")._replace(lane=1)


def proof(name):
    return Claim(1, name, Acceptance("shop/charge", name, "paid", None))


def settle(witnesses, *, starts=(), done=(), lanes=(1,), now=0.0):
    settlement = Settlement("main", "anna", 1.0, {1: 1})
    settlement.starts = [record(n) for n in starts]
    settlement.done = [record(n) for n in done]
    settlement.claims = [proof(each.id) for each in settlement.done]
    settlement.claims += witnesses.of([1], now)
    witnesses.settled(settlement, lanes, now)
    return {claim.id for claim in witnesses.of([1], now)}


@pytest.mark.promise("G4")
def test_a_witness_stays_until_a_later_effect_takes_its_place():
    witnesses = Witnesses(60.0)
    one, two, three = (record(n).id for n in (1, 2, 3))
    assert settle(witnesses, starts=[1, 2]) == set()
    assert settle(witnesses, done=[1], starts=[3]) == {one}
    assert settle(witnesses, done=[2]) == {one, two}  # begun before the first was settled
    assert settle(witnesses, done=[3]) == {two, three}  # begun when the first was settled


@pytest.mark.promise("G4")
def test_witnesses_of_lanes_that_were_lost_or_of_long_ago_are_not_called():
    witnesses = Witnesses(60.0)
    settle(witnesses, starts=[1, 2])
    assert settle(witnesses, done=[1], lanes=()) == set()  # it was not written
    assert settle(witnesses, done=[2]) == {record(2).id}
    assert witnesses.of([1], 61.0) == []
    assert witnesses.of([2], 0.0) == []
    witnesses.forget([1])
    assert witnesses.of([1], 0.0) == []
