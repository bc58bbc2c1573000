"""Messages that share a transaction, in bad weather: nobody pays for a neighbour."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from contextlib import asynccontextmanager, closing

import pytest

from postroom import Handlers
from postroom.engine.consumer import Consumer
from postroom.engine.handlers.dispatch import SKIPPED_TYPE
from postroom.errors import ConfigError, StoreUnknownError
from postroom.model.envelope import ID, KEY, TYPE
from postroom.model.incoming import Incoming
from postroom.observer import Attempt, BreakerChanged
from postroom.retry import RetryPolicy
from postroom.sources.memory import MemorySource
from postroom.store import Capabilities
from postroom.stores.memory import MemoryStore
from tests.scenario.place import until
from tests.scenario.test_consumer_faults import Shop, Times, message

INSERT = "INSERT INTO effects (name) VALUES (?)"
ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
async def shop(tmp_path):
    shop = Shop(tmp_path / "shop.db")
    await shop.store.migrate()
    with closing(sqlite3.connect(shop.path)) as conn:
        conn.execute("CREATE TABLE effects (name TEXT)")
        conn.commit()
    yield shop
    await shop.store.close()


def charging(shop, trouble=None, **options):
    """Have a handler whose effect is the id of the event, then the trouble; counts its calls."""
    calls = Counter()
    shop.handlers = Handlers(name="payments", **options)

    @shop.handlers.on("order.created")
    async def charge(event, tx):
        calls[event.id] += 1
        inserted = tx.execute(INSERT, (event.id,))
        if options.get("transaction") is None:
            await inserted
        if trouble is not None:
            await trouble(event, tx, calls[event.id])

    return calls


def messages(*ids):
    return [message(each, each.partition("-")[0]) for each in ids]


# -- what goes wrong in the middle ----------------------------------------------------------------
@pytest.mark.promise("G6", "P3")
async def test_a_batch_whose_commit_has_no_answer_is_found_done(shop):
    calls = charging(shop)
    shop.store.after = Times(1, StoreUnknownError("the connection went away"))
    shop.queue.send(*messages("a-1", "b-1", "c-1"))
    async with shop.consumer(batch=10, retry=ONCE) as consumer:
        await until(lambda: consumer.counts.done == 3)
    assert shop.effects() == ["a-1", "b-1", "c-1"]
    assert calls == {"a-1": 1, "b-1": 1, "c-1": 1}
    counts = consumer.counts
    assert (counts.split, counts.repeats, counts.failed, counts.dead) == (3, 3, 0, 0)


@pytest.mark.promise("I2")
async def test_a_batch_that_lost_to_another_transaction_costs_no_attempt(shop):
    class Deadlock(Exception):
        sqlstate = "40P01"

    async def trouble(event, tx, call):
        if event.id == "b-1" and call < 3:
            raise Deadlock

    calls = charging(shop, trouble)
    shop.queue.send(*messages("a-1", "b-1", "c-1"))
    async with shop.consumer(batch=10, retry=ONCE) as consumer:
        await until(lambda: consumer.counts.done == 3)
    assert sorted(shop.effects()) == ["a-1", "b-1", "c-1"]
    assert calls == {"a-1": 2, "b-1": 3, "c-1": 1}
    assert (consumer.counts.split, consumer.counts.failed, consumer.counts.dead) == (3, 0, 0)


@pytest.mark.promise("P2")
async def test_a_database_that_is_away_costs_a_batch_nothing(shop):
    calls = charging(shop)
    shop.store.before = Times(12, ConnectionError("no route to host"))
    shop.queue.send(*messages("a-1", "b-1", "c-1", "a-2"))
    async with shop.consumer(batch=10, retry=ONCE) as consumer:
        await until(lambda: consumer.counts.done == 4)
    assert sorted(shop.effects()) == ["a-1", "a-2", "b-1", "c-1"]
    assert set(calls.values()) == {1}
    assert (consumer.counts.split, consumer.counts.failed, consumer.counts.dead) == (0, 0, 0)
    states = [fact.state for fact in shop.facts if isinstance(fact, BreakerChanged)]
    assert states == ["open", "closed"]
    verdicts = {fact.verdict for fact in shop.facts if isinstance(fact, Attempt)}
    assert verdicts == {"outage"}


@pytest.mark.promise("G4", "G6")
async def test_messages_that_are_lost_while_their_batch_is_open(shop):
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def trouble(event, tx, call):
        reached.set()
        await go_on.wait()

    calls = charging(shop, trouble)
    shop.queue.send(*messages("a-1", "b-1", "c-1", "a-2", "b-2"))
    async with shop.consumer(batch=10) as consumer:
        await asyncio.wait_for(reached.wait(), 10)
        shop.source.lose_all()
        go_on.set()
        await until(lambda: len(shop.queue.acked) == 5)
    assert shop.effects() == ["a-1", "b-1", "c-1", "a-2", "b-2"]
    assert set(calls.values()) == {1}
    assert consumer.counts.repeats == 3  # those that were running


@pytest.mark.promise("G4")
async def test_what_is_lost_before_its_turn_is_not_begun(shop):
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def trouble(event, tx, call):
        if event.id == "a-1":
            reached.set()
            await go_on.wait()

    calls = charging(shop, trouble)
    shop.queue.send(*messages("a-1"))
    async with shop.consumer(batch=10) as consumer:
        await asyncio.wait_for(reached.wait(), 10)
        shop.queue.send(*messages("b-1", "c-1"))
        await until(lambda: consumer.counts.received == 3)
        shop.source.lose_all()
        await until(lambda: consumer.counts.received == 6)
        go_on.set()
        await until(lambda: len(shop.queue.acked) == 3)
    assert sorted(shop.effects()) == ["a-1", "b-1", "c-1"]
    assert calls == {"a-1": 1, "b-1": 1, "c-1": 1}
    assert consumer.counts.lost == 2  # the third was running, and found done the next time


@pytest.mark.promise("H3")
async def test_a_batch_shares_one_time_limit(shop):
    async def trouble(event, tx, call):
        if event.id == "b-1" and call == 1:
            await asyncio.Event().wait()

    calls = charging(shop, trouble, time_limit_seconds=0.2)
    shop.queue.send(*messages("a-1", "b-1", "c-1"))
    async with shop.consumer(batch=10, retry=ONCE) as consumer:
        await until(lambda: consumer.counts.done == 3)
    assert sorted(shop.effects()) == ["a-1", "b-1", "c-1"]
    assert calls["b-1"] == 2
    assert (consumer.counts.split, consumer.counts.failed, consumer.counts.dead) == (3, 0, 0)


# -- handlers that end the transaction they share -------------------------------------------------
@pytest.fixture
def legacy(shop):
    """Transactions of a driver that begins the next one by itself, as SQLAlchemy's sessions do."""

    @asynccontextmanager
    async def transaction():
        with closing(sqlite3.connect(shop.path, timeout=30)) as conn, conn:
            yield conn

    return transaction


@pytest.mark.promise("G6", "G7", "F3")
async def test_a_handler_that_rolls_back_takes_nothing_from_its_neighbours(shop, legacy):
    async def trouble(event, tx, call):
        if event.id == "b-1":
            tx.rollback()

    calls = charging(shop, trouble, transaction=legacy, concurrency=1)
    shop.queue.send(*messages("a-1", "b-1", "c-1"))
    async with shop.consumer(batch=10, retry=ONCE) as consumer:
        await until(lambda: consumer.counts.done + consumer.counts.dead == 3)
    assert sorted(shop.effects()) == ["a-1", "c-1"]
    # The culprit is known at once: it must not run again, what followed its rollback may be there.
    assert calls == {"a-1": 2, "b-1": 1, "c-1": 1}
    assert consumer.counts.split == 3
    assert (consumer.counts.done, consumer.counts.dead) == (2, 1)  # R-B2: it is no success


@pytest.mark.promise("G6", "G7", "F3")
async def test_a_handler_that_commits_commits_nothing_that_has_not_happened(shop, legacy):
    async def trouble(event, tx, call):
        if event.id == "b-1":
            tx.commit()
        if event.id == "c-1" and call == 1:
            raise RuntimeError("a bad moment")

    calls = charging(shop, trouble, transaction=legacy, concurrency=1)
    shop.queue.send(*messages("a-1", "b-1", "c-1", "d-1"))
    async with shop.consumer(batch=10, retry=ONCE) as consumer:
        await until(lambda: consumer.counts.done == 4)
    assert sorted(shop.effects()) == ["a-1", "b-1", "c-1", "d-1"]
    assert calls == {"a-1": 1, "b-1": 1, "c-1": 2, "d-1": 1}
    assert (consumer.counts.split, consumer.counts.repeats) == (4, 2)


# -- who shares with whom -------------------------------------------------------------------------
@pytest.mark.promise("G7")
async def test_sync_handlers_share_a_transaction_in_their_thread(shop):
    calls = Counter()
    shop.handlers = Handlers(name="payments")

    @shop.handlers.on("order.created")
    def charge(event, tx):
        calls[event.id] += 1
        tx.execute(INSERT, (event.id,))
        if event.id == "b-1":
            raise ValueError("no such customer")

    shop.queue.send(*messages("a-1", "b-1", "c-1", "a-2", "c-2", "a-1"))
    async with shop.consumer(batch=10, retry=ONCE) as consumer:
        await until(lambda: consumer.counts.done == 5)
    assert sorted(shop.effects()) == ["a-1", "a-2", "c-1", "c-2"]
    assert calls["b-1"] == 2
    counts = consumer.counts
    assert (counts.split, counts.dead, counts.failed, counts.repeats) == (3, 1, 0, 1)
    assert counts.batched >= 2


async def test_what_needs_transactions_of_its_own_does_not_share(shop):
    shop.handlers = Handlers(name="payments")

    def handled(kind):
        return lambda event, tx: tx.execute(INSERT, (f"{event.id} {kind}",))

    async def first(event, tx):
        await handled("first")(event, tx)

    async def second(event, tx):
        await handled("second")(event, tx)

    def in_a_thread(event, tx):
        handled("thread")(event, tx)

    shop.handlers.on("order.twice")(first)
    shop.handlers.on("order.twice")(second)
    shop.handlers.on("order.created")(first)
    shop.handlers.on("order.printed")(in_a_thread)
    shop.handlers.default(second)
    for n, kind in enumerate(
        ["order.created", "order.printed", "order.twice", "order.created", "order.printed",
         SKIPPED_TYPE, "order.other"]
    ):  # fmt: skip
        shop.queue.send(Incoming("orders", b"{}", {ID: f"m-{n}", TYPE: kind, KEY: f"k-{n}"}))
    async with shop.consumer(batch=10) as consumer:
        await until(lambda: consumer.counts.done == 7)
    assert sorted(shop.effects()) == [
        "m-0 first", "m-1 thread", "m-2 first", "m-2 second", "m-3 first", "m-4 thread",
        "m-6 second",
    ]  # fmt: skip
    assert consumer.counts.batched == 5  # two of the thread, three others of the loop
    assert consumer.counts.split == 0


@pytest.mark.promise("G6")
async def test_one_id_under_two_keys_is_never_twice_in_a_batch(shop):
    calls = charging(shop)
    shop.queue.send(message("m-1", "a"), message("m-1", "b"), message("m-2", "c"))
    async with shop.consumer(batch=10) as consumer:
        await until(lambda: consumer.counts.done == 3)
    assert sorted(shop.effects()) == ["m-1", "m-2"]
    assert calls == {"m-1": 1, "m-2": 1}
    assert (consumer.counts.batched, consumer.counts.repeats, consumer.counts.split) == (2, 1, 0)


async def test_handlers_without_a_transaction_do_not_share(shop):
    seen = []
    shop.handlers = Handlers(name="payments", transaction=False)

    @shop.handlers.on("order.created")
    async def charge(event, tx):
        seen.append((event.id, tx))

    shop.queue.send(*messages("a-1", "b-1"))
    async with shop.consumer(batch=10) as consumer:
        await until(lambda: consumer.counts.done == 2)
    assert sorted(seen) == [("a-1", None), ("b-1", None)]
    assert consumer.counts.batched == 0


async def test_a_bug_in_a_batch_stops_the_consumer(shop, monkeypatch):
    charging(shop)

    async def broken(self, records):
        raise RuntimeError("a bug")

    monkeypatch.setattr(Handlers, "handle_together", broken)
    shop.queue.send(*messages("a-1", "b-1"))
    consumer = shop.consumer(batch=10)
    await consumer.start()
    with pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(consumer.wait(), 10)
    assert shop.queue.acked == []


# -- what is refused ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": 0}, "batch must be more than 0"),
        ({"batch": True}, "batch must be a number"),
        ({"batch": 2.5}, "batch must be a whole number"),
        ({"batch": 2, "mode": "durable"}, "batch requires mode='direct'"),
    ],
)
def test_what_a_batch_cannot_be(options, said):
    with pytest.raises(ConfigError, match=said):
        Consumer(MemorySource(), MemoryStore(), Handlers(), **options)


async def test_a_store_without_transactions_has_no_batches(monkeypatch):
    store = MemoryStore()
    monkeypatch.setattr(
        type(store), "capabilities", property(lambda _: Capabilities(transactions=False))
    )
    with pytest.raises(ConfigError, match="a batch needs transactions"):
        await Consumer(MemorySource(), store, Handlers(name="shop"), batch=2).start()
