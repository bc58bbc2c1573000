"""Operators under torture: they pause and limit the stream and its topic, replay, edit and retry
events, and cancel delayed ones, while everything else goes wrong.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count
from time import monotonic, sleep
from uuid import uuid4

from postroom import SyncOutbox
from postroom.commands import Edit
from postroom.engine.operations.request import ReplayRequest
from postroom.errors import PostroomError
from postroom.lookup import Filter
from postroom.model.clock import to_microseconds
from postroom.model.controls import STREAM, TOPIC
from postroom.record import State
from postroom.registry import load_store
from tests.torture.history import read
from tests.torture.remains import is_ours
from tests.torture.worlds import DELAYED, open_world, padding_of

PLACES = {STREAM: "main", TOPIC: "torture"}
SEEN_SECONDS = 60  # far more than the second that a relay needs: faults overlap
LIFTED_SECONDS = 120
BEFORE_SECONDS = 0.1  # a publish call that began before the pause was known
REPLAYED_PER_SECOND = 20
DEAD_SECONDS = 10  # until there is a dead letter to edit
EDITED, RETRIED, DELAYED_EVENTS = 3, 200, 6
BY = "torture"
_own_keys = count(10_000, 2)  # even: not strict


def pause(url, kind):
    _do(url, lambda s: s.set_control(kind, PLACES[kind], pause=True, by="torture"))


def limit(url, kind, *, per_second, in_flight):
    _do(
        url,
        lambda s: s.set_limits(
            kind, PLACES[kind], per_second=per_second, in_flight=in_flight, by="torture"
        ),
    )


def lift(url):
    """End all pauses and limits, as soon as the store lets us."""
    nothing = {"per_second": None, "in_flight": None}
    for kind, name in PLACES.items():
        _persist(url, lambda s, at=(kind, name): s.set_control(*at, pause=False, by=BY))
        _persist(url, lambda s, at=(kind, name): s.set_limits(*at, by=BY, **nothing))


def replay(url):
    """Start a replay of all dead letters of the topic; relays run it, one after the other if they
    die. Of those that others have sent elsewhere some would wait for a topic or a handler for ever.
    """

    async def work(store):
        dead = (await store.stats()).counts["dead"]
        wanted = Filter(state=State.DEAD, topic=PLACES[TOPIC])
        request = ReplayRequest(wanted, per_second=REPLAYED_PER_SECOND)
        one, _ = await store.start_operation(request.new_operation(dead, "all"), by=BY)
        return one.id

    return _do(url, work)


def edit(url, note):
    """Edit dead letters of the outbox: the same payload with one more header, under a new id."""

    async def dead(store):
        wanted = Filter(state=State.DEAD, stream=PLACES[STREAM], topic=PLACES[TOPIC], limit=1_000)
        found = [one.id for one in await store.find(wanted) if is_ours(one)]
        there = await store.look_up(found)
        return [one for one in found if one in there and there[one].replaced_by is None]

    async def work(store):
        deadline = monotonic() + DEAD_SECONDS
        while not (chosen := await dead(store)) and monotonic() < deadline:
            await asyncio.sleep(0.2)
        for name in chosen[:EDITED]:
            new = await store.edit(name, Edit(headers={"edited": "yes"}), by=BY)
            note("edited", id=name, new=new)
        return len(chosen)

    return _do(url, work)


def retry_now(url):
    async def work(store):
        found = await store.find(Filter(state=State.FAILED, limit=RETRIED))
        return await store.retry_now([one.id for one in found], by=BY)

    return _do(url, work)


def cancel_delayed(url, size, note):
    """Write events that are due in an hour, let all go soon, and cancel half of them meanwhile."""
    ids = [str(uuid4()) for _ in range(DELAYED_EVENTS)]
    with closing(open_world(url)) as world, world.transaction():
        for name in ids:
            key = f"k{next(_own_keys)}"
            world.add_key(key)
            world.write(SyncOutbox(), key, [(name, padding_of(name, 100), DELAYED)])
        world.commit()
    note("delayed", ids=ids)
    soon = to_microseconds(datetime.now(UTC) + timedelta(seconds=0.5 * size))
    _persist(url, lambda s: s.reschedule(ids, soon, by=BY))
    sleep(0.4 * size)
    _do(url, lambda s: s.cancel(ids[::2], "torture", by=BY))


def _persist(url, work):
    """Do it as soon as the store lets us."""
    deadline = monotonic() + LIFTED_SECONDS
    while True:
        try:
            return _do(url, work)
        except (PostroomError, OSError, TimeoutError):
            if monotonic() > deadline:
                raise
            sleep(0.2)


def is_seen(folder, kind, since, seconds=SEEN_SECONDS):
    """Wait until a relay has noted the pause that began then; returns whether one has."""
    deadline = monotonic() + seconds
    while monotonic() < deadline:
        found = [one for one in read(folder) if one["what"] == "paused" and one["at"] >= since]
        if any(one["kind"] == kind for one in found):
            return True
        sleep(0.1)
    return False


def _do(url, work):
    async def run():
        store = load_store(url)
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(asyncio.wait_for(run(), 20))


class PauseWatch:
    """Sees in a relay's process that it sends nothing once it knows of a pause."""

    def __init__(self):
        self._known = {}

    def changed(self, fact):
        if fact.paused:
            self._known[fact.kind, fact.name] = monotonic()
        else:
            self._known.pop((fact.kind, fact.name), None)

    def broken(self, stream, records, seconds):
        """Return what was sent in spite of a pause, or None."""
        began = monotonic() - seconds - BEFORE_SECONDS
        for record in records:
            for place in ((STREAM, stream), (TOPIC, record.topic)):
                if self._known.get(place, began) < began:
                    return f"T13 {record.id} was sent although {place} was known to be paused"
        return None
