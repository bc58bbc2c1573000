"""Operators under torture: they pause and limit the stream and its topic, and see that relays obey."""

from __future__ import annotations

import asyncio
from time import monotonic, sleep

from postroom.errors import PostroomError
from postroom.model.controls import STREAM, TOPIC
from postroom.registry import load_store
from tests.torture.history import read

PLACES = {STREAM: "main", TOPIC: "torture"}
SEEN_SECONDS = 60  # far more than the second that a relay needs: faults overlap
LIFTED_SECONDS = 120
BEFORE_SECONDS = 0.1  # a publish call that began before the pause was known


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
    deadline = monotonic() + LIFTED_SECONDS
    while True:
        try:
            for kind in PLACES:
                _do(
                    url, lambda s, kind=kind: s.set_control(kind, PLACES[kind], pause=False, by="t")
                )
                limit(url, kind, per_second=None, in_flight=None)
        except (PostroomError, OSError, TimeoutError):
            if monotonic() > deadline:
                raise
            sleep(0.2)
        else:
            return


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
            await work(store)
        finally:
            await store.close()

    asyncio.run(asyncio.wait_for(run(), 20))


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
