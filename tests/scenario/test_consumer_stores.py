"""A consumer over every store, in both modes, and with batches. Its effect is an event with an id of chance."""

from __future__ import annotations

from uuid import uuid4

import pytest

from postroom import Consumer, Event, Handlers
from postroom.lookup import Filter
from postroom.model.envelope import ID, KEY, TYPE
from postroom.model.incoming import Incoming
from postroom.retry import Constant, RetryPolicy
from postroom.sources.memory import MemoryQueue, MemorySource
from tests.scenario.every_store import STORES, open_store
from tests.scenario.place import until


@pytest.fixture(params=STORES)
async def stores(request):
    async with open_store(request) as found:
        yield found


def message(event_id, key):
    headers = {ID: event_id, TYPE: "order.created", KEY: key, "content-type": "application/json"}
    return Incoming("orders", b'{"of": "%s"}' % event_id.encode(), headers)


@pytest.mark.req("S3.4", "S3.5", "S5.7")
@pytest.mark.promise("G4", "G6", "G7")
@pytest.mark.parametrize(
    "options",
    [{}, {"mode": "durable"}, {"batch": 5}],
    ids=["direct", "durable", "batch"],
)
async def test_effects_once_in_the_order_of_keys_and_poison_kept(stores, options):
    make, look = stores
    # One place, so that messages meet while they wait for it.
    handlers = Handlers(name="payments", concurrency=1 if "batch" in options else 10)
    failed, broken = set(), True

    @handlers.on("order.created")
    async def charge(event, tx, context):
        if event.id == "a-5" and broken:
            raise ValueError("no such customer")
        await context.add(Event("payment.made", event.data, id=str(uuid4()), key=event.key))
        if event.id in ("a-1", "b-2") and event.id not in failed:
            failed.add(event.id)
            raise RuntimeError("a bad moment, after the effect")

    queue = MemoryQueue()
    ids = [f"{key}-{n}" for n in range(1, 7) for key in "abc"]
    queue.send(*(message(each, each[0]) for each in ids))
    queue.send(message("a-1", "a"), message("b-2", "b"))  # repeats
    retry = RetryPolicy(max_attempts=3, backoff=Constant(0.01))
    consumer = Consumer(MemorySource(queue), make(), handlers, retry=retry, **options)

    async def effects():
        found = await look.find(Filter(stream="main", limit=1_000))
        return [record.data["of"] for record in found]

    async with consumer:

        async def all_but_one():
            return len(await effects()) == 17 and queue.is_empty

        await until(all_but_one, 30)
        kept = await look.find(Filter(stream="inbox.payments", limit=100))
        assert [record.id for record in kept if record.state == "dead"] == ["inbox/payments/a-5"]
        broken = False
        assert await look.replay(["inbox/payments/a-5"]) == 1

        async def all_of_them():
            return len(await effects()) == 18

        await until(all_of_them, 30)
    found = await effects()
    assert sorted(found) == sorted(ids)
    by_key = {key: [each for each in found if each.startswith(key)] for key in "abc"}
    assert by_key["a"] == ["a-1", "a-2", "a-3", "a-4", "a-6", "a-5"]
    assert by_key["b"] == [f"b-{n}" for n in range(1, 7)]
    assert by_key["c"] == [f"c-{n}" for n in range(1, 7)]
    if "batch" in options:
        assert consumer.counts.batched > 0
        assert consumer.counts.split > 0


HOSTILE = {
    "postroom-correlation-id": "c" * 400,
    "postroom-schema-version": "99999999999",
    "postroom-occurred-at": "0001-01-01T00:00:00+00:00",
    "postroom-causation-path": '[["a\x00","b"]]',
    "postroom-aggregate-type": "t" * 300,
    "postroom-kseq": "9" * 30,
    "nul": "a\x00b",
    "surrogate": "\ud800",
}


@pytest.mark.promise("G7")
@pytest.mark.parametrize("mode", ["direct", "durable"])
async def test_whatever_a_sender_writes_can_be_kept(stores, mode):
    make, look = stores
    handlers = Handlers(name="payments")
    seen = []

    @handlers.on("order.created")
    async def charge(event, tx):
        seen.append(event.id)

    queue = MemoryQueue()
    for n, (name, value) in enumerate(HOSTILE.items()):
        plain = message(f"m-{n}", "k")
        queue.send(plain._replace(headers={**plain.headers, name: value}))
    queue.send(message("last", "k")._replace(topic="t\x00" * 200, key="\x00" * 300))
    poison = message("poison", "k")
    queue.send(poison._replace(headers={**poison.headers, **HOSTILE, TYPE: "y" * 300}))
    async with Consumer(MemorySource(queue), make(), handlers, mode=mode) as consumer:

        async def all_are_done():
            return len(seen) == len(HOSTILE) + 1 and queue.is_empty

        await until(all_are_done, 30)
        assert consumer.counts.dead == 1
        assert (await look.get("inbox/payments/poison")).state == "dead"
    of_the_key = [each for each in seen if each != "m-4"]  # which is of another aggregate
    assert of_the_key == ["m-0", "m-1", "m-2", "m-3", "m-5", "m-6", "m-7", "last"]


@pytest.mark.req("S3.4", "S5.4")
@pytest.mark.promise("G6", "I2")
async def test_batches_of_the_same_messages_at_two_consumers_take_effect_once(stores):
    """In opposite order: each waits for what the other has accepted, or loses to it."""
    make, look = stores
    ids = [f"{key}-{n}" for n in range(1, 4) for key in "abcdefghijkl"]
    consumers, queues = [], []
    for mine in (ids, sorted(ids, key=lambda each: (each[1:], -ord(each[0])))):
        handlers = Handlers(name="payments", concurrency=2)

        @handlers.on("order.created")
        async def charge(event, tx, context):
            await context.add(Event("payment.made", event.data, id=str(uuid4()), key=event.key))

        queue = MemoryQueue()
        queue.send(*(message(each, each[0]) for each in mine))
        queues.append(queue)
        consumers.append(Consumer(MemorySource(queue), make(), handlers, batch=6))
    async with consumers[0], consumers[1]:
        await until(lambda: all(queue.is_empty for queue in queues), 60)
    found = await look.find(Filter(stream="main", limit=1_000))
    effects = [record.data["of"] for record in found]
    assert sorted(effects) == sorted(ids)
    for key in "abcdefghijkl":
        assert [each for each in effects if each[0] == key] == [f"{key}-1", f"{key}-2", f"{key}-3"]
    one, other = (consumer.counts for consumer in consumers)
    assert one.done == other.done == 36
    assert one.repeats + other.repeats == 36
    assert (one.failed, other.failed, one.dead, other.dead) == (0, 0, 0, 0)
