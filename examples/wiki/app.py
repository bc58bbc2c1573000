"""The wiki itself: saving a page, and the handlers of its event.

A page and its event are one transaction. Rendering and indexing are handlers of the relay. They
write by a natural key and are idempotent.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from pymongo import AsyncMongoClient, ReturnDocument
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.database import AsyncDatabase

from postroom import Constant, Event, Handlers, Outbox, Record, Reject, Relay, RetryPolicy
from postroom.stores.mongo import HasResult, Reconciler, upsert

Document = dict[str, Any]

PAGE_SAVED = "page.saved"
outbox = Outbox(routes={"page.*": "wiki"})
handlers = Handlers(name="wiki")
tries: Counter[str] = Counter()


# -- writing --------------------------------------------------------------------------------------
def page_saved(page: Document) -> Event:
    """Return the event of a page. Its id is its natural key: page and revision."""
    return Event(
        PAGE_SAVED,
        {"text": page["text"], "revision": page["revision"]},
        id=f"{page['_id']}:{page['revision']}",
        key=page["_id"],
    )


async def save(client: AsyncMongoClient[Document], name: str, text: str) -> Document:
    """Save a page and its event: both are committed, or neither is."""

    async def write(session: AsyncClientSession) -> Document:
        page = await write_page(pages(session), name, text, session)
        await outbox.add(session, page_saved(page))
        return page

    async with client.start_session() as session:
        page = await session.with_transaction(write)
    outbox.kick()
    return page


async def write_page(
    where: AsyncDatabase[Document], name: str, text: str, session: AsyncClientSession | None = None
) -> Document:
    """Write the page alone, without its event."""
    page = await where["pages"].find_one_and_update(
        {"_id": name},
        {"$set": {"text": text}, "$inc": {"revision": 1}},
        upsert=True,
        return_document=ReturnDocument.AFTER,
        session=session,
    )
    assert page is not None
    return page


def pages(session: AsyncClientSession) -> AsyncDatabase[Document]:
    """Return the wiki's database, on the client of this session."""
    return session.client.get_default_database()


# -- handlers -------------------------------------------------------------------------------------
@handlers.on(PAGE_SAVED)
async def render(event: Record, tx: AsyncClientSession) -> None:
    """Render a page as HTML. For one page the renderer fails at first."""
    tries[event.id] += 1
    if event.key == "Flaky" and tries[event.id] < 3:
        raise TimeoutError("the renderer does not answer")
    if "<script" in event.data["text"]:
        raise Reject("this page can never be rendered: it contains a script")
    html = f"<h1>{event.key}</h1><p>{event.data['text']}</p>"
    await upsert(pages(tx)["rendered"], event.id, {"html": html}, tx=tx)


@handlers.on(PAGE_SAVED)
async def index(event: Record, tx: AsyncClientSession) -> None:
    """Put the words of a page into the search index; an older revision changes nothing."""
    words = sorted(set(event.data["text"].lower().split()))
    revision = event.data["revision"]
    await upsert(pages(tx)["search"], event.key, {"words": words}, tx=tx, version=revision)


# -- services -------------------------------------------------------------------------------------
def relay(url: str) -> Relay:
    """Return the relay of the wiki; its destination is the handlers above."""
    retry = RetryPolicy(max_attempts=5, backoff=Constant(0.1))
    return Relay(url, handlers, retry=retry, poll_seconds=0.1)


def reconciler(url: str) -> Reconciler:
    """Return the reconciler that adds events for pages without a result."""
    return Reconciler(url, "pages", page_saved, HasResult("rendered"), routes={"page.*": "wiki"})
