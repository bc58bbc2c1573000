"""Where a scene is played: a store, a way to write to it, and relays that are gone at the end."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import closing
from sqlite3 import connect

import aiosqlite

from postroom.brokers.memory import NullBroker
from postroom.engine.relay.relay import Relay
from postroom.lookup import Filter
from postroom.model import receipts
from postroom.outbox import Outbox, to_row
from postroom.retry import Constant, RetryPolicy
from postroom.store import Capabilities
from postroom.stores.memory import MemoryStore
from postroom.stores.sqlite import SqliteStore

PATIENCE = 60.0


class Receipts(NullBroker):
    """Confirms everything, each event with a receipt of its own, as Kafka does."""

    async def publish(self, batch, reporter):
        self.confirmed += len(batch)
        reporter.confirm(batch, [receipts.make("kafka", offset=one.seq) for one in batch])


QUICK = {
    "poll_seconds": 0.02,
    "retry": RetryPolicy(backoff=Constant(0.01)),
    "outage_seconds": 0.02,
    "max_outage_seconds": 0.05,
    "misconfigured_seconds": 0.03,
    "stop_seconds": 5.0,
}


async def until(condition, seconds=PATIENCE):
    """Wait until the condition holds; the one wait of these tests, and it has an end."""
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.005)


def ids(broker):
    """What arrived at a memory broker, in order."""
    return [message.record.id for message in broker.messages]


def first_seen(broker):
    """The same without repeats: an operator's verb takes the lane away from under the relay (L7)."""
    return list(dict.fromkeys(ids(broker)))


class Notes:
    """An observer that keeps what it is told."""

    def __init__(self):
        self.facts = []

    def observe(self, fact):
        self.facts.append(fact)

    def of(self, kind):
        return [fact for fact in self.facts if isinstance(fact, kind)]


class Reach:
    """The store as one relay reaches it: `before` and `after` a call something else may happen."""

    def __init__(self, inner, *, notify=True):
        self._inner = inner
        self.before, self.after = {}, {}
        known = inner.capabilities
        self.capabilities = Capabilities(
            transactions=known.transactions,
            concurrent_writers=known.concurrent_writers,
            server_clock=known.server_clock,
            notify=notify,
            shared=known.shared,
        )

    def __getattr__(self, name):
        call = getattr(self._inner, name)
        if name in ("transaction", "sync_transaction", "complaints") or not callable(call):
            return call

        async def reached(*args, **kwargs):
            if name in self.before:
                await self.before[name](*args)
            result = await call(*args, **kwargs)
            if name in self.after:
                await self.after[name](*args)
            return result

        return reached


class Stop:
    """A place in the code where a call stops for good, or until it is released."""

    def __init__(self, when=lambda *_: True):
        self.reached = asyncio.Event()
        self.released = asyncio.Event()
        self._when = when

    async def __call__(self, *args):
        if not self.released.is_set() and self._when(*args):
            self.reached.set()
            await self.released.wait()


class Place:
    """A store to look at (`store`), and what a scene does with it."""

    def __init__(self):
        self.outbox = Outbox()
        self.strict = Outbox(ordering="strict")
        self.relays = []

    def relay(self, broker, *, store=None, **options):
        """Make a relay with a way of its own to the store."""
        relay = Relay(store or self.another(), broker, **{**QUICK, **options})
        self.relays.append(relay)
        return relay

    async def close(self):
        for relay in self.relays:
            await relay.kill()

    async def die(self, relay):
        """Kill a relay, and let its leases run out without waiting for them."""
        owner, stream = relay.owner, relay.settings.stream
        await relay.kill()
        await self.store.leave(stream, owner)

    # -- looking ------------------------------------------------------------------------------
    async def record(self, event_id):
        return await self.store.get(event_id)

    async def states(self):
        """Event id → state."""
        found = await self.store.find(Filter(limit=1_000))
        return {record.id: record.state for record in found}

    async def all_done(self):
        counts = (await self.store.stats()).counts
        return all(state == "done" for state, count in counts.items() if count)

    async def owners(self, stream="main"):
        """Owner → how many lanes it holds."""
        tally = {}
        for lease in (await self.store.leases(stream)).leases:
            if lease.live:
                tally[lease.owner] = tally.get(lease.owner, 0) + 1
        return tally


class MemoryPlace(Place):
    def __init__(self):
        super().__init__()
        self.store = MemoryStore()
        self.done_effects = []

    def another(self):
        return self.store

    async def write(self, *events, outbox=None):
        async with self.store.transaction() as tx:
            await (outbox or self.outbox).add_many(tx, events)

    async def write_quietly(self, *events):
        """Commit without a kick, as a writer in another process does."""
        async with self.store.transaction() as tx:
            await tx.insert([to_row(event, event.topic or "outbox_events") for event in events])

    async def roll_back(self, *events):
        tx = self.store.begin()
        await self.outbox.add_many(tx, events)
        await tx.rollback()

    async def effect(self, tx, name):
        tx.after_commit(lambda: self.done_effects.append(name))

    async def effects(self):
        return self.done_effects


class SqlitePlace(Place):
    def __init__(self, path):
        super().__init__()
        self.path = path
        self.store = SqliteStore(path)

    async def open(self):
        await self.store.migrate()
        await self.store.open()
        with closing(connect(self.path)) as connection:
            connection.execute("CREATE TABLE effects (name TEXT)")

    async def close(self):
        await super().close()
        await self.store.close()

    def another(self):
        return SqliteStore(self.path)

    async def write(self, *events, outbox=None):
        outbox = outbox or self.outbox
        async with aiosqlite.connect(self.path, isolation_level=None) as connection:
            async with outbox.transaction(connection):
                await outbox.add_many(connection, events)

    async def write_quietly(self, *events):
        async with aiosqlite.connect(self.path, isolation_level=None) as connection:
            await connection.execute("BEGIN IMMEDIATE")
            await self.outbox.add_many(connection, events)
            await connection.commit()

    async def roll_back(self, *events):
        async with aiosqlite.connect(self.path, isolation_level=None) as connection:
            await connection.execute("BEGIN IMMEDIATE")
            await self.outbox.add_many(connection, events)
            await connection.rollback()

    async def effect(self, tx, name):
        await tx.execute("INSERT INTO effects (name) VALUES (?)", (name,))

    async def effects(self):
        with closing(connect(self.path)) as connection:
            return [
                name for (name,) in connection.execute("SELECT name FROM effects ORDER BY rowid")
            ]
