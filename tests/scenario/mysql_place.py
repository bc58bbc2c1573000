"""The scenes' place on a MariaDB server: a database of its own."""

from __future__ import annotations

import asyncmy

from postroom.stores.mysql import MysqlStore
from tests.scenario.place import Place


class MysqlPlace(Place):
    def __init__(self, database):
        super().__init__()
        self.database = database
        self.store = MysqlStore(database.url)

    async def open(self):
        await self.store.migrate()
        await self.store.open()
        self.database.run(
            "CREATE TABLE effects (n INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(200))"
        )

    async def close(self):
        await super().close()
        await self.store.close()

    def another(self):
        return MysqlStore(self.database.url)

    async def write(self, *events, outbox=None):
        outbox = outbox or self.outbox
        connection = await asyncmy.connect(**self.database.arguments, charset="utf8mb4")
        try:
            async with outbox.transaction(connection):
                await outbox.add_many(connection, events)
        finally:
            await connection.ensure_closed()

    async def write_quietly(self, *events):
        async with self.database.writing() as connection:
            await self.outbox.add_many(connection, events)

    async def roll_back(self, *events):
        connection = await asyncmy.connect(**self.database.arguments, charset="utf8mb4")
        try:
            await connection.begin()
            await self.outbox.add_many(connection, events)
            await connection.rollback()
        finally:
            await connection.ensure_closed()

    async def effect(self, tx, name):
        async with tx.cursor() as cursor:
            await cursor.execute("INSERT INTO effects (name) VALUES (%s)", (name,))

    async def effects(self):
        return [name for (name,) in self.database.run("SELECT name FROM effects ORDER BY n")]
