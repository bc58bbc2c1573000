"""Writers that change pages and add events in one transaction, and a check that nothing is amiss."""

from __future__ import annotations

import asyncio

from pymongo import AsyncMongoClient, ReturnDocument
from pymongo.errors import PyMongoError

from postroom.event import Event
from postroom.outbox import Outbox
from tests.scenario.place import until

PATIENCE = 120.0  # for a busy machine: elections and a whole lease may have to be waited for
PAGES = ("a", "b", "c")


class Traffic:
    """Several writers who meet on a few pages; each change is a version and an event."""

    def __init__(self, url, writers=4):
        self.url = url
        self.writers = writers
        self._stop = asyncio.Event()
        self._tasks = []
        self.written = 0

    async def __aenter__(self):
        self.clients = [
            AsyncMongoClient(self.url, serverSelectionTimeoutMS=5_000, socketTimeoutMS=4_000)
            for _ in range(self.writers)
        ]
        self._tasks = [asyncio.create_task(self._write(client)) for client in self.clients]
        return self

    async def __aexit__(self, *_):
        await self.stop()
        for client in self.clients:
            await client.close()

    async def stop(self):
        """Let every writer end what it is at."""
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def more(self, count=30, seconds=PATIENCE):
        """Wait until so many changes more have been committed."""
        wanted = self.written + count
        await until(lambda: self.written >= wanted, seconds)

    async def _write(self, client):
        pages = client.get_default_database()["pages"]
        number = 0

        async def save(session):
            page = await pages.find_one_and_update(
                {"_id": PAGES[number % len(PAGES)]},
                {"$inc": {"version": 1}},
                upsert=True,
                return_document=ReturnDocument.AFTER,
                session=session,
            )
            name, version = page["_id"], page["version"]
            event = Event("page.saved", version, id=f"{name}:{version}", key=name)
            await Outbox().add(session, event)

        while not self._stop.is_set():
            number += 1
            try:
                async with client.start_session() as session:
                    await session.with_transaction(save)
                self.written += 1
            except PyMongoError:  # it may have been committed all the same: the pages know
                await asyncio.sleep(0.05)

    async def versions(self):
        """Page → how often it was saved, as the database has it."""
        async with AsyncMongoClient(self.url) as client:
            pages = client.get_default_database()["pages"]
            return {page["_id"]: page["version"] async for page in pages.find()}


def first_seen(messages):
    """Key → the versions that arrived, in their order, without repeats."""
    seen = {}
    for message in messages:
        versions = seen.setdefault(message.record.key, [])
        if message.record.data not in versions:
            versions.append(message.record.data)
    return seen


async def check(traffic, broker, seconds=PATIENCE):
    """Everything that was committed arrives, nothing else does, and each key in its order."""
    expected = {page: list(range(1, n + 1)) for page, n in (await traffic.versions()).items()}

    def arrived():
        seen = first_seen(broker.messages)
        return {key: len(v) for key, v in seen.items()} == {k: len(v) for k, v in expected.items()}

    await until(arrived, seconds)
    assert first_seen(broker.messages) == expected
