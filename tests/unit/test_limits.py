"""Limits of streams and topics: how fast relays send, and how many events are in flight."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest

from postroom import Handlers
from postroom.broker import Outcome, Verdict
from postroom.engine.relay.limits import Limit, Limits
from postroom.errors import ConfigError
from postroom.lookup import Filter
from postroom.model.controls import Control, check_limits
from tests.unit.test_paused import event, played


async def limit(scene, kind, name, per_second=None, in_flight=None):
    return await scene.store.set_limits(
        kind, name, per_second=per_second, in_flight=in_flight, by="anna"
    )


def times(scene):
    """Note when each event arrives."""
    found = []
    scene.broker.script(lambda record: found.append((scene.loop.time(), record)))
    return found


def most_in(found, seconds):
    """Return the largest number of events in any window of this length."""
    moments = [at for at, _ in found]
    return max(sum(start <= at < start + seconds for at in moments) for start in moments)


# -- one limit, by hand -------------------------------------------------------------------------
def one(rate=None, most=None):
    return Limit(Control("topic", "t", False, max_per_second=rate, max_in_flight=most), now=0.0)


def test_tokens_come_with_time_and_not_in_advance():
    limit = one(rate=8.0)
    assert limit.room(0.5, 0, now=0.0) == 1
    limit.take()
    assert limit.room(0.5, 0, now=0.0) == 0
    assert limit.next_at(0.5, now=0.0) == pytest.approx(0.25)
    assert limit.room(0.5, 0, now=0.2) == 0
    assert limit.room(0.5, 0, now=0.25) == 1
    assert limit.room(0.5, 0, now=1_000.0) == 1  # what was not sent is not made up for
    assert one(rate=400.0).room(1.0, 0, now=1_000.0) == 100


def test_a_relay_with_few_lanes_has_a_small_share_and_goes_on():
    limit = one(rate=0.1)
    limit.take()
    assert limit.room(1 / 64, 0, now=600.0) == 0
    assert limit.room(1 / 64, 0, now=640.0) == 1
    assert one(most=3).room(1 / 64, 0, now=0.0) == 1
    assert one(most=3).room(1 / 64, 1, now=0.0) == 0
    assert one(most=100).room(0.5, 30, now=0.0) == 20


def test_a_schedule_has_one_place_for_each_event_and_an_end():
    limit = one(rate=10.0)
    limit.take()
    assert [round(limit.place(1.0, 0.0), 3) for _ in range(3)] == [0.1, 0.2, 0.3]
    for _ in range(20_000):
        last = limit.place(1.0, 0.0)
    assert last == 600.0


@pytest.mark.parametrize(
    "limits",
    [(0.0, None), (-1.0, None), (float("nan"), None), (float("inf"), None), (None, 0), (None, -5)],
)
def test_limits_that_make_no_sense(limits):
    with pytest.raises(ConfigError, match="between"):
        check_limits("stream", "main", *limits)
    with pytest.raises(ConfigError, match="not for a consumer"):
        check_limits("consumer", "mail", 1.0, 1)


def test_a_share_that_grows_counts_within_seconds_and_workers_take_turns():
    share, clock = [1 / 64], SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    limits = Limits("main", clock, lambda: share[0], lambda: ())
    changes, freed = limits.apply([Control("stream", "main", False, max_per_second=0.1)])
    assert [change.max_per_second for change in changes] == [0.1]
    assert not freed
    record = SimpleNamespace(topic="t")
    assert limits.room(0, 10) == 1
    assert limits.admit(record) is None
    assert limits.room(1, 10) == limits.room(2, 10) == limits.room(0, 10) == 0
    assert limits.again_at() == 105.0  # not in 640 seconds
    clock.now, share[0] = 105.0, 1.0
    assert [limits.room(worker, 10) for worker in (0, 1, 2)] == [0, 0, 0]
    clock.now = 110.0
    assert limits.room(0, 10) == limits.room(2, 10) == 0  # the first that asked goes first
    assert limits.room(1, 10) == 1
    assert limits.admit(record) is None
    for clock.now in (110.1, 115.1):  # when they were told to ask again
        assert [limits.room(worker, 10) for worker in (0, 1, 2)] == [0, 0, 0]
    clock.now = 120.1
    assert limits.room(0, 10) == 0
    assert limits.room(2, 10) == 1


# -- relays -------------------------------------------------------------------------------------
def test_a_stream_at_its_limit_is_sent_at_that_rate_in_order():
    async def story(scene):
        found = times(scene)
        await limit(scene, "stream", "main", per_second=20)
        await scene.add(*(event(f"{n:03}", f"k{n % 5}") for n in range(200)))
        async with scene.running():
            began = scene.loop.time()
            while len(found) < 200:
                await asyncio.sleep(0.1)
            assert 9 <= scene.loop.time() - began <= 13
        assert most_in(found, 1.0) <= 25 + 1
        for key in range(5):
            assert [r.id for _, r in found if r.key == f"k{key}"] == [
                f"{n:03}" for n in range(key, 200, 5)
            ]
        assert {r.attempts for r in await scene.store.find(Filter(limit=500))} == {0}

    played(story)


def test_a_limited_topic_does_not_starve_its_neighbours():
    async def story(scene):
        found = times(scene)
        await limit(scene, "topic", "t", per_second=5)
        slow = [event(f"s{n}") for n in range(330)]
        fast = [event(f"f{n}", topic="free") for n in range(30)]
        await scene.add(*slow, *fast)
        async with scene.running() as relay:
            await scene.until(*(f"f{n}" for n in range(30)))
            assert scene.loop.time() < 10
            await asyncio.sleep(50 - scene.loop.time())
            sent = Counter(record.topic for _, record in found)
            assert 225 <= sent["t"] <= 255
            left = await scene.store.find(Filter(limit=1_000, state="failed"))
            assert {r.attempts for r in left} == {0}
            assert relay.counts.failed == 0
            await asyncio.sleep(30)
            assert len(found) == 360  # each once

    played(story)


def test_keys_of_a_limited_topic_keep_their_order_and_hold_no_others():
    async def story(scene):
        found = times(scene)
        await limit(scene, "topic", "t", per_second=2)
        for n in range(30):
            await scene.add(
                event(f"a{n:02}", "a"),
                event(f"b{n:02}", "b", topic="t" if n % 2 else "free"),
                event(f"c{n:02}", "c", topic="free"),
            )
        async with scene.running():
            await scene.until(*(f"c{n:02}" for n in range(30)))
            await asyncio.sleep(60)
            names = [record.id for _, record in found]
            assert len(names) == len(set(names)) == 90
            for key in "abc":
                mine = [name for name in names if name[0] == key]
                assert mine == sorted(mine)

    played(story)


def test_waiting_for_a_limit_costs_few_statements():
    """Rows that wait are neither read again and again nor written again and again."""

    async def story(scene):
        found, rows, held = times(scene), [], []
        await limit(scene, "topic", "t", per_second=10)
        await scene.add(*(event(f"e{n}") for n in range(250)))
        settle, read = scene.store.settle, scene.store.read

        async def counted(settlement):
            held.extend(one.record.id for one in settlement.failed)
            return await settle(settlement)

        async def reading(request):
            records = await read(request)
            rows.extend(records)
            return records

        scene.store.settle, scene.store.read = counted, reading
        async with scene.running():
            await asyncio.sleep(20)
        assert 180 <= len(found) <= 205
        assert scene.store.reads < 20 * 10 * 25
        assert len(held) < 2 * 250
        assert len(rows) < 4 * 250

    played(story)


def test_rates_below_one_per_second_go_on():
    async def story(scene):
        found = times(scene)
        await limit(scene, "stream", "main", per_second=0.05)
        await limit(scene, "topic", "t", per_second=0.1)
        await scene.add(event("1", "k"), event("2", "k"), event("3"), event("4", topic="free"))
        async with scene.running() as relay:
            await asyncio.sleep(100)
            assert len(found) == 4
            assert relay.vitals.lanes == 64  # no lease lapsed meanwhile

    played(story)


def test_two_relays_share_a_limit_by_their_lanes():
    async def story(scene):
        found = times(scene)
        await limit(scene, "stream", "main", per_second=10)
        await scene.add(*(event(f"e{n}") for n in range(400)))
        async with scene.running() as one, scene.running() as other:
            await asyncio.sleep(15)
            assert [one.vitals.lanes, other.vitals.lanes] == [32, 32]
            before = len(found)
            await asyncio.sleep(20)
            assert 150 <= len(found) - before <= 210

    played(story)


@pytest.mark.parametrize(("kind", "name"), [("stream", "main"), ("topic", "t")])
def test_at_most_so_many_are_in_flight(kind, name):
    async def story(scene):
        handlers, running, most = Handlers(name="h", concurrency=50), set(), [0]

        @handlers.on("done")
        async def handle(event, tx):
            running.add(event.id)
            most[0] = max(most[0], len(running))
            await asyncio.sleep(0.2)
            running.discard(event.id)

        await limit(scene, kind, name, in_flight=3)
        await scene.add(*(event(f"e{n}") for n in range(60)))
        async with scene.running(handlers) as relay:
            async with asyncio.timeout(60):
                while relay.counts.done < 60:
                    await asyncio.sleep(0.1)
        assert most == [3]

    played(story)


def test_a_limit_is_changed_and_removed_at_run_time():
    async def story(scene):
        found = times(scene)
        await limit(scene, "topic", "t", per_second=0.01)
        await scene.add(*(event(f"e{n}") for n in range(300)))
        async with scene.running() as relay:
            await asyncio.sleep(50)
            assert len(found) == 1
            assert [(one.name, one.max_per_second) for one in relay.limits] == [("t", 0.01)]
            await limit(scene, "topic", "t", per_second=50)
            await asyncio.sleep(5)
            assert 100 <= len(found) <= 260
            assert await limit(scene, "topic", "t")
            assert not await limit(scene, "topic", "t")
            await scene.until(*(f"e{n}" for n in range(300)))
            assert relay.limits == []
            assert len(found) == 300

    played(story)


def test_a_pause_goes_before_a_limit():
    async def story(scene):
        found = times(scene)
        await limit(scene, "topic", "t", per_second=100)
        await scene.pause("topic", "t")
        await scene.add(event("1"), event("2"))
        async with scene.running():
            await asyncio.sleep(60)
            assert found == []
            await scene.resume("topic", "t")
            await scene.until("1", "2")
        (control,) = await scene.store.controls()
        assert control.max_per_second == 100

    played(story)


@pytest.mark.parametrize(("kind", "name"), [("stream", "main"), ("topic", "t")])
def test_events_of_unknown_outcome_are_tried_alone_within_the_limit(kind, name):
    async def story(scene):
        found, batches = [], []

        def unknown(record):
            found.append((scene.loop.time(), record))
            first = sum(other.id == record.id for _, other in found) == 1
            return Outcome(Verdict.UNKNOWN, "no reply") if first else None

        publish = scene.broker.publish

        async def noted(batch, reporter):
            batches.append([record.id for record in batch])
            await publish(batch, reporter)

        scene.broker.publish = noted
        scene.broker.script(unknown)
        await limit(scene, kind, name, per_second=5)
        await scene.add(*(event(f"e{n}", f"k{n}") for n in range(20)))
        async with scene.running():
            await asyncio.sleep(30)
        assert most_in(found, 1.0) <= 8
        assert {r.state for r in await scene.store.find(Filter())} == {"done"}
        names = Counter(name for batch in batches for name in batch)
        assert max(names.values()) == 1  # never in a batch again

    played(story)
