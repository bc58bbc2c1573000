"""How a relay leaves: its last heartbeat ends, its lanes are released, and a failure is reported."""

from __future__ import annotations

import asyncio

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.errors import StoreError, StoreLockedError, StoreRetryableError, StoreUnknownError
from postroom.observer import StoreTrouble
from postroom.record import short_error
from postroom.stores.memory import MemoryStore
from tests.scenario.place import Notes
from tests.sim.loop import SimClock, virtual_time

LEASE = 30.0
DOING = "releasing the lanes at the stop (they expire within 30 s)"


class Scripted(MemoryStore):
    """Notes its calls; `errors` are those of the next calls of leave."""

    def __init__(self, loop):
        super().__init__(now_us=lambda: 1_800_000_000_000_000 + int(loop.time() * 1_000_000))
        self.errors, self.calls = [], []
        self.beat_seconds, self.swallows = 0.0, ""

    async def heartbeat(self, stream, member, lease_seconds, held):
        self.calls.append("heartbeat")
        try:
            await self._swallowing("heartbeat", self.beat_seconds)
        except asyncio.CancelledError:
            self.calls.append("heartbeat cancelled")
            raise
        self.calls.append("heartbeat ended")
        return await super().heartbeat(stream, member, lease_seconds, held)

    async def read(self, request):
        await self._swallowing("read", self.beat_seconds)
        return await super().read(request)

    async def stage(self, stream, lanes, limit):
        await self._swallowing("stage", self.beat_seconds)
        return await super().stage(stream, lanes, limit)

    async def leave(self, stream, owner):
        self.calls.append("leave")
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            await error() if callable(error) else None
            raise error
        await super().leave(stream, owner)

    async def _swallowing(self, name, seconds):
        """As `asyncio.wait_for` of Python 3.11: a result that comes with a cancel wins."""
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            if name != self.swallows:
                raise
            self.swallows = ""  # the next one is heard


def played(story):
    """Run a story with a relay that holds its lanes; returns the store and what was reported."""
    notes = Notes()

    async def play(loop):
        store = Scripted(loop)
        relay = Relay(
            store, MemoryBroker(), clock=SimClock(loop), lease_seconds=LEASE, poll_seconds=1.0,
            observers=[notes],
        )  # fmt: skip
        await relay.start()
        await asyncio.sleep(1.0)
        store.calls.clear()
        await story(loop, store, relay)
        return store, [(fact.doing, fact.error) for fact in notes.of(StoreTrouble)]

    with virtual_time() as loop:
        return loop.run_until_complete(play(loop))


async def owners(store):
    return {lease.owner for lease in (await store.leases("main")).leases if lease.live}


@pytest.mark.promise("L4")
def test_a_heartbeat_under_way_ends_before_the_lanes_are_released():
    """A server goes on with a cancelled statement: its locks and changes outlive the cancel."""

    async def story(loop, store, relay):
        store.beat_seconds = 0.5
        relay._context.beat_now.set()
        await asyncio.sleep(0.1)
        await relay.stop()
        assert await owners(store) == set()

    store, troubles = played(story)
    assert "heartbeat cancelled" not in store.calls
    assert store.calls[-2:] == ["heartbeat ended", "leave"]
    assert troubles == []


@pytest.mark.promise("L4")
def test_a_heartbeat_that_hangs_does_not_hold_up_the_stop():
    async def story(loop, store, relay):
        store.beat_seconds = 10 * LEASE
        relay._context.beat_now.set()
        await asyncio.sleep(0.1)
        asked_at = loop.time()
        await relay.stop()
        assert loop.time() - asked_at < LEASE / 10
        assert await owners(store) == set()

    store, _ = played(story)
    assert store.calls[-2:] == ["heartbeat cancelled", "leave"]


@pytest.mark.promise("L4")
def test_a_release_that_meets_a_deadlock_is_repeated():
    async def story(loop, store, relay):
        store.errors = [StoreRetryableError("a deadlock"), StoreLockedError("lanes 7 are locked")]
        await relay.stop()
        assert await owners(store) == set()

    store, troubles = played(story)
    assert store.calls.count("leave") == 3
    assert troubles == []


@pytest.mark.promise("L4")
@pytest.mark.parametrize(
    ("error", "tries"), [(StoreRetryableError("unreachable"), 5), (StoreError("denied"), 1)]
)
def test_a_release_that_fails_is_reported_with_what_it_means(error, tries):
    async def story(loop, store, relay):
        store.errors = [error] * 100
        asked_at = loop.time()
        await relay.stop()
        assert loop.time() - asked_at < LEASE / 5
        assert not relay.is_running

    store, troubles = played(story)
    assert store.calls.count("leave") == tries
    assert troubles == [(DOING, short_error(error))]


@pytest.mark.promise("L4")
@pytest.mark.parametrize("first", [None, StoreLockedError("lanes 7 are locked")])
def test_a_release_without_an_answer_is_reported(first):
    async def story(loop, store, relay):
        store.errors = [*([first] if first else []), asyncio.Event().wait]
        asked_at = loop.time()
        await relay.stop()
        assert loop.time() - asked_at < LEASE / 5

    _, troubles = played(story)
    silence = StoreUnknownError("no answer within 5 s")
    assert troubles == [(DOING, short_error(first or silence))]


@pytest.mark.promise("L4")
def test_a_kill_ends_a_release_without_an_answer():
    async def story(loop, store, relay):
        store.errors = [asyncio.Event().wait]
        stopping = asyncio.create_task(relay.stop())
        await asyncio.sleep(1.0)
        asked_at = loop.time()
        await relay.kill()
        await stopping
        assert loop.time() == asked_at

    played(story)


@pytest.mark.parametrize("swallows", ["heartbeat", "read", "stage"])
def test_a_service_ends_although_its_driver_swallowed_the_cancel(swallows):
    """It went on until the next cancel, six seconds later."""

    async def story(loop, store, relay):
        store.swallows, store.beat_seconds = swallows, 100.0
        relay._context.beat_now.set()
        relay._context.look_soon.set()
        await asyncio.sleep(2.0)
        relay._context.wake()
        await asyncio.sleep(0.1)
        asked_at = loop.time()
        await relay.kill()
        assert loop.time() - asked_at < 2.0

    played(story)
