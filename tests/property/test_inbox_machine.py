"""The inbox, step by step: whatever is committed, rolled back, repeated or lost, effects happen once.

A consumer works through messages that come again and again. The effect is written in the same
transaction as `accept`. The model is a set of what was committed.
"""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from postroom.event import Event
from postroom.inbox import Inbox, SyncInbox
from postroom.stores.memory import MemoryStore
from tests.contract import sqlite_file
from tests.property.profile import tries

CONSUMERS = st.sampled_from(["billing", "billing ", "Billing"])  # three names, not one
MESSAGES = st.sampled_from(["m1", "m2", "M1", "m1 ", "ü", "u\u0308"])


def message(name):
    return Event("order.paid", {}, id=name)


class SqliteHand:
    """A consumer of an SQLite file, through a connection of its own."""

    has_savepoints = True

    def __init__(self):
        self._folder = TemporaryDirectory()
        self._path = sqlite_file.make(Path(self._folder.name, "inbox.db"))
        self._connect()
        self._conn.execute("CREATE TABLE effects (consumer TEXT, id TEXT)")

    def _connect(self):
        self._conn = sqlite3.connect(self._path, isolation_level=None)

    def begin(self):
        self._conn.execute("BEGIN IMMEDIATE")

    def accept(self, consumer, name):
        return SyncInbox(consumer).accept(self._conn, message(name))

    def act(self, consumer, name):
        self._conn.execute("INSERT INTO effects VALUES (?, ?)", (consumer, name))

    def savepoint(self):
        self._conn.execute("SAVEPOINT half_way")

    def back_to_savepoint(self):
        self._conn.execute("ROLLBACK TO half_way")

    def commit(self):
        self._conn.execute("COMMIT")

    def roll_back(self):
        self._conn.execute("ROLLBACK")

    def die(self):
        self._conn.close()
        self._connect()

    def effects(self):
        return sorted(self._conn.execute("SELECT consumer, id FROM effects").fetchall())

    def close(self):
        self._conn.close()
        self._folder.cleanup()


class MemoryHand:
    """A consumer of the memory store; its effects are a list that a commit makes true."""

    has_savepoints = False

    def __init__(self):
        self._store = MemoryStore()
        self._runner = asyncio.Runner()
        self._effects = []

    def begin(self):
        self._tx, self._acts = self._store.begin(), []

    def accept(self, consumer, name):
        return self._runner.run(Inbox(consumer).accept(self._tx, message(name)))

    def act(self, consumer, name):
        self._acts.append((consumer, name))

    def commit(self):
        self._runner.run(self._tx.commit())
        self._effects += self._acts

    def roll_back(self):
        self._runner.run(self._tx.rollback())

    def die(self):
        self._tx.abort()

    def effects(self):
        return sorted(self._effects)

    def close(self):
        self._runner.close()


class InboxMachine(RuleBasedStateMachine):
    make = MemoryHand

    def __init__(self):
        super().__init__()
        self.hand = self.make()
        self.done: set[tuple[str, str]] = set()  # committed
        self.here: set[tuple[str, str]] = set()  # in the transaction that is open
        self.half_way: set[tuple[str, str]] | None = None  # at its savepoint
        self.is_open = False

    @precondition(lambda self: not self.is_open)
    @rule()
    def begin(self):
        self.hand.begin()
        self.is_open = True

    @precondition(lambda self: self.is_open)
    @rule(consumer=CONSUMERS, name=MESSAGES)
    def deliver(self, consumer, name):
        """True exactly if nobody has done it: not before, and not in this transaction."""
        is_new = (consumer, name) not in self.done | self.here
        assert self.hand.accept(consumer, name) is is_new
        if is_new:
            self.hand.act(consumer, name)
            self.here.add((consumer, name))

    @precondition(lambda self: self.is_open and self.hand.has_savepoints)
    @rule()
    def savepoint(self):
        self.hand.savepoint()
        self.half_way = set(self.here)

    @precondition(lambda self: self.half_way is not None)
    @rule()
    def back_to_savepoint(self):
        self.hand.back_to_savepoint()
        self.here = set(self.half_way)

    @precondition(lambda self: self.is_open)
    @rule()
    def commit(self):
        self.hand.commit()
        self.done |= self.here
        self._over()

    @precondition(lambda self: self.is_open)
    @rule(how=st.sampled_from(["roll_back", "die"]))
    def undo(self, how):
        getattr(self.hand, how)()
        self._over()

    def _over(self):
        self.here, self.half_way, self.is_open = set(), None, False

    @invariant()
    def each_effect_is_there_once(self):
        if not self.is_open:
            assert self.hand.effects() == sorted(self.done)

    def teardown(self):
        if self.is_open:
            self.hand.roll_back()
        self.hand.close()


class SqliteInboxMachine(InboxMachine):
    make = SqliteHand


InboxMachine.TestCase.settings = tries(60, steps=40)
SqliteInboxMachine.TestCase.settings = tries(60, steps=40)


@pytest.mark.promise("G6", "I1")
class TestMemoryInbox(InboxMachine.TestCase):
    """The memory store."""


@pytest.mark.promise("G6", "I1")
class TestSqliteInbox(SqliteInboxMachine.TestCase):
    """SQLite, with savepoints."""
