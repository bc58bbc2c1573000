"""What a run leaves in the store, seen by the store's own eyes: counts and dead letters."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

from postroom.engine.consumer.messages import restore
from postroom.lookup import Filter
from postroom.record import State
from postroom.registry import load_store
from tests.torture.marks import is_marked, mark_in
from tests.torture.worlds import size_of

PAGE = 1_000
INBOX_STREAM_PREFIX = "main"


async def migrate(url):
    await load_store(url).migrate()


async def counts(url):
    async with _opened(url) as store:
        return (await store.stats()).counts


async def dead_letters(url):
    """Return {id: (key, n, size)} of the dead letters in the outbox, and of those in the inbox;

    and the numbers of the foreign messages and rows among them.
    """
    dead, buried, foreign, after = {}, {}, [], 0
    async with _opened(url) as store:
        while True:
            page = await store.find(Filter(state=State.DEAD, limit=PAGE, after_seq=after))
            for record in page:
                told = (
                    record.id,
                    record.key or "",
                    record.payload or b"",
                    record.headers_json or "",
                )
                if is_marked(*told) or not _is_ours(record):
                    foreign.append(mark_in(*told))
                    continue
                data = json.loads(record.payload)
                where, event_id = dead, record.id
                if record.stream != INBOX_STREAM_PREFIX:
                    where, event_id = buried, restore(record).id
                where[event_id] = data["k"], data["n"], size_of(event_id, data["padding"])
            if len(page) < PAGE:
                return dead, buried, foreign
            after = page[-1].seq


def _is_ours(record):
    try:
        return {"k", "n", "padding"} <= json.loads(record.payload).keys()
    except (ValueError, AttributeError, TypeError):
        return False


@asynccontextmanager
async def _opened(url):
    store = load_store(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
