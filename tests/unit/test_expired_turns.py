"""Events whose time ends after they were admitted, and before they are sent."""

from __future__ import annotations

import asyncio

import pytest

from postroom import Handlers
from postroom.broker import Outcome, Verdict
from postroom.engine.relay import key_run
from postroom.lookup import Filter
from postroom.model.clock import from_microseconds
from tests.unit.test_paused import event, played


@pytest.fixture(autouse=True)
def _host_clock_is_the_loops(monkeypatch):
    """In virtual time, the host's clock is that of the store."""
    clock = {}
    monkeypatch.setattr(key_run, "host_microseconds", lambda: clock["store"].now_us())
    return clock


def expiring(scene, clock, name, seconds, *more):
    clock["store"] = scene.store
    return event(
        name, *more, deliver_by=from_microseconds(scene.store.now_us() + seconds * 1_000_000)
    )


def test_an_event_of_unknown_outcome_is_not_sent_again_after_its_time(_host_clock_is_the_loops):
    async def story(scene):
        tries = []

        def unknown(record):
            tries.append(record.id)
            return Outcome(Verdict.UNKNOWN, "no reply") if record.id == "1" else None

        hold = scene.broker.hold()
        scene.broker.script(unknown)
        first = expiring(scene, _host_clock_is_the_loops, "1", 5, "k")
        await scene.add(first, event("2", "k"))
        async with scene.running() as relay:
            await hold.reached.wait()
            await asyncio.sleep(6)
            hold.release()
            await scene.until("2")
            await asyncio.sleep(1)
            assert tries.count("1") == 1
            assert relay.counts.expired == 1
        found = await scene.store.find(Filter())
        assert [(r.state, r.attempts) for r in found] == [("expired", 0), ("done", 0)]

    played(story)


def test_a_handler_that_has_not_started_does_not_start_after_its_time(_host_clock_is_the_loops):
    async def story(scene):
        handlers, ran, gate = Handlers(name="h"), [], asyncio.Event()

        @handlers.on("done")
        async def handle(event, tx):
            ran.append(event.id)
            await gate.wait()

        second = expiring(scene, _host_clock_is_the_loops, "2", 5, "k")
        await scene.add(event("1", "k"), second, event("3", "k"))
        async with scene.running(handlers) as relay:
            while not ran:
                await asyncio.sleep(0.01)
            await asyncio.sleep(6)
            gate.set()
            await asyncio.sleep(5)
            assert ran == ["1", "3"]
            assert relay.counts.expired == 1
        found = await scene.store.find(Filter())
        assert [(r.state, r.attempts) for r in found] == [("done", 1), ("expired", 0), ("done", 1)]

    played(story)
