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


async def unfinished(url):
    """Return how much the running operations still have to do, at least one for each."""
    async with _opened(url) as store:
        found = await store.operations(unfinished=True)
        return sum(
            max(1, (one.total or 0) - one.handled) for one in found if one.state == "running"
        )


async def operated(url):
    """Return the ids of cancelled events, {dead letter: the id it was sent as instead}, the ids of
    those of the latter that are nowhere, and operations that are not done.
    """
    async with _opened(url) as store:
        cancelled = [one async for one in _all(store, State.CANCELLED)]
        dead = [one.id async for one in _all(store, State.DEAD)]
        replaced = {}
        for at in range(0, len(dead), PAGE):
            there = await store.look_up(dead[at : at + PAGE])
            replaced |= {i: one.replaced_by for i, one in there.items() if one.replaced_by}
        known = set()
        names = list(replaced.values())
        for at in range(0, len(names), PAGE):
            known |= set(await store.look_up(names[at : at + PAGE]))
        undone = [
            f"{one.id} is {one.state}: {one.error}"
            for one in await store.operations(limit=PAGE)
            if one.state != "done"
        ]
    return [one.id for one in cancelled], replaced, sorted(set(names) - known), undone


async def _all(store, state):
    after = 0
    while True:
        page = await store.find(Filter(state=state, limit=PAGE, after_seq=after))
        for record in page:
            yield record
        if len(page) < PAGE:
            return
        after = page[-1].seq


async def dead_letters(url, replaced=None):
    """Return {id: (key, n, size)} of the dead letters in the outbox, and of those in the inbox;

    and the numbers of the foreign messages and rows among them. An edited dead letter stands for
    the one that it replaced.
    """
    dead, buried, foreign, after = {}, {}, [], 0
    replaced = replaced or {}
    first = _first_ids(replaced)
    async with _opened(url) as store:
        while True:
            page = await store.find(Filter(state=State.DEAD, limit=PAGE, after_seq=after))
            for record in page:
                if record.id in replaced:
                    continue
                told = (
                    record.id,
                    record.key or "",
                    record.payload or b"",
                    record.headers_json or "",
                )
                if is_marked(*told) or not is_ours(record):
                    foreign.append(mark_in(*told))
                    continue
                data = json.loads(record.payload)
                where, event_id = dead, first.get(record.id, record.id)
                if record.stream != INBOX_STREAM_PREFIX:
                    where, event_id = buried, restore(record).id
                where[event_id] = data["k"], data["n"], size_of(event_id, data["padding"])
            if len(page) < PAGE:
                return dead, buried, foreign
            after = page[-1].seq


def _first_ids(replaced):
    """Return {id: the id that its event had before all edits}."""
    before = {new: old for old, new in replaced.items()}
    first = {}
    for new in before:
        first[new] = before[new]
        while first[new] in before:
            first[new] = before[first[new]]
    return first


def is_ours(record):
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
