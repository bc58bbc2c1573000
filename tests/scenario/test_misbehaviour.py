"""Handlers that end the transactions of their store, on every store."""

from __future__ import annotations

import uuid
from inspect import isawaitable

import pytest

from postroom.errors import TransactionEndedError
from postroom.testing.misbehaviour import MisbehaviourContract
from postroom.testing.transaction_tools import TransactionBench
from tests.scenario.every_store import open_store

AFTER_END = {"sqlite": "transaction", "postgres": "transaction", "mysql": "transaction"}


async def result(value):
    return (await value) if isawaitable(value) else value


class StoreBench(TransactionBench):
    """Ends transactions by statements, which nobody can refuse; by methods: see `MethodBench`."""

    def __init__(self, store, kind, sync):
        self.store, self.kind, self.sync = store, kind, sync
        self.table = f"orders_{uuid.uuid4().hex[:8]}"
        self.after_end, self.aborts = AFTER_END.get(kind), kind in ("postgres", "mongo")
        self.factory = store.sync_transaction if sync else store.transaction

    async def prepare(self):
        try:
            async with self.store.transaction() as tx:
                await self.execute(tx, f"CREATE TABLE {self.table} (name VARCHAR(99))")
        except TransactionEndedError:  # MySQL commits at DDL
            assert self.kind == "mysql"

    async def dispose(self):
        try:
            async with self.store.transaction() as tx:
                await self.execute(tx, f"DROP TABLE {self.table}")
        except TransactionEndedError:
            assert self.kind == "mysql"

    async def begin(self): ...
    async def commit(self, tx): ...
    async def rollback(self, tx): ...
    async def autocommitting(self): ...

    async def commit_inside(self, tx):
        await self.execute(tx, "COMMIT")

    async def roll_back_inside(self, tx):
        await self.execute(tx, "ROLLBACK")

    async def execute(self, tx, sql):
        if self.kind == "mysql":
            cursor = tx.cursor()
            await result(cursor.execute(sql))
            await result(cursor.close())
        else:
            await result(tx.execute(sql))

    async def order(self, tx, name):
        await self.execute(tx, f"INSERT INTO {self.table} (name) VALUES ('{name}')")

    async def rows(self, table="postroom_outbox"):
        async with self.store.transaction() as tx:
            sql = f"SELECT {'name' if table == 'orders' else 'id'} FROM "
            sql += self.table if table == "orders" else table
            if self.kind == "mysql":
                async with tx.cursor() as cursor:
                    await cursor.execute(sql)
                    found = await cursor.fetchall()
            else:
                found = await (await tx.execute(sql)).fetchall()
        texts = [row[0].decode() if isinstance(row[0], bytes) else row[0] for row in found]
        return [{"name": text, "id": text} for text in texts]


class MethodBench(StoreBench):
    """Ends transactions by the driver's methods."""

    def __init__(self, store, kind, sync):
        super().__init__(store, kind, sync)
        if kind == "postgres":
            self.after_end = "refused"

    async def commit_inside(self, tx):
        await result(tx.commit())

    async def roll_back_inside(self, tx):
        await result(tx.rollback())


class MongoBench(StoreBench):
    """MongoDB has nothing but the methods of a session."""

    def __init__(self, store, kind, sync):
        super().__init__(store, kind, sync)
        self.after_end = "refused"

    async def prepare(self):
        await self.found(self.store._db.client).insert_one({"_id": "there"})

    async def dispose(self):
        await self.found(self.store._db.client).drop()

    def found(self, client):
        return client[self.store._db.database.name][self.table]

    async def order(self, tx, name):
        await result(self.found(tx.client).insert_one({"name": name}, session=tx))

    async def fail(self, tx):
        await result(self.found(tx.client).insert_one({"_id": "there"}, session=tx))

    async def commit_inside(self, tx):
        await result(tx.commit_transaction())

    async def roll_back_inside(self, tx):
        await result(tx.abort_transaction())

    async def close_inside(self, tx):
        await result(tx.end_session())

    async def rows(self, table="postroom_outbox"):
        client = self.store._db.client
        if table == "orders":
            return await self.found(client).find({"name": {"$exists": True}}).to_list()
        found = client[self.store._db.database.name][table].find()
        return [document["_id"] async for document in found]


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
class TestLent(MisbehaviourContract):
    @pytest.fixture(params=["sqlite", "postgres", "mysql", "mongo"])
    async def store(self, request):
        async with open_store(request) as (_, store):
            yield store, request.param

    @pytest.fixture(params=["statement", "method"])
    async def bench(self, request, store, sync):
        kinds = {"mongo": MongoBench}
        opened, kind = store
        usual = StoreBench if request.param == "statement" else MethodBench
        bench = kinds.get(kind, usual)(opened, kind, sync)
        await bench.prepare()
        yield bench
        await bench.dispose()
