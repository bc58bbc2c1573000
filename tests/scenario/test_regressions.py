"""Scenes that once went wrong, each on the stores where it did."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from postroom.broker import Outcome, Verdict
from postroom.brokers.memory import MemoryBroker
from postroom.engine.handlers.handlers import Handlers
from postroom.engine.relay import worker
from postroom.errors import ConfigError, StoreUnknownError
from postroom.event import Event
from postroom.model import clock
from postroom.retry import Constant, RetryPolicy
from postroom.settlement import Settlement
from postroom.stores.sqlite import SqliteStore, prune, stage, thread
from tests.scenario.place import MemoryPlace, Reach, SqlitePlace, Stop, ids, until

NEVER = RetryPolicy(backoff=Constant(3_600.0))


@pytest.fixture
async def memory():
    made = MemoryPlace()
    yield made
    await made.close()


@pytest.fixture
async def sqlite(tmp_path):
    made = SqlitePlace(tmp_path / "app.db")
    await made.open()
    yield made
    await made.close()


@pytest.fixture(params=["memory", "sqlite"])
def place(request):
    return request.getfixturevalue(request.param)


# -- events that were stuck, or turned in circles ------------------------------------------------
async def test_what_a_dead_relay_left_processing_behind_a_failed_head_is_parked(place, broker):
    """It could not be parked, and was read and settled without a pause, a thousand times a second."""
    await place.write(Event("t", id="head", key="k"), Event("t", id="begun", key="k"))
    begun = await place.record("begun")
    leases = await place.store.take("main", "dead", [begun.lane], 60.0)
    await place.store.settle(Settlement("main", "dead", 60.0, leases, starts=[begun]))
    await place.store.leave("main", "dead")
    broker.script(lambda record: Outcome(Verdict.FAILED, "no") if record.id == "head" else None)

    async def nothing_is_ready():
        return not (await place.store.stage("main", [begun.lane], 10)).ready

    async with place.relay(broker, retry=NEVER):
        await until(nothing_is_ready)
        assert await place.states() == {"head": "failed", "begun": "pending"}
        await place.store.bury(["head"], "by hand")
        await until(lambda: ids(broker) == ["begun"])


async def test_a_call_that_the_driver_cancels_stops_no_loop(memory):
    """A driver's future is cancelled when its channel closes; the suspects were never tried again."""

    class Closing(MemoryBroker):
        calls = 0

        async def publish_alone(self, record, reporter):
            self.calls += 1
            if self.calls == 1:
                raise asyncio.CancelledError
            await super().publish_alone(record, reporter)

        async def health(self):
            raise asyncio.CancelledError

    broker = Closing()
    broker.lose_replies(lambda record: record.id == "e" and broker.calls == 0)
    async with memory.relay(broker):
        await memory.write(Event("t", id="e", key="k"), Event("t", id="f", key="k"))
        await until(memory.all_done)
    assert broker.calls == 1
    assert ids(broker) == ["e", "e", "f"]


async def broker_said_no(place):
    return (await place.record("bad")).state == "dead"


async def test_an_observer_that_raises_holds_up_no_event(memory, broker):
    class Broken:
        def observe(self, fact):
            raise ZeroDivisionError

    broker.script(lambda record: Outcome(Verdict.REJECTED, "no") if record.id == "bad" else None)
    async with memory.relay(broker, observers=[Broken()]):
        await memory.write(Event("t", id="bad", key="k"), Event("t", id="good", key="k"))
        await until(lambda: ids(broker) == ["good"])
        await until(lambda: broker_said_no(memory))


async def test_a_hot_key_that_hangs_stalls_no_other(memory, broker, monkeypatch):
    monkeypatch.setattr(worker, "_STUCK_SECONDS", 0.05)
    hold = broker.hold(lambda record: record.key == "hot")
    await memory.write(*(Event("t", id=f"h{n}", key="hot") for n in range(150)))
    async with memory.relay(broker, groups=1, publish_seconds=3_600.0):
        await hold.reached.wait()
        await memory.write(*(Event("t", id=f"c{n}", key=f"cold{n}") for n in range(20)))
        await until(lambda: len(ids(broker)) == 20)
        assert memory.relays[0].counts.repeated == 0
        hold.release()
        await until(memory.all_done)


async def test_after_an_outage_misconfigured_events_do_not_stand_before_the_others(memory, broker):
    """Each of them used up the one try of its worker, until the longest pause was over."""
    broker.go_down()
    await memory.write(*(Event("t", id=f"m{n}", topic="gone") for n in range(60)))
    await memory.write(Event("t", id="good"))
    times = {
        "outage_seconds": 0.02,
        "max_outage_seconds": 3_600.0,
        "misconfigured_seconds": 3_600.0,
    }
    async with memory.relay(broker, **times) as relay:
        await until(lambda: not relay._context.breaker.is_closed)
        broker.script(
            lambda record: Outcome(Verdict.MISCONFIGURED, "?") if record.topic == "gone" else None
        )
        broker.come_back()
        await until(lambda: ids(broker) == ["good"])


async def test_a_try_whose_lane_was_lost_is_followed_by_another(memory, broker):
    """Its end told nothing, and nobody tried again until the longest pause was over."""
    await memory.write(Event("t", id="e", key="k"))
    lane = (await memory.record("e")).lane
    broker.go_down()
    pauses = {"outage_seconds": 0.02, "max_outage_seconds": 3_600.0}
    async with memory.relay(broker, groups=1, lease_seconds=0.6, **pauses) as relay:
        await until(lambda: not relay._context.breaker.is_closed)
        broker.lose_replies(lambda record: len(broker.messages) == 1)
        hold = broker.hold()
        broker.come_back()
        await hold.reached.wait()
        relay._context.lose([lane])
        hold.release()
        await until(memory.all_done)
    assert ids(broker) == ["e", "e"]


async def test_a_relay_that_lost_its_lanes_in_a_try_asks_the_broker(memory, broker):
    """It had no event left to try with, and was unwell until the longest pause was over."""
    broker.go_down()
    pauses = {"outage_seconds": 0.02, "max_outage_seconds": 3_600.0}
    await memory.write(Event("t", id="e"))
    async with memory.relay(broker, groups=1, lease_seconds=0.3, **pauses) as relay:
        await until(lambda: not relay._context.breaker.is_closed)
        hold = broker.hold()
        broker.come_back()
        await hold.reached.wait()
        async with memory.relay(MemoryBroker(), lease_seconds=0.3):
            relay._context.lose(list(relay._context.keeper.held))
            await until(lambda: relay._context.breaker.is_closed)
            hold.release()


async def test_of_a_batch_nothing_starts_in_a_lane_that_is_lost(memory):
    handlers, ran = Handlers(batch=10, concurrency=1), []

    @handlers.on("t")
    async def handle(event, tx):
        ran.append(event.id)
        if len(ran) == 1:
            relay._context.lose(list(relay._context.keeper.held))

    await memory.write(*(Event("t", id=f"e{n}", key=f"k{n}") for n in range(3)))
    relay = memory.relay(handlers, groups=1, lease_seconds=0.6)
    async with relay:
        await until(memory.all_done)
    assert len(ran) == 4  # the first one twice: what it had done was rolled back
    assert ran.count(ran[0]) == 2


async def test_lanes_are_found_again_in_a_store_that_was_set_back(memory, broker):
    """Restored, or failed over to a replica that lagged behind: its tokens are lower than ours."""
    async with memory.relay(broker, lease_seconds=0.6):
        await until(memory.owners)
        for lease in memory.store.data.leases["main"].values():
            lease.owner, lease.token, lease.until_us = None, 0, 0
        await memory.write(Event("t", id="e"))
        await until(lambda: ids(broker) == ["e"])


async def test_a_clock_that_is_set_back_does_not_keep_the_lanes_of_the_dead(
    sqlite, broker, monkeypatch
):
    relay = sqlite.relay(broker)
    await relay.start()
    await until(sqlite.owners)
    await relay.kill()
    for module in (thread, stage, prune):
        hour_ago = lambda: clock.host_microseconds() - 3_600_000_000  # noqa: E731
        monkeypatch.setattr(module, "host_microseconds", hour_ago)
    async with sqlite.relay(broker):
        await sqlite.write(Event("t", id="e"))
        await until(lambda: ids(broker) == ["e"])


async def test_handlers_that_end_one_by_one_do_not_lead_to_a_read_each(memory, monkeypatch):
    """After a read that brought little, 0.8 s pass here, or half of what is in flight ends."""
    reads, running, read = [], asyncio.Queue(), memory.store.read

    async def slow(question):
        reads.append(question)
        await asyncio.sleep(0.2)
        return await read(question)

    monkeypatch.setattr(memory.store, "read", slow)
    handlers = Handlers(transaction=False, concurrency=40)

    @handlers.on("t")
    async def handle(event, tx):
        gate = asyncio.Event()
        running.put_nowait(gate)
        await gate.wait()

    await memory.write(*(Event("t", id=f"e{n}", key=f"k{n}") for n in range(20)))
    async with memory.relay(handlers, groups=1, publish_seconds=60.0) as relay:
        gates = [await running.get() for _ in range(20)]
        before = len(reads)
        for done, gate in enumerate(gates[:9], 1):
            gate.set()
            await until(lambda done=done: relay.counts.done >= done)
        assert len(reads) - before < 6
        for gate in gates:
            gate.set()
        await until(lambda: relay.counts.done == 20)


# -- hand-over -----------------------------------------------------------------------------------
async def test_a_relay_whose_work_hangs_gives_its_lanes_to_one_that_is_well(memory):
    """It gave the lane up and took it back in the same breath, several times a second, for ever."""
    ran, hang = [], asyncio.Event()

    def handlers(who):
        made = Handlers(transaction=False, time_limit_seconds=60.0)

        @made.on("t")
        async def handle(event, tx):
            ran.append((who, event.id))
            if who == "anna":
                await hang.wait()

        return made

    anna = memory.relay(handlers("anna"), lease_seconds=0.3, publish_seconds=0.1, stop_seconds=0.1)
    await anna.start()
    await memory.write(Event("t", id="e", key="k"))
    await until(lambda: ran)
    async with memory.relay(handlers("bert"), lease_seconds=0.3):
        await until(memory.all_done)
        await until(lambda: not anna._context.keeper.held)
        hang.set()
        await until(lambda: len(anna._context.keeper.held) == 32)
    assert Counter(ran) == {("anna", "e"): 1, ("bert", "e"): 1}


# -- start and stop ------------------------------------------------------------------------------
async def test_a_stop_that_was_cancelled_can_be_called_again(memory, broker):
    hold = broker.hold()
    relay = memory.relay(broker)
    await relay.start()
    await memory.write(Event("t", id="e"))
    await hold.reached.wait()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await relay.stop()
    hold.release()
    async with asyncio.timeout(5.0):
        await relay.stop()
    assert not relay.is_running
    assert ids(broker) == ["e"]


async def test_a_relay_can_start_after_a_stop_that_was_cancelled(memory, broker):
    hold = broker.hold()
    relay = memory.relay(broker)
    await relay.start()
    await memory.write(Event("t", id="e"))
    await hold.reached.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await relay.stop()
    hold.release()
    await relay.start()
    await memory.write(Event("t", id="f"))
    await until(lambda: ids(broker) == ["e", "f"])
    await relay.stop()


@pytest.mark.parametrize("who", ["store", "broker"])
async def test_a_start_that_was_cancelled_leaves_nothing_and_can_be_called_again(memory, who):
    """It counted as running from then on, and did nothing."""
    stop = Stop()

    class Slow(MemoryBroker):
        async def open(self):
            if who == "broker":
                await stop()
            await super().open()

    broker, reach = Slow(), Reach(memory.store)
    if who == "store":
        reach.before["open"] = stop
    relay = memory.relay(broker, store=reach)
    starting = asyncio.create_task(relay.start())
    await stop.reached.wait()
    starting.cancel()
    await asyncio.wait({starting})
    assert not relay.is_running
    stop.released.set()
    await memory.write(Event("t", id="e"))
    async with relay:
        await until(lambda: ids(broker) == ["e"])


async def test_a_relay_that_stops_begins_no_further_handlers(memory):
    """All that was read was still begun, for up to `stop_seconds`, and then cut off."""
    handlers = Handlers(transaction=False, concurrency=1)
    began, release = [], asyncio.Event()

    @handlers.on("t")
    async def handle(event, tx):
        began.append(event.id)
        await release.wait()

    relay = memory.relay(handlers)
    await relay.start()
    await memory.write(*(Event("t", id=f"e{n}") for n in range(20)))
    await until(lambda: began)
    stopping = asyncio.create_task(relay.stop())
    await until(lambda: relay._context.stopping)
    release.set()
    await stopping
    assert len(began) == 1
    assert Counter((await memory.states()).values()) == {"done": 1, "pending": 19}
    rest = [await memory.record(f"e{n}") for n in range(20) if f"e{n}" not in began]
    assert {record.attempts for record in rest} == {0}


@pytest.mark.parametrize("verb", ["stop", "kill"])
async def test_a_handler_may_end_its_own_relay(memory, verb):
    """It was cut off in the middle: one lane was renewed for ever, and nobody read it."""
    handlers = Handlers(transaction=False)
    relay = memory.relay(handlers, stop_seconds=0.05)

    @handlers.on("t")
    async def handle(event, tx):
        await getattr(relay, verb)()

    await relay.start()
    await memory.write(Event("t", id="e"))
    async with asyncio.timeout(10.0):
        await relay.wait()
    assert not relay.is_running
    assert not any(task.get_name() == "Heartbeat" for task in asyncio.all_tasks())


async def test_run_says_what_to_do_in_another_thread(memory, broker):
    def elsewhere():
        with pytest.raises(ConfigError, match=r"use start\(\) and stop\(\)"):
            asyncio.run(memory.relay(broker).run())

    await asyncio.to_thread(elsewhere)


def test_a_relay_may_live_again_in_another_event_loop():
    place, broker = MemoryPlace(), MemoryBroker()
    relay = place.relay(broker)

    async def live(event_id):
        await place.write(Event("t", id=event_id))
        return (await relay.drain()).done

    assert [asyncio.run(live(f"e{n}")) for n in range(3)] == [1, 1, 1]
    assert ids(broker) == ["e0", "e1", "e2"]


async def test_threads_that_hang_do_not_take_those_of_the_next_life(memory):
    """The farewell of a hung thread was taken by a new one, and its job waited for ever."""
    handlers = Handlers(
        transaction=False, sync_transaction=False, concurrency=4, time_limit_seconds=0.2
    )
    ran, hang = [], threading.Event()

    @handlers.on("t")
    def handle(event, tx):
        ran.append(event.id)
        if event.id.startswith("hang"):
            hang.wait(60.0)

    relay = memory.relay(handlers, retry=RetryPolicy(max_attempts=1), stop_seconds=0.05)
    try:
        async with relay:
            await memory.write(*(Event("t", id=f"hang{n}") for n in range(3)))
            await until(lambda: len(ran) == 3)
        async with relay:
            await memory.write(*(Event("t", id=f"e{n}") for n in range(5)))
            await until(lambda: len(ran) == 8)
    finally:
        hang.set()


# -- drain ---------------------------------------------------------------------------------------
async def test_drain_raises_when_the_store_stays_away(memory, broker):
    reach = Reach(memory.store)

    async def cut(*_):
        raise StoreUnknownError("gone")

    reach.before.update(dict.fromkeys(("heartbeat", "read", "stage"), cut))
    async with asyncio.timeout(10.0):
        with pytest.raises(StoreUnknownError):
            await memory.relay(broker, store=reach, lease_seconds=0.2).drain()


async def test_drain_raises_what_broke_the_relay_down(memory, broker):
    reach = Reach(memory.store)

    async def bug(*_):
        raise ZeroDivisionError

    reach.before["read"] = bug
    await memory.write(Event("t", id="e"))
    async with asyncio.timeout(10.0):
        with pytest.raises(ZeroDivisionError):
            await memory.relay(broker, store=reach).drain()


# -- cost ----------------------------------------------------------------------------------------
async def test_events_in_one_lane_cost_no_beats(sqlite, broker):
    """The other group found nothing to read, and asked who holds its lanes, at every event."""
    reach, beats = Reach(SqliteStore(sqlite.path)), []

    async def beat(*_):
        beats.append(1)

    reach.before["heartbeat"] = beat
    async with sqlite.relay(broker, store=reach, lease_seconds=60.0):
        for n in range(30):
            await sqlite.write(Event("t", id=f"e{n}", key="k"))
            await until(lambda n=n: len(ids(broker)) == n + 1)
        assert len(beats) < 8
