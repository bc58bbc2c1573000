"""Handlers whose effects a checker can count: one row each, with nothing that hides a double."""

import os
from collections import Counter

from bson import ObjectId

from postroom import Handlers, Reject
from tests.torture.worlds import number_of

SHARING = os.getpid() % 2 == 0  # every other process lets events share transactions
handlers = Handlers(concurrency=20, batch=10 if SHARING else 1)
SCHEME = os.environ.get("POSTROOM_TORTURE_SCHEME", "sqlite")
failures = Counter()
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

    In a shared transaction, and by itself as well.
    """
    if failures[event.id] <= SHARING:
        failures[event.id] += 1
        raise RuntimeError("not yet")
    await effect(event, tx)


@handlers.on("poison")
async def refuse(event, tx):
    del event, tx
    raise Reject("poison")
