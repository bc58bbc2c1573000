"""A wiki on MongoDB: pages are rendered and indexed by handlers, without a broker.

Start the server first, from the project's folder, or name your own, a replica set:

  docker compose -f examples/wiki/compose.yaml up --detach --wait
  python -m examples.wiki
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from pymongo import AsyncMongoClient

from examples.places import arguments, mongo_database
from examples.wiki import app
from postroom import Filter, State, migrate
from postroom.stores.mongo import MongoStore

PATIENCE_SECONDS = 60.0


def main() -> int:
    """Run the wiki in a new database."""
    given = arguments("wiki", __doc__, "mongo").parse_args()
    with mongo_database(given.mongo) as url:
        asyncio.run(run(url))
    return 0


async def run(url: str) -> None:
    """Run the wiki and print the results."""
    await migrate(url)
    async with MongoStore(url) as store, AsyncMongoClient[dict[str, Any]](url) as client:
        wiki = client.get_default_database()
        for name in ("pages", "rendered", "search"):
            await wiki.create_collection(name)

        print("\n1. Pages are saved, each together with its event")
        for text in ("All about cats", "All about cats and dogs"):
            page = await app.save(client, "Animals", text)
            print(f"   {page['_id']}, revision {page['revision']}")
        await app.save(client, "Flaky", "The renderer fails twice for this one")
        await app.save(client, "Attack", "<script>alert(1)</script>")
        try:
            async with client.start_session() as session, await session.start_transaction():
                page = await app.write_page(wiki, "Half", "never to be seen", session)
                await app.outbox.add(session, app.page_saved(page))
                raise KeyboardInterrupt  # the writer dies before its commit
        except KeyboardInterrupt:
            print("   Half: its writer died before the commit, and left neither page nor event")
        await show(store)

        print("\n2. A relay renders and indexes them")
        async with app.relay(url):
            await until(lambda: settled(store, 4))
            await show(store)
            print(f"   the renderer was tried {app.tries['Flaky:1']} times for Flaky")
            (dead,) = await store.find(Filter(state=State.DEAD))
            print(f"   dead letter {dead.id}: {dead.last_error}")

            print("\n3. Another program writes a page without an event")
            await app.write_page(wiki, "Lost", "This page has no event")
            print("   Lost, revision 1: no event")

            print("\n4. The reconciler looks for pages without a result")
            reconciler = app.reconciler(url)
            report = await reconciler.run_once()
            print(f"   it looked at {report.looked} pages and added {', '.join(report.repaired)}")
            await until(lambda: settled(store, 5))
            again = await reconciler.run_once()
            print(f"   again: it looked at {again.looked} pages and added {len(again.repaired)}")
            await reconciler.close()

        print("\n5. The result")
        async for page in wiki["rendered"].find().sort("_id"):
            print(f"   {page['_id']:12} {page['html']}")
        found = [page["_id"] async for page in wiki["search"].find({"words": "dogs"})]
        print(f"   a search for 'dogs' finds: {', '.join(found)}")
        await show(store)


async def show(store: MongoStore) -> None:
    """Print the number of events in each state."""
    counts = (await store.stats()).counts
    print("   events:", ", ".join(f"{n} {state}" for state, n in counts.items() if n))


async def settled(store: MongoStore, number: int) -> bool:
    """Return whether at least this number of events is done or dead."""
    counts = (await store.stats()).counts
    return counts[State.DONE] + counts[State.DEAD] >= number


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition is true, with a time limit."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
