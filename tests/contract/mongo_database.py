"""A MongoDB database for each worker of the run, emptied before each test."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

from pymongo import AsyncMongoClient

from postroom.stores.mongo import MongoStore

COLLECTIONS = (
    "outbox",
    "lease",
    "member",
    "block",
    "counter",
    "inbox",
    "audit",
    "control",
    "operation",
)


def url_of(url, name):
    """Return a server's URL with another database in it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"/{name}"))


def own_url(url, what="contract"):
    """Return the URL of a database that no other worker touches."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    return url_of(url, f"postroom_{what}_{worker}")


@asynccontextmanager
async def emptied(url):
    """Yield the URL of this worker's database, with all collections made and empty."""
    ours = own_url(url)
    store = MongoStore(ours)
    await store.migrate()
    await store.close()
    async with AsyncMongoClient(ours) as client:
        database = client.get_default_database()
        for name in COLLECTIONS:
            await database[f"postroom_{name}"].delete_many({})
        await database["orders"].drop()
        await database.create_collection("orders")
    yield ours


@asynccontextmanager
async def in_transaction(url):
    """Yield a session in a transaction: committed at the end, aborted on an error."""
    async with AsyncMongoClient(url) as client, client.start_session() as session:
        async with await session.start_transaction():
            yield session
