"""Handlers whose effects a checker can count: one row each, with nothing that hides a double."""

import os

from postroom import Handlers

handlers = Handlers(concurrency=20)
SCHEME = os.environ.get("POSTROOM_TORTURE_STORE", "sqlite").partition(":")[0]


if SCHEME == "sqlite":

    @handlers.on("torture")
    async def effect(event, tx):
        data = event.data
        await tx.execute(
            "INSERT INTO torture_effect (id, k, n) VALUES (?, ?, ?)",
            (event.id, data["k"], data["n"]),
        )

else:

    @handlers.on("torture")
    async def effect(event, tx):
        data = event.data
        values = (event.id, data["k"], data["n"])
        sql = "INSERT INTO torture_effect (id, k, n) VALUES (%s, %s, %s)"
        if hasattr(tx, "execute"):
            await tx.execute(sql, values)
        else:
            async with tx.cursor() as cursor:
                await cursor.execute(sql, values)
