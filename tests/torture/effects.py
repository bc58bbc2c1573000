"""Handlers whose effects a checker can count: one row each, with nothing that hides a double."""

import os

from bson import ObjectId

from postroom import Handlers, Reject
from tests.torture import mischief
from tests.torture.marks import mark_in
from tests.torture.worlds import number_of

# Every other process lets events share transactions.
SHAPE = {"concurrency": 20} if os.getpid() % 2 else {"concurrency": 2, "batch": 10}
handlers = Handlers(time_limit_seconds=mischief.TIME_LIMIT_SECONDS, **SHAPE)
SCHEME = os.environ.get("POSTROOM_TORTURE_SCHEME", "sqlite")
seen = set()


@handlers.on("torture")
async def effect(event, tx):
    await keep(tx, "torture_effect", values_of(event))


@handlers.on("order.created")
@handlers.on("foreign")  # a message without a type has that of its topic
async def meet(event, tx):
    """What others have sent, or written past the outbox: known by the mark that it carries."""
    told = (event.id, event.key or "", event.payload, str(dict(event.headers)))
    await keep(tx, "torture_foreign", {"n": mark_in(*told)})


def values_of(event):
    return {"id": event.id, "k": event.data["k"], "n": number_of(event.data, event.kseq)}


async def keep(tx, table, values):
    if SCHEME == "mongodb":
        await _documents(tx, table).update_one(*_upsert(values), upsert=True, session=tx)
    elif hasattr(tx, "execute"):
        await tx.execute(_sql(table, values), tuple(values.values()))
    else:
        async with tx.cursor() as cursor:
            await cursor.execute(_sql(table, values), tuple(values.values()))


def keep_in_a_thread(event, tx):
    values = values_of(event)
    if SCHEME == "mongodb":
        _documents(tx, "torture_effect").update_one(*_upsert(values), upsert=True, session=tx)
    else:
        cursor = tx.cursor()
        cursor.execute(_sql("torture_effect", values), tuple(values.values()))
        cursor.close()


def _documents(tx, table):
    return tx.client.get_default_database()[table]


def _upsert(values):
    # By the server's clock: the one of this process may be an hour off.
    return {"_id": ObjectId()}, [{"$set": {**values, "at": "$$CLUSTER_TIME"}}]


def _sql(table, values):
    mark = "?" if SCHEME == "sqlite" else "%s"
    return f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join([mark] * len(values))})"


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


mischief.register(handlers, SCHEME, effect, keep_in_a_thread)
