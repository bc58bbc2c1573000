"""Handlers whose effects a checker can count: one row each, with nothing that hides a double."""

import os

from bson import ObjectId

from postroom import Handlers, Reject
from tests.torture.worlds import number_of

# Every other process lets events share transactions.
handlers = Handlers(concurrency=20) if os.getpid() % 2 else Handlers(concurrency=2, batch=10)
SCHEME = os.environ.get("POSTROOM_TORTURE_SCHEME", "sqlite")
seen = set()
SQL = "INSERT INTO torture_effect (id, k, n) VALUES (%s, %s, %s)"


@handlers.on("torture")
async def effect(event, tx):
    values = (event.id, event.data["k"], number_of(event.data, event.kseq))
    if SCHEME == "mongodb":
        effects = tx.client.get_default_database()["torture_effect"]
        row = dict(zip(("id", "k", "n"), values, strict=True))
        # By the server's clock: the one of this process may be an hour off.
        made = {**row, "at": "$$CLUSTER_TIME"}
        await effects.update_one({"_id": ObjectId()}, [{"$set": made}], upsert=True, session=tx)
    elif SCHEME == "sqlite":
        await tx.execute(SQL.replace("%s", "?"), values)
    elif hasattr(tx, "execute"):
        await tx.execute(SQL, values)
    else:
        async with tx.cursor() as cursor:
            await cursor.execute(SQL, values)


@handlers.on("shaky")
async def effect_at_last(event, tx):
    """The first time that a process sees it, it fails: its key waits, and it is tried again.

    In a shared transaction it parts those that share it.
    """
    if event.id not in seen:
        seen.add(event.id)
        raise RuntimeError("not yet")
    await effect(event, tx)


@handlers.on("poison")
async def refuse(event, tx):
    del event, tx
    raise Reject("poison")
