"""Small things that once went wrong."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from postroom.broker import Outcome, Verdict
from postroom.brokers.memory import MemoryBroker
from postroom.engine.breaker import Breaker
from postroom.engine.handlers.handlers import Handlers
from postroom.engine.relay.context import RelayContext
from postroom.engine.relay.lanes import LaneKeeper
from postroom.engine.relay.watcher import Watcher
from postroom.engine.service import Service
from postroom.errors import ConfigError, Reject, Retry, StoreUnknownError
from postroom.record import LANES
from postroom.settings import RelaySettings
from postroom.store import Lease, Member, Membership
from postroom.stores.memory import MemoryStore
from postroom.testing.broker_tools import RecordingReporter, make_record
from tests.unit.tower import Tower, keyed


class Loop(Service):
    """A service that waits for one future."""

    def __init__(self):
        super().__init__()
        self.future = asyncio.get_running_loop().create_future()

    async def loop(self):
        await self.future


def furnish(store, broker):
    """A context as a relay makes it, on a clock that stands still."""
    keeper, breaker = LaneKeeper("anna", 15.0), Breaker(0.5, 30.0)
    still = type("Still", (), {"monotonic": lambda self: 0.0})()
    return RelayContext(store, broker, RelaySettings(), keeper, breaker, still, ())


# -- loops that died, or ran wild ----------------------------------------------------------------
async def test_a_loop_that_a_cancelled_call_ends_is_told():
    """Nobody noticed: the task counted as cancelled, as if it had been stopped."""
    told = []
    service = Loop()
    service.start(told.append)
    await asyncio.sleep(0)
    service.future.cancel()
    await asyncio.wait({service._task})
    await asyncio.sleep(0)
    assert [str(error) for error in told] == ["Loop was ended by a cancelled call"]


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_a_loop_that_is_asked_to_end_is_not_told(how):
    service = Loop()
    service.start(pytest.fail)
    await asyncio.sleep(0)
    if how == "stop":
        await service.stop()
    else:  # as asyncio.run does at its end
        service._task.cancel()
        await asyncio.wait({service._task})
        await asyncio.sleep(0)


async def test_a_loop_stops_although_a_driver_answers_its_cancellation_with_an_error(monkeypatch):
    """psycopg does, when the connection breaks meanwhile; the relay then never ended."""
    monkeypatch.setattr("postroom.engine.service._AGAIN_SECONDS", 0.01)

    class Stubborn(Loop):
        async def loop(self):
            for _ in range(2):
                with contextlib.suppress(StoreUnknownError):
                    try:
                        await asyncio.Event().wait()
                    except asyncio.CancelledError:
                        raise StoreUnknownError("cut") from None
            await asyncio.Event().wait()

    service = Stubborn()
    service.start(pytest.fail)
    await asyncio.sleep(0)
    await service.stop()
    assert not service.is_running


async def test_a_destination_that_cancels_its_own_answer_is_not_there():
    class Closed(MemoryBroker):
        async def health(self):
            raise asyncio.CancelledError

    assert await furnish(MemoryStore(), Closed()).destination_answers() is False


async def test_whoever_asks_a_destination_can_be_cancelled():
    class Slow(MemoryBroker):
        async def health(self):
            await asyncio.get_running_loop().create_future()

    asking = asyncio.create_task(furnish(MemoryStore(), Slow()).destination_answers())
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})
    assert asking.cancelled()


@pytest.mark.promise("F2")
async def test_the_watcher_does_not_spin_while_the_heartbeat_is_asked_to_beat_now():
    """It waited for an event that was set, and nothing else in the process ran any more."""

    class Cut(MemoryStore):
        looks = 0

        async def wait_for_change(self, timeout_seconds):
            self.looks += 1
            raise StoreUnknownError("cut")

    store = Cut()
    context = furnish(store, MemoryBroker())
    context.beat_now.set()
    watcher = Watcher(context)
    watcher.start(pytest.fail)
    for _ in range(50):
        await asyncio.sleep(0)
    await watcher.stop()
    assert store.looks == 1


# -- lanes ---------------------------------------------------------------------------------------
def membership(token, owner="anna"):
    leases = tuple(Lease(n, owner, token, live=owner is not None) for n in range(LANES))
    return Membership((Member("anna", healthy=True),), leases, frozenset(range(LANES)))


def test_lower_tokens_after_the_take_mean_that_the_store_was_set_back():
    """It was taken for a beat that saw the past, for ever."""
    keeper = LaneKeeper("anna", 15.0)
    keeper.taken(dict.fromkeys(range(LANES), 7), 100.0)
    assert keeper.consider(membership(6), 99.0).lost == []  # asked before the take: it saw the past
    plan = keeper.consider(membership(6, owner=None), 105.0)
    assert plan.lost == list(range(LANES))
    assert sorted(plan.take) == list(range(LANES))


# -- what is in flight ---------------------------------------------------------------------------
def test_what_is_processing_behind_a_barrier_is_given_back_before_it_is_parked():
    tower = Tower()
    (follower,) = keyed(6, barrier=5, state="processing", attempts=1)
    assert tower.admit(follower) == []
    settlement, _ = tower.settle()
    assert (settlement.returned, settlement.parked) == ([follower], [])
    assert tower.suspects == []


def test_a_long_run_that_goes_on_does_not_hang():
    """It was judged by its age, and lost its lane to another relay in the middle of its work."""
    tower = Tower()
    one, two = keyed(1, 2)
    tower.admit(one, two, now=0.0)
    tower.flight.confirm([one])
    tower.flight.note_progress(50.0)
    assert tower.flight.hung_lanes(49.0) == set()
    tower.flight.note_progress(90.0)
    assert tower.flight.hung_lanes(60.0) == {two.lane}


async def test_what_waits_for_its_turn_does_not_hang():
    tower = Tower(counts_at_start=True)
    one, other = make_record(1, key="a"), make_record(2, key="b")
    tower.admit(one, other, now=0.0)
    granted = tower.flight.start(one)
    tower.settle()
    assert granted.result()
    tower.flight.note_progress(10.0)
    assert tower.flight.hung_lanes(10.0) == set()
    assert tower.flight.hung_lanes(99.0) == {one.lane}


def test_a_suspect_that_waits_for_its_turn_does_not_hang():
    """Two relays would hand it to each other for ever, and neither would find out about it."""
    tower = Tower()
    (one,) = keyed(1)
    runs = tower.fly(one)
    tower.flight.ended(runs, "cut")
    assert tower.suspects == [one]
    assert tower.flight.hung_lanes(99.0) == set()
    assert [run.records for run in tower.flight.stuck(99.0)] == [[one]]
    tower.flight.send_alone(one, 50.0)
    assert tower.flight.hung_lanes(99.0) == {one.lane}


async def test_a_start_that_was_asked_for_is_refused_when_its_lane_is_lost():
    """It was counted under the token of the next take, and its handler ran for nothing."""
    tower = Tower(counts_at_start=True)
    (one,) = keyed(1)
    tower.admit(one)
    granted = tower.flight.start(one)
    tower.flight.forget({one.lane})
    assert granted.result() is False
    assert not tower.flight.wants_start
    assert not tower.collect().settlement


# -- what handlers raise -------------------------------------------------------------------------
class Unprintable(Reject):
    def __str__(self):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [
        (Retry("later", after="soon"), Outcome(Verdict.FAILED, "later", None)),
        (Retry("later", after=10**400), Outcome(Verdict.FAILED, "later", None)),
        (Retry("later", after="5"), Outcome(Verdict.FAILED, "later", 5.0)),
        (Unprintable(), Outcome(Verdict.REJECTED, "Unprintable: (its message cannot be printed)")),
    ],
)
async def test_a_strange_signal_of_one_handler_is_the_fault_of_no_other(raised, outcome):
    """What it raised in turn cancelled the other handlers of the batch in the middle of their work."""
    handlers = Handlers(transaction=False)

    @handlers.on("test")
    async def handle(event, tx):
        if event.id == "bad":
            raise raised

    bad, good = make_record(1, id="bad", type="test"), make_record(2, id="good", type="test")
    reporter = RecordingReporter()
    await handlers.publish([bad, good], reporter)
    assert reporter.outcome(bad) == outcome
    assert reporter.verdict(good) is Verdict.CONFIRMED


# -- settings ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 1.5}, "batch_size must be a whole number, not 1.5"),
        ({"batch_size": "100"}, "batch_size must be a number, not '100'"),
        ({"groups": True}, "groups must be a number, not True"),
        ({"lease_seconds": float("inf")}, "lease_seconds must be at most 100 years"),
        ({"keep_done_seconds": float("inf")}, "keep_done_seconds must be at most 100 years"),
        ({"retry": 5}, "retry must be a RetryPolicy"),
        ({"name": None}, "name must be text"),
        ({"name": "a\ud800"}, "name contains a lone surrogate"),
    ],
)
def test_settings_that_would_break_a_running_relay_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        RelaySettings(**given)
