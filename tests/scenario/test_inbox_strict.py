"""The high-water mark of strict keys, on every store (I4)."""

from __future__ import annotations

from uuid import uuid4

import pytest

from postroom import Consumer, Event, Handlers
from postroom.errors import ConfigError, Reject
from postroom.lookup import Filter
from postroom.model.envelope import ID, KEY, KSEQ, OUTBOX, TYPE
from postroom.model.incoming import Incoming
from postroom.sources.memory import MemoryQueue, MemorySource
from postroom.stores.memory import MemoryStore
from tests.scenario.every_store import STORES, open_store
from tests.scenario.place import until


@pytest.fixture(params=STORES)
async def stores(request):
    async with open_store(request) as found:
        yield found


def numbered(number, key="a", *, outbox="one", kind="order.changed", copy=""):
    """A message whose id is another at every copy: only the number tells a repeat."""
    headers = {
        ID: f"{outbox}-{key}-{number}{copy}", TYPE: kind, KEY: key, KSEQ: str(number),
        OUTBOX: outbox, "content-type": "application/json",
    }  # fmt: skip
    return Incoming(
        "orders", b'{"of": "%s-%s-%d"}' % (outbox.encode(), key.encode(), number), headers
    )


class Room:
    def __init__(self, stores, start, **options):
        make, self.store = stores
        self.queue, self.poison = MemoryQueue(), set()
        handlers = Handlers(name="payments", strict=start)

        @handlers.on("order.changed")
        async def charge(event, tx, context):
            if event.data["of"] in self.poison:
                raise Reject("not this one")
            await context.add(Event("payment.made", event.data, id=str(uuid4()), key=event.key))

        self.consumer = Consumer(
            MemorySource(self.queue), make(), handlers, mode="durable", misconfigured_seconds=0.2,
            **options,
        )  # fmt: skip
        self.handlers = handlers

    async def effects(self):
        found = await self.store.find(Filter(stream="main", limit=1_000))
        return [record.data["of"] for record in found]

    async def states(self):
        found = await self.store.find(Filter(stream="inbox.payments", limit=1_000))
        return {record.id: record.state for record in found}

    async def until(self, effects):
        async def there():
            return await self.effects() == effects

        await until(there, 20)

    async def until_over(self, *ids):
        for each in ids:
            await self.until_state(each, "done")

    async def until_state(self, event_id, state):
        async def there():
            return (await self.states()).get(f"inbox/payments/{event_id}") == state

        await until(there, 20)


@pytest.mark.promise("G6", "I4")
async def test_a_number_takes_effect_once_whatever_its_id(stores):
    room = Room(stores, "first")
    room.queue.send(
        numbered(1), numbered(2), numbered(2, copy="x"), numbered(1, copy="y"), numbered(3),
        numbered(1, outbox="restored"),
    )  # fmt: skip
    async with room.consumer:
        await room.until_over("one-a-3", "one-a-1y", "restored-a-1")
    assert await room.effects() == ["one-a-1", "one-a-2", "one-a-3", "restored-a-1"]


@pytest.mark.promise("G7", "I4")
async def test_a_gap_parks_its_key_and_no_other(stores):
    room = Room(stores, "first")
    room.queue.send(numbered(1), numbered(3), numbered(4), numbered(1, "b"))
    async with room.consumer:
        await room.until_over("one-a-1", "one-b-1")

        async def parked():
            record = await room.store.get("inbox/payments/one-a-3")
            return record.state == "failed" and record.last_error

        problem = await until(parked, 20)
        assert "number 3 of its key arrived after number 1" in problem
        assert sorted(await room.effects()) == ["one-a-1", "one-b-1"]
        room.queue.send(numbered(2))  # it comes late, behind those that wait for it
        assert (
            await room.store.bury(
                ["inbox/payments/one-a-3", "inbox/payments/one-a-4"], "out of turn"
            )
            == 2
        )
        await room.until_over("one-a-2")
        for each in ("one-a-3", "one-a-4"):
            assert await room.store.replay([f"inbox/payments/{each}"]) == 1
            await room.until_over(each)
    found = [each for each in await room.effects() if "-a-" in each]
    assert found == ["one-a-1", "one-a-2", "one-a-3", "one-a-4"]


@pytest.mark.promise("B6", "I4")
async def test_a_marker_steps_over_its_number(stores):
    room = Room(stores, "first")
    room.queue.send(numbered(1), numbered(2, kind="postroom.skipped"), numbered(3))
    async with room.consumer:
        await room.until(["one-a-1", "one-a-3"])


@pytest.mark.promise("B6", "I4", "G7")
@pytest.mark.parametrize("start", ["first", "current"])
async def test_a_kept_message_can_be_skipped(stores, start):
    room = Room(stores, start)
    room.poison.add("one-a-2")
    room.queue.send(numbered(1), numbered(2), numbered(3))
    async with room.consumer:
        await room.until_state("one-a-2", "failed")
        await room.store.skip("inbox/payments/one-a-2", "agreed with the bank")
        await room.until(["one-a-1", "one-a-3"])
        await room.until_state("one-a-2", "dead")


@pytest.mark.promise("I4")
async def test_a_consumer_may_join_in_the_middle(stores):
    room = Room(stores, "current")
    room.queue.send(numbered(7), numbered(6), numbered(8))
    async with room.consumer:
        await room.until(["one-a-7", "one-a-8"])


@pytest.mark.promise("I4", "G7")
async def test_the_number_of_a_type_that_is_ignored_is_stepped_over(stores):
    """R-C7"""
    room = Room(stores, "first", unhandled="ignore")
    room.queue.send(numbered(1), numbered(2, kind="order.viewed"), numbered(3))
    async with room.consumer:
        await room.until(["one-a-1", "one-a-3"])
        assert room.consumer.counts.ignored == 1
        room.queue.send(numbered(2, kind="order.viewed", copy="'"), numbered(4))  # a replay
        await room.until(["one-a-1", "one-a-3", "one-a-4"])


@pytest.mark.promise("I4", "G7")
async def test_a_key_waits_for_the_handler_of_a_number_and_goes_on_with_it(stores):
    """R-C7: no dead letter, whose replay would come too late for its number."""
    room = Room(stores, "first")
    room.queue.send(numbered(1), numbered(2, kind="order.viewed"), numbered(3), numbered(1, "b"))
    async with room.consumer:
        await room.until_over("one-a-1", "one-b-1")
        await room.until_state("one-a-2", "failed")
        kept = await room.store.get("inbox/payments/one-a-2")
        assert "no handler for type 'order.viewed'" in kept.last_error
        room.handlers.on("order.viewed")(print_it)
        await room.until_over("one-a-2", "one-a-3")


def test_what_strict_handlers_cannot_be_made_of():
    with pytest.raises(ConfigError, match="strict must be 'current', 'first' or None"):
        Handlers(strict="there")
    handlers = Handlers(name="shop", strict="current")
    handlers.on("t", name="one")(print_it)
    with pytest.raises(ConfigError, match="one per type"):
        handlers.on("t", name="two")(print_it)
    with pytest.raises(ConfigError, match="mode='durable'"):
        Consumer(MemorySource(), MemoryStore(), handlers)


async def print_it(event, tx):
    pass
