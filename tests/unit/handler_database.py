"""A database for handlers, with faults on demand, and what tests of handlers ask of it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager

from postroom.engine.handlers.handlers import Handlers
from postroom.store import Capabilities, Tables
from postroom.testing.broker_tools import RecordingReporter, make_record
from postroom.transaction import Acceptance, Standing, SyncTransaction

PATIENCE = 60


class Database:
    """Rows that are there once their transaction has committed, and faults on demand."""

    tables = Tables()
    capabilities = Capabilities()

    def __init__(self):
        self.rows = []
        self.log = []
        self.open_error = self.accept_error = self.commit_error = None
        self.accept_gate = None
        self.exits = []

    @contextmanager
    def sync_transaction(self):
        if self.open_error:
            raise self.open_error
        self.log.append("begin")
        tx = Tx(self)
        try:
            yield tx
        except BaseException as error:
            self.log.append("rollback")
            self.exits.append(type(error))
            raise
        if self.commit_error:
            raise self.commit_error
        self.rows += tx.rows
        self.log.append("commit")

    @asynccontextmanager
    async def transaction(self):
        with self.sync_transaction() as tx:
            yield tx

    def effects(self):
        return [row for row in self.rows if row[0] == "effect"]


class Tx(SyncTransaction):
    def __init__(self, database):
        self.database = database
        self.rows = []

    def check(self):
        pass

    def accept(self, mark):
        self.database.log.append(f"accept {mark.consumer}")
        if self.database.accept_error:
            raise self.database.accept_error
        row = ("inbox", mark.consumer, mark.id)
        if row in self.database.rows:
            return False
        self.rows.append(row)
        return True

    def count_done(self, marks):
        self.database.log.append("count")
        rows = [("inbox", mark.consumer, mark.id) for mark in marks]
        return sum(row in self.rows or row in self.database.rows for row in rows)

    def hold(self, earlier):
        return True

    def is_open(self):
        return True

    def standing(self, proofs):
        self.database.log.append("look")
        rows = [
            ("inbox", mark.consumer, mark.id) for mark in proofs if isinstance(mark, Acceptance)
        ]
        return Standing.HELD if all(row in self.rows for row in rows) else Standing.LOST

    def insert(self, rows): ...
    def count_up(self, counters): ...
    def after_commit(self, call): ...


def made(database, **options):
    return Handlers(
        transaction=database.transaction,
        sync_transaction=database.sync_transaction,
        **{"name": "handlers", **options},
    )


async def outcome_of(handlers, record=None, reporter=None):
    reporter = reporter or RecordingReporter()
    record = record or make_record()
    async with asyncio.timeout(PATIENCE):
        await handlers.publish([record], reporter)
    return reporter.outcome(record)._replace(traceback="")
