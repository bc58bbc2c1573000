"""How long an inbox remembers, on every store."""

from __future__ import annotations

import asyncio
import logging
import math

import pytest

from postroom import Bus, Consumer, Handlers, Inbox, Reject, Relay, transactions
from postroom.cli import prune
from postroom.engine.consumer.dedup_window import warn_of_a_short_memory
from postroom.event import Event
from postroom.lookup import Filter
from postroom.model.envelope import ID, TYPE
from postroom.model.incoming import Incoming
from postroom.model.url import Url
from postroom.outbox import Outbox
from postroom.sources.kafka.source import KafkaSource
from postroom.sources.memory import MemoryQueue, MemorySource
from postroom.stores.memory import MemoryStore
from postroom.transaction import Acceptance
from postroom.transactions import acceptances
from postroom.transactions.acceptances import Acceptances, forget_old
from tests.scenario.every_store import STORES, open_store
from tests.scenario.kafka_place import make_topic
from tests.scenario.place import until


@pytest.fixture(params=STORES)
async def store(request):
    async with open_store(request) as (_, store):
        yield store


async def accept(store, *ids, consumer="payments/charge"):
    async with store.transaction() as tx:
        adapter = transactions.resolve(tx, store.tables.qualified)
        return [await adapter.accept(Acceptance(consumer, each, "t", None)) for each in ids]


async def forgets(store, seconds, consumer="payments/charge"):
    return await store.forget_accepted(consumer, seconds, ["payments"])


def message(event_id, event_type="order.created"):
    return Incoming("orders", b"{}", {ID: event_id, TYPE: event_type})


@pytest.mark.promise("I1")
async def test_what_was_done_long_ago_is_forgotten_step_by_step(store, monkeypatch):
    monkeypatch.setattr(acceptances, "STEP", 2)
    assert await accept(store, "m-1", "m-2", "m-3") == [True, True, True]
    assert await forgets(store, 3_600) == 0
    assert await accept(store, "m-1") == [False]
    assert await forgets(store, -1) == 3
    assert await accept(store, "m-1", "m-1") == [True, False]


@pytest.mark.promise("I1", "G6", "F4")
async def test_a_consumer_forgets_its_own_notes_only(store):
    """R-B1"""
    others = ("payments", "payments/charge/2", "payments/mail", "payment/charge", "audit/charge")
    for consumer in ("payments/charge", *others):
        await accept(store, "m-1", consumer=consumer)
    assert await forgets(store, -1) == 1
    for consumer in others:
        assert await accept(store, "m-1", consumer=consumer) == [False], consumer
    assert await accept(store, "m-1") == [True]


@pytest.mark.promise("I1", "G6")
async def test_notes_of_what_may_come_again_stay(store, monkeypatch):
    """R-B3: dead letters and kept messages, also behind a page of them that stay."""
    monkeypatch.setattr(acceptances, "STEP", 2)
    outbox = Outbox().within(store.tables)
    long_id = "x" * 200
    queue = MemoryQueue()
    queue.send(message("dead-1", "nobody"), message(long_id, "nobody"))
    async with Consumer(MemorySource(queue), store, Handlers(name="payments")):
        await until(lambda: queue.is_empty)
    await store.open()
    async with store.transaction() as tx:
        await outbox.add(tx, Event("t", id="pending-1"))
        await outbox.add(tx, Event("t", id="buried-1"))
    await store.bury(["buried-1"], "poison")
    stay = ["dead-1", long_id, "pending-1", "buried-1"]
    await accept(store, *stay)
    await accept(store, "m-1", "m-2", "m-3")
    assert await forgets(store, -1) == 3
    assert await accept(store, *stay) == [False] * 4
    assert await accept(store, "m-2") == [True]


@pytest.mark.promise("I1", "G6")
@pytest.mark.parametrize("who", ["handlers", "command"])
async def test_who_forgets_knows_the_kept_messages_of_a_consumer_with_another_name(
    who, monkeypatch
):
    handlers, store, queue = Handlers(name="billing"), MemoryStore(), MemoryQueue()

    @handlers.on("order.created")
    async def charge(event, tx): ...

    queue.send(message("dead-1", "nobody"))
    async with Consumer(MemorySource(queue), store, handlers, name="payments"):
        await until(lambda: queue.is_empty)
    await accept(store, "dead-1", "m-1", consumer="billing/charge")
    if who == "handlers":
        assert await handlers.bind(store, name="payments").forget_accepted(-1) == 1
    else:
        monkeypatch.setattr(prune, "shared_store", lambda url: store)
        url = Url.parse("sqlite:///app.db")
        assert await prune._forget(url, -1, "billing/charge", "anna", as_json=False) == 0
    assert await accept(store, "dead-1", "m-1", consumer="billing/charge") == [False, True]


async def test_notes_that_a_person_wrote_are_forgotten_by_their_inbox(store):
    inbox = Inbox("audit", prefix=store.tables.prefix)
    async with store.transaction() as tx:
        for event_id in ("e-1", "e-2"):
            assert await inbox.accept(tx, Event("t", id=event_id))
        assert await inbox.forget(tx, older_than_seconds=3_600) == 0
    async with store.transaction() as tx:
        assert await inbox.forget(tx, older_than_seconds=-1, limit=1) == 1
        assert await inbox.forget(tx, older_than_seconds=-1) == 1


class Clock:
    """A store's clock, in days."""

    def __init__(self):
        self.days = 0.0

    def __call__(self):
        return 1_700_000_000_000_000 + int(self.days * 86_400_000_000)


@pytest.mark.promise("I1", "G6")
@pytest.mark.parametrize("who", ["relay", "consumer"])
async def test_handlers_forget_after_the_time_that_was_set(who):
    """A tenth of it is too early, and for ever is too late (R-B1): in a relay, and in a consumer."""
    clock = Clock()
    store = MemoryStore(clock)
    handlers = Handlers(name="payments")

    @handlers.on("order.created")
    async def charge(event, tx):
        pass

    quickly = {"dedup_seconds": 10 * 86_400.0}
    if who == "relay":
        async with store.transaction() as tx:
            await Outbox().add(tx, Event("order.created", id="m-1"))
        runner = Relay(store, handlers, prune_seconds=0.01, keep_done_seconds=0, **quickly)
    else:
        queue = MemoryQueue()
        queue.send(message("m-1"))
        runner = Consumer(MemorySource(queue), store, handlers, **quickly)
    known, looks = ("payments/charge", "m-1"), 0
    forget_accepted = handlers.forget_accepted

    async def look(seconds):
        nonlocal looks
        await forget_accepted(seconds)
        looks += 1

    handlers.forget_accepted = look
    async with runner:
        if who == "consumer":
            assert runner.backlog_relay.settings.dedup_seconds == 10 * 86_400
            await until(lambda: known in store.data.inbox)
            return
        await until(lambda: known in store.data.inbox)
        clock.days, before = 9.9, looks
        await until(lambda: looks > before + 1)
        assert known in store.data.inbox
        clock.days = 10.1
        await until(lambda: known not in store.data.inbox)


@pytest.mark.promise("I1", "G6")
async def test_a_bus_prunes_the_inboxes_of_its_modules():
    clock = Clock()
    shop, payments = MemoryStore(clock), MemoryStore(clock)
    bus = Bus(prune_seconds=0.01, dedup_seconds=10 * 86_400.0)
    bus.module("shop", shop)

    @bus.module("payments", payments).on("order.created")
    async def charge(event, tx):
        pass

    async with shop.transaction() as tx:
        await bus.module("shop").outbox.add(tx, Event("order.created", id="m-1"))
    async with bus:
        await until(lambda: ("payments/charge", "m-1") in payments.data.inbox)
        await until(lambda: not shop.data.ready["main", 0])
        clock.days = 10.1
        await until(lambda: ("payments/charge", "m-1") not in payments.data.inbox)


@pytest.mark.promise("I1")
async def test_an_error_while_forgetting_does_not_end_the_relay():
    """Not even one of the driver's own, as when the connection is lost within the transaction."""
    handlers, told, tried = Handlers(name="payments"), [], []

    async def lost(seconds):
        tried.append(seconds)
        raise ConnectionResetError("the server has gone")

    handlers.forget_accepted = lost
    watching = type("Watching", (), {"observe": lambda self, fact: told.append(fact)})()
    relay = Relay(MemoryStore(), handlers, prune_seconds=0.01, observers=[watching])
    async with relay:
        await until(lambda: len(tried) > 2)
        assert relay.is_running
    (trouble, *_) = [fact for fact in told if getattr(fact, "doing", "") == "pruning the inbox"]
    assert "the server has gone" in trouble.error


@pytest.mark.promise("F1")
async def test_a_handler_whose_notes_cannot_be_forgotten_costs_no_other():
    """F1: the first handler's own database cannot be reached; the notes of the second go."""
    store = MemoryStore()

    def unreachable():
        raise ConnectionResetError("the server has gone")

    handlers = Handlers(name="payments", sync_transaction=unreachable)

    @handlers.on("order.created")
    def mail(event, tx): ...

    @handlers.on("order.created")
    async def charge(event, tx): ...

    await accept(store, "m-1")
    with pytest.raises(ConnectionResetError):
        await handlers.bind(store).forget_accepted(-1)
    assert await accept(store, "m-1") == [True]


@pytest.mark.promise("F1")
@pytest.mark.parametrize("step", [1, 1_000])
async def test_notes_that_stay_although_they_should_go_are_told_and_passed(
    monkeypatch, caplog, step
):
    """F1: whatever the reason, the next page is asked for behind them: no endless loop."""
    monkeypatch.setattr(acceptances, "STEP", step)
    store, stubborn = MemoryStore(), "m-2"
    await accept(store, "m-1", stubborn, "m-3")

    class Stubborn(Acceptances):
        async def forget(self, consumer, ids):
            return await super().forget(consumer, [each for each in ids if each != stubborn])

    rows = Stubborn.in_transactions(store.transaction, "postroom_")
    async with asyncio.timeout(10):
        assert await forget_old(rows, "payments/charge", -1, store, ()) == 2
    assert await accept(store, "m-1", stubborn, "m-3") == [True, False, True]
    (line,) = [record.message for record in caplog.records]
    assert line.startswith("1 old inbox rows of payments/charge cannot be pruned")


@pytest.mark.promise("G6")
async def test_a_dead_letter_that_is_replayed_late_does_again_only_what_was_not_done(store):
    """R-B3: two handlers, one done, the other rejected; the replay comes after the window."""
    handlers, done, broken = Handlers(name="payments"), [], True

    @handlers.on("order.created")
    async def charge(event, tx):
        done.append("charged")

    @handlers.on("order.created")
    async def mail(event, tx):
        if broken:
            raise Reject("no such address")
        done.append("mailed")

    queue = MemoryQueue()
    queue.send(message("m-1"))
    async with Consumer(MemorySource(queue), store, handlers):
        await until(lambda: queue.is_empty)
        assert await handlers.forget_accepted(-1) == 0
        broken = False
        (dead,) = await store.find(Filter(stream="inbox.payments", state="dead"))
        assert await store.replay([dead.id]) == 1
        await until(lambda: "mailed" in done)
    assert done == ["charged", "mailed"]


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({}, 60_000),
        ({"session.timeout.ms": "90000"}, 90_000),
        ({"session.timeout.ms": 6_000}, 60_000),
        ({"max.poll.interval.ms": 10_000}, 10_000),
    ],
)
def test_a_group_waits_a_minute_for_a_ghost_and_no_longer(config, limit):
    source = KafkaSource("kafka://localhost", topic="t", group="g", config=config)
    assert source.settings.client()["max.poll.interval.ms"] == limit


def test_a_memory_shorter_than_the_brokers_is_warned_of(caplog):
    caplog.set_level(logging.WARNING, "postroom.engine.consumer.dedup_window")
    assert not warn_of_a_short_memory("payments", 3_600, None)
    assert not warn_of_a_short_memory("payments", 3_600, 3_600)
    assert caplog.records == []
    assert warn_of_a_short_memory("payments", 3_600, 86_400)
    assert "can redeliver them for 1.0: " in caplog.text
    assert "Raise dedup_seconds" in caplog.text
    caplog.clear()
    assert warn_of_a_short_memory("payments", 3_600, math.inf)
    assert "can redeliver them forever: " in caplog.text
    assert "lower the retention of the topic" in caplog.text


@pytest.mark.parametrize(("kept", "seconds"), [(3_600_000, 3_600.0), (-1, math.inf)])
async def test_kafka_says_how_long_it_can_deliver_again(kafka_url, kept, seconds):
    topic = make_topic(kafka_url, retention_ms=kept)
    source = KafkaSource(kafka_url, topic=topic, group="g")
    await source.open()
    await source.close()
    assert source.capabilities.redelivers_seconds == seconds
