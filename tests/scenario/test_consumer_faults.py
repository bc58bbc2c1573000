"""A consumer in bad weather, with a queue in this process and effects in SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager, closing

import pytest

from postroom import Handlers, Retry
from postroom.engine.consumer import Consumer
from postroom.engine.consumer.durable_inbox import DurableInbox
from postroom.errors import ConfigError, SchemaError, StoreError, StoreUnknownError
from postroom.lookup import Filter
from postroom.model.envelope import ID, KEY, TYPE
from postroom.model.incoming import Incoming
from postroom.observer import Alarm, BreakerChanged
from postroom.retry import Constant, RetryPolicy
from postroom.sources.memory import MemoryQueue, MemorySource
from postroom.stores.memory import MemoryStore
from postroom.stores.sqlite import SqliteStore
from tests.scenario.place import until


def message(event_id, key="k"):
    return Incoming("orders", b"{}", {ID: event_id, TYPE: "order.created", KEY: key})


class Weather(SqliteStore):
    """A store whose transactions for handlers meet what a test says."""

    def __init__(self, path):
        super().__init__(path)
        self.before = self.after = None

    @asynccontextmanager
    async def transaction(self):
        if self.before is not None:
            self.before()
        async with super().transaction() as tx:
            yield tx
        if self.after is not None:
            self.after()


class Shop:
    def __init__(self, path):
        self.path = path
        self.store = Weather(path)
        self.queue = MemoryQueue()
        self.source = MemorySource(self.queue)
        self.handlers = Handlers(name="payments")
        self.facts = []

    def observe(self, fact):
        self.facts.append(fact)

    def consumer(self, **options):
        options = {
            "retry": RetryPolicy(backoff=Constant(0.01)), "outage_seconds": 0.01,
            "max_outage_seconds": 0.05, **options,
        }  # fmt: skip
        return Consumer(self.source, self.store, self.handlers, observers=[self], **options)

    def effects(self):
        with closing(sqlite3.connect(self.path)) as conn:
            return [n for (n,) in conn.execute("SELECT name FROM effects ORDER BY rowid")]


@pytest.fixture
async def shop(tmp_path):
    shop = Shop(tmp_path / "shop.db")
    await shop.store.migrate()
    with closing(sqlite3.connect(shop.path)) as conn:
        conn.execute("CREATE TABLE effects (name TEXT)")
        conn.commit()

    @shop.handlers.on("order.created")
    async def charge(event, tx):
        await tx.execute("INSERT INTO effects (name) VALUES (?)", (event.id,))

    yield shop
    await shop.store.close()


class Times:
    """Raises an error so many times, then no more."""

    def __init__(self, count, error):
        self.left, self.error = count, error

    def __call__(self):
        if self.left:
            self.left -= 1
            raise self.error


@pytest.mark.promise("G2", "I1")
async def test_nothing_is_acknowledged_before_it_is_kept(shop):
    tries = 0

    def away():
        nonlocal tries
        tries += 1
        raise StoreError("the disk is full")

    shop.store.before = away
    shop.queue.send(message("m-1"), message("m-2"))
    async with shop.consumer(mode="durable"):
        await until(lambda: tries >= 3)
        assert shop.queue.acked == []
        shop.store.before = None
        await until(lambda: shop.effects() == ["m-1", "m-2"])
        assert len(shop.queue.acked) == 2


@pytest.mark.promise("P2")
async def test_a_database_that_is_away_costs_no_attempt(shop):
    shop.store.before = Times(12, ConnectionError("no route to host"))
    shop.queue.send(message("a-1", "a"), message("b-1", "b"), message("a-2", "a"))
    async with shop.consumer(retry=RetryPolicy(max_attempts=1)) as consumer:
        await until(lambda: consumer.counts.done == 3)
    assert sorted(shop.effects()) == ["a-1", "a-2", "b-1"]
    assert (consumer.counts.failed, consumer.counts.dead) == (0, 0)
    states = [fact.state for fact in shop.facts if isinstance(fact, BreakerChanged)]
    assert states == ["open", "closed"]


@pytest.mark.promise("G6", "P3")
async def test_a_commit_without_an_answer_is_found_done(shop):
    shop.store.after = Times(1, StoreUnknownError("the connection went away"))
    shop.queue.send(message("m-1"), message("m-2"))
    async with shop.consumer() as consumer:
        await until(lambda: consumer.counts.done == 2)
    assert shop.effects() == ["m-1", "m-2"]
    assert (consumer.counts.repeats, consumer.counts.failed) == (1, 0)


@pytest.mark.promise("I2")
async def test_a_transaction_that_lost_to_another_is_run_again_at_no_cost(shop):
    handlers = Handlers(name="payments")
    lost = 3

    class Deadlock(Exception):
        sqlstate = "40P01"

    @handlers.on("order.created")
    async def charge(event, tx):
        nonlocal lost
        await tx.execute("INSERT INTO effects (name) VALUES (?)", (event.id,))
        if lost:
            lost -= 1
            raise Deadlock

    shop.handlers = handlers
    shop.queue.send(message("m-1"))
    async with shop.consumer(retry=RetryPolicy(max_attempts=1)) as consumer:
        await until(lambda: consumer.counts.done == 1)
    assert shop.effects() == ["m-1"]
    assert (consumer.counts.failed, consumer.counts.dead) == (0, 0)


@pytest.mark.promise("G4", "G6")
async def test_messages_that_are_lost_on_the_way_come_again_in_their_order(shop):
    handlers = Handlers(name="payments")
    reached, go_on = asyncio.Event(), asyncio.Event()

    @handlers.on("order.created")
    async def charge(event, tx):
        await tx.execute("INSERT INTO effects (name) VALUES (?)", (event.id,))
        reached.set()
        await go_on.wait()

    shop.handlers = handlers
    shop.queue.send(*(message(f"m-{n}") for n in range(5)))
    async with shop.consumer() as consumer:
        await asyncio.wait_for(reached.wait(), 10)
        shop.source.lose_all()
        go_on.set()
        await until(lambda: len(shop.queue.acked) == 5)
    assert shop.effects() == ["m-0", "m-1", "m-2", "m-3", "m-4"]
    assert consumer.counts.repeats == 1  # the one that was running


async def test_the_broker_is_held_back_when_enough_is_in_hand(shop):
    handlers = Handlers(name="payments")
    go_on = asyncio.Event()

    @handlers.on("order.created")
    async def charge(event, tx):
        await go_on.wait()

    shop.handlers = handlers
    async with shop.consumer(max_in_flight=10) as consumer:
        for n in range(10):
            shop.queue.send(message(f"m-{n}", f"k-{n}"))
        await until(lambda: consumer.counts.received == 10)
        for n in range(10, 30):
            shop.queue.send(message(f"m-{n}", f"k-{n}"))
        await asyncio.sleep(0)  # a receiver that took more would have its turn here
        assert len(shop.queue.waiting) == 20
        go_on.set()
        await until(lambda: consumer.counts.done == 30)


@pytest.mark.promise("I6")
async def test_a_message_that_was_done_can_be_replayed_under_a_new_id(shop):
    shop.queue.send(message("m-1"))
    async with shop.consumer(mode="durable"):
        await until(lambda: shop.effects() == ["m-1"])

        async def over():
            return (await shop.store.get("inbox/payments/m-1")).state == "done"

        await until_async(over)
        assert await shop.store.replay(["inbox/payments/m-1"]) == 1
        await until_async(over)
        assert shop.effects() == ["m-1"]  # the inbox knows it
        assert await shop.store.replay(["inbox/payments/m-1"], new_id=True) == 1
        await until(lambda: len(shop.effects()) == 2)


async def until_async(condition):
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0.01)


async def test_retry_after_is_kept(shop):
    handlers = Handlers(name="payments")
    tried = []

    @handlers.on("order.created")
    async def charge(event, tx):
        tried.append(asyncio.get_running_loop().time())
        if len(tried) == 1:
            raise Retry("later", after=0.2)

    shop.handlers = handlers
    shop.queue.send(message("m-1"))
    async with shop.consumer() as consumer:
        await until(lambda: consumer.counts.done == 1)
    assert tried[1] - tried[0] >= 0.2
    assert consumer.counts.failed == 1


async def test_sync_handlers_have_their_threads(shop):
    handlers = Handlers(name="payments")

    @handlers.on("order.created")
    def charge(event, tx, context):
        tx.execute("INSERT INTO effects (name) VALUES (?)", (context.correlation_id,))

    shop.handlers = handlers
    shop.queue.send(message("m-1"), message("m-1"))
    async with shop.consumer() as consumer:
        await until(lambda: consumer.counts.done == 2)
    assert shop.effects() == ["m-1"]


async def test_start_and_stop_twice(shop):
    consumer = shop.consumer()
    for _ in range(2):
        await consumer.start()
        await consumer.start()
        assert consumer.is_running
        await consumer.stop()
        await consumer.stop()
        assert not consumer.is_running
    await consumer.wait()


async def test_a_store_without_tables_is_told(tmp_path):
    consumer = Consumer(MemorySource(), SqliteStore(tmp_path / "no.db"), Handlers(name="shop"))
    with pytest.raises(SchemaError):
        await consumer.start()
    assert not consumer.is_running


async def test_a_part_that_crashes_stops_the_consumer(shop):
    async def broken():
        raise RuntimeError("a bug of the source")

    shop.source.receive = broken
    consumer = shop.consumer()
    await consumer.start()
    with pytest.raises(RuntimeError, match="a bug of the source"):
        await asyncio.wait_for(consumer.wait(), 10)
    assert not consumer.is_running


def test_what_a_consumer_cannot_be_made_of(tmp_path):
    store = SqliteStore(tmp_path / "no.db")
    with pytest.raises(ConfigError, match="needs Handlers"):
        Consumer(MemorySource(), store, "null:")
    with pytest.raises(ConfigError, match="did you mean 'mode'"):
        Consumer(MemorySource(), store, Handlers(), mod="durable")
    with pytest.raises(ConfigError, match="name has 70 bytes"):
        Consumer(MemorySource(), store, Handlers(name="x" * 70))
    with pytest.raises(ConfigError, match="queue is missing"):
        Consumer("amqp://localhost", store, Handlers())
    with pytest.raises(ConfigError, match="topic is missing"):
        Consumer("kafka://localhost", store, Handlers())
    with pytest.raises(ConfigError, match="needs a source that is a log"):
        Consumer("amqp://localhost?queue=q", store, Handlers(), missing_id="offset")


async def test_dead_letters_are_listed_by_stream(shop):
    shop.queue.send(Incoming("orders", b"{}", {ID: "m-1", TYPE: "order.unknown"}))
    async with shop.consumer() as consumer:
        await until(lambda: consumer.counts.dead == 1)
        assert await shop.store.streams() == ["inbox.payments"]
        (dead,) = await shop.store.find(Filter(stream="inbox.payments"))
    assert (dead.state, dead.type, dead.topic) == ("dead", "order.unknown", "orders")


@pytest.mark.promise("G7")
@pytest.mark.parametrize("mode", ["direct", "durable"])
async def test_a_message_that_no_row_can_hold_stays_with_the_broker(shop, mode):
    """A driver refuses its row. The others go on, and it is not acknowledged."""
    insert = DurableInbox._insert

    async def picky(self, rows):
        if any(row.id == "inbox/payments/huge" for row in rows):
            raise OverflowError("more than max_allowed_packet")
        return await insert(self, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DurableInbox, "_insert", picky)
        huge = Incoming("orders", b"{}", {ID: "huge", TYPE: "order.created" * (mode == "durable")})
        shop.queue.send(message("m-1"), huge, message("m-2"))
        async with shop.consumer(mode=mode):
            await until(lambda: len(shop.queue.acked) == 2)
            await until(lambda: shop.effects() == ["m-1", "m-2"])
            assert [m.headers[ID] for m in shop.queue.unacked.values()] == ["huge"]
    assert any(isinstance(fact, Alarm) and "stays" not in fact.about for fact in shop.facts)


def spoilt(monkeypatch, name, problem):
    """Let the backlog's `bury` or `keep` meet the problem that the function returns, if any."""
    real = getattr(DurableInbox, name)

    async def meets(self, *args):
        if (error := problem(*args)) is not None:
            raise error
        return await real(self, *args)

    monkeypatch.setattr(DurableInbox, name, meets)


@pytest.mark.promise("G4", "I3")
async def test_nothing_passes_a_message_whose_dead_letter_cannot_be_written(shop, monkeypatch):
    """As on a full disk: the driver's own error, from the middle of a transaction."""
    full = Times(4, sqlite3.OperationalError("database or disk is full"))

    def problem(incoming, record, reason, history, attempts):
        try:
            full()
        except sqlite3.OperationalError as error:
            return error

    spoilt(monkeypatch, "bury", problem)

    @shop.handlers.on("order.refused")
    async def refuse(event, tx):
        raise ValueError("never")

    shop.queue.send(Incoming("orders", b"{}", {ID: "k-1", TYPE: "order.refused", KEY: "k"}))
    async with shop.consumer(retry=RetryPolicy(max_attempts=1)) as consumer:
        await until(lambda: full.left <= 2)
        shop.queue.send(message("k-2"), message("other", "o"))
        await until(lambda: shop.effects() == ["other"])
        assert (consumer.counts.dead, full.left > 0) == (0, True)
        await until(lambda: consumer.counts.done == 2)
    assert (consumer.counts.dead, shop.effects()) == (1, ["other", "k-2"])
    assert len(shop.queue.acked) == 3


@pytest.mark.promise("G4", "G7", "I3")
async def test_behind_a_message_that_no_row_can_hold_its_key_waits(shop, monkeypatch):
    spoilt(monkeypatch, "bury", lambda incoming, record, reason: ValueError("too odd"))

    @shop.handlers.on("order.refused")
    async def refuse(event, tx):
        raise ValueError("never")

    shop.queue.send(Incoming("orders", b"{}", {ID: "k-1", TYPE: "order.refused", KEY: "k"}))
    async with shop.consumer(retry=RetryPolicy(max_attempts=1)):
        await until(lambda: any(isinstance(fact, Alarm) for fact in shop.facts))
        shop.queue.send(message("k-2"), *(message(f"o-{n}", "o") for n in range(20)))
        await until(lambda: len(shop.effects()) == 20)
    assert "k-2" not in shop.effects()
    assert len(shop.queue.acked) == 20


@pytest.mark.promise("G4", "I3")
async def test_what_no_row_could_hold_is_tried_again_and_its_key_goes_on(shop, monkeypatch):
    odd = Times(2, ValueError("no rights on the table"))

    def problem(incoming, record, reason, history, attempts):
        try:
            odd()
        except ValueError as error:
            return error

    spoilt(monkeypatch, "bury", problem)

    @shop.handlers.on("order.refused")
    async def refuse(event, tx):
        raise ValueError("never")

    shop.queue.send(
        Incoming("orders", b"{}", {ID: "k-1", TYPE: "order.refused", KEY: "k"}), message("k-2")
    )
    retry = RetryPolicy(max_attempts=1)
    async with shop.consumer(retry=retry, misconfigured_seconds=0.01) as consumer:
        await until(lambda: shop.effects() == ["k-2"])
    assert (consumer.counts.dead, len(shop.queue.acked)) == (1, 2)
    assert len([fact for fact in shop.facts if isinstance(fact, Alarm)]) == 2


@pytest.mark.promise("G4", "G7")
async def test_nothing_is_kept_behind_a_message_that_no_row_can_hold(shop, monkeypatch):
    def problem(messages):
        return ValueError("too odd") if "k-1" in [record.id for _, record in messages] else None

    spoilt(monkeypatch, "keep", problem)
    shop.queue.send(message("o-1", "o"), message("k-1"), message("k-2"), message("o-2", "o"))
    async with shop.consumer(mode="durable"):
        await until(lambda: shop.effects() == ["o-1", "o-2"])
        shop.queue.send(message("k-3"), message("o-3", "o"))
        await until(lambda: shop.effects() == ["o-1", "o-2", "o-3"])
    assert len(shop.queue.acked) == 3
    assert [f.about for f in shop.facts if isinstance(f, Alarm)] == [
        "message k-1 can be neither handled nor stored"
    ]


@pytest.mark.promise("G2")
async def test_a_full_disk_is_waited_for_before_anything_is_kept(shop, monkeypatch):
    full = Times(3, sqlite3.OperationalError("database or disk is full"))

    def problem(messages):
        try:
            full()
        except sqlite3.OperationalError as error:
            return error

    spoilt(monkeypatch, "keep", problem)
    shop.queue.send(message("m-1"), message("m-2"))
    async with shop.consumer(mode="durable"):
        await until(lambda: shop.effects() == ["m-1", "m-2"])
    assert len(shop.queue.acked) == 2
    assert not [fact for fact in shop.facts if isinstance(fact, Alarm)]


@pytest.mark.promise("G7")
@pytest.mark.parametrize("mode", ["direct", "durable"])
async def test_a_dead_letter_that_was_refused_is_tried_again(mode):
    """R-D3: of a message without a handler."""
    store, queue, refused = MemoryStore(), MemoryQueue(), []
    bury = store.bury

    async def refuse(ids, reason, **more):
        if len(refused) < 2:
            refused.append(ids)
            raise ValueError("this server takes no such value")
        return await bury(ids, reason, **more)

    store.bury = refuse
    headers = {ID: "m-1", TYPE: "nobody"}
    queue.send(
        Incoming("orders", b"{}", headers), Incoming("orders", b"{}", {**headers, ID: "m-2"})
    )
    told = []
    watching = type("Watching", (), {"observe": lambda self, fact: told.append(fact)})()
    consumer = Consumer(
        MemorySource(queue), store, Handlers(name="payments"), mode=mode, observers=[watching],
        misconfigured_seconds=0.05,
    )  # fmt: skip
    async with consumer:
        await until(lambda: queue.is_empty)
        assert consumer.in_flight == 0
    dead = await store.find(Filter(state="dead"))
    assert sorted(record.id for record in dead) == ["inbox/payments/m-1", "inbox/payments/m-2"]
    alarms = [fact for fact in told if "neither handled nor stored" in getattr(fact, "about", "")]
    assert len(refused) == 2 == len(alarms)


async def test_a_relay_that_crashes_while_the_source_is_opened_is_noticed():
    """R-D: the consumer would have run without anything to work through its backlog."""
    store, source = MemoryStore(), MemorySource(name="orders")
    beat, broken = store.heartbeat, asyncio.Event()

    async def breaks(*arguments):
        if broken.is_set():
            raise RuntimeError("a bug of the store")
        return await beat(*arguments)

    async def never():
        broken.set()
        await asyncio.Event().wait()

    store.heartbeat, source.open = breaks, never
    consumer = Consumer(source, store, Handlers(), lease_seconds=0.3)
    with pytest.raises(RuntimeError, match="a bug of the store"):
        await asyncio.wait_for(consumer.start(), 20)
    assert not consumer.is_running
