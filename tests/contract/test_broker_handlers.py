"""In-process handlers keep the contract of brokers, with and without threads and transactions."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager, contextmanager

import pytest

from postroom.engine.handlers.handlers import Handlers
from postroom.testing.broker import Arrival, BrokerContract
from postroom.transaction import Standing, SyncTransaction


class Inbox:
    """Rows that are there when their transaction has committed."""

    def __init__(self):
        self.rows = set()
        self.away = False

    @contextmanager
    def sync_transaction(self):
        if self.away:
            raise ConnectionError("no database")
        tx = Transaction(self)
        yield tx
        self.rows |= tx.written

    @asynccontextmanager
    async def transaction(self):
        with self.sync_transaction() as tx:
            yield tx


class Transaction(SyncTransaction):
    """The port that `accept` runs through."""

    def __init__(self, inbox):
        self._inbox = inbox
        self.written = set()

    def check(self):
        pass

    def accept(self, mark):
        row = (mark.consumer, mark.id)
        self.written.add(row)
        return row not in self._inbox.rows

    def insert(self, rows):
        raise NotImplementedError

    def count_up(self, counters):
        raise NotImplementedError

    def count_done(self, marks):
        raise NotImplementedError

    def hold(self, earlier):
        return True

    def is_open(self):
        return True

    def standing(self, proofs):
        return Standing.HELD

    def after_commit(self, call):
        return False


class Gate:
    """Stops a handler, whether it runs in a thread or on the loop."""

    def __init__(self, loop):
        self._loop = loop
        self.reached = asyncio.Event()
        self.in_thread = threading.Event()
        self.on_loop = asyncio.Event()

    def tell(self):
        self._loop.call_soon_threadsafe(self.reached.set)

    def release(self):
        self.in_thread.set()
        self.on_loop.set()


class HandlersContract(BrokerContract):
    abilities = frozenset({"refuse", "hold", "any_topic", "begin"})

    @pytest.fixture
    def inbox(self):
        return Inbox()

    @pytest.fixture
    def effects(self):
        return []

    @pytest.fixture
    def refused(self):
        return set()

    @pytest.fixture
    def gates(self):
        return {}

    @pytest.fixture
    def arrived(self, effects):
        async def read():
            return [Arrival(r.id, r.type, r.topic, r.key, r.payload) for r in effects]

        return read

    @pytest.fixture
    def refuse(self, refused):
        def refuse(record):
            refused.add(record.id)
            return record

        return refuse

    @pytest.fixture
    async def hold(self, gates):
        def hold(record):
            gates[record.id] = Gate(asyncio.get_running_loop())
            return gates[record.id]

        yield hold
        for gate in gates.values():
            gate.release()


class TestAsyncHandlers(HandlersContract):
    abilities = HandlersContract.abilities | {"outage"}

    @pytest.fixture
    async def broker(self, inbox, effects, refused, gates):
        handlers = Handlers(name="handlers", transaction=inbox.transaction)

        @handlers.default
        async def effect(event, tx):
            if event.id in gates:
                gates[event.id].tell()
                await gates[event.id].on_loop.wait()
            if event.id in refused:
                raise ValueError("refused")
            effects.append(event)

        await handlers.open()
        yield handlers
        await handlers.close()

    @pytest.fixture
    def outage(self, inbox):
        return (lambda: setattr(inbox, "away", True)), (lambda: setattr(inbox, "away", False))

    # Functions in this process are always there; it is their database that is away.
    test_health_of_one_that_is_away_says_so = None


class TestSyncHandlers(HandlersContract):
    @pytest.fixture
    async def broker(self, inbox, effects, refused, gates):
        handlers = Handlers(name="handlers", sync_transaction=inbox.sync_transaction)

        @handlers.default
        def effect(event, tx):
            if event.id in gates:
                gates[event.id].tell()
                assert gates[event.id].in_thread.wait(30)
            if event.id in refused:
                raise ValueError("refused")
            effects.append(event)

        await handlers.open()
        yield handlers
        await handlers.close()


class TestHandlersWithoutTransactions(HandlersContract):
    @pytest.fixture
    async def broker(self, effects, refused, gates):
        handlers = Handlers(transaction=False, concurrency=4)

        @handlers.default
        async def effect(event, tx):
            assert tx is None
            if event.id in gates:
                gates[event.id].tell()
                await gates[event.id].on_loop.wait()
            if event.id in refused:
                raise ValueError("refused")
            effects.append(event)

        await handlers.open()
        yield handlers
        await handlers.close()
