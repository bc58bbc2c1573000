"""Drivers and relays that run operations: pace, canary, hostile operations, takeovers."""

from __future__ import annotations

import asyncio
import json

import pytest

from postroom.engine.operations import driver, watch
from postroom.engine.operations.driver import drive
from postroom.engine.operations.request import ReplayRequest, read_position, read_request
from postroom.engine.operations.watch import OperationWatch
from postroom.errors import (
    ConfigError,
    StoreLockedError,
    StoreRefusedError,
    StoreRetryableError,
)
from postroom.lookup import Filter
from postroom.model.dead_letters import fingerprint
from postroom.operation import Change, NewOperation, Operation, Step
from postroom.outbox import Outbox
from postroom.record import State
from postroom.stores.memory import MemoryStore
from postroom.testing.store.tools import Hand, event, patience, until

DEAD = Filter(state=State.DEAD)


class Clocked(MemoryStore):
    """A store whose clock moves with each call, so that no two events share an instant."""

    def __init__(self):
        self.at = 1_000_000_000_000
        super().__init__(self.tick)

    def tick(self):
        self.at += 1
        return self.at


async def store_with(number, keys=7):
    store = Clocked()
    async with store.begin() as tx:
        await Outbox().add_many(tx, [event(f"e{n}", f"k{n % keys}") for n in range(number)])
    hand = await Hand(store).take()
    for record in await hand.read():
        await hand.bury(record)
    return store, hand


async def started(store, **options):
    request = ReplayRequest(options.pop("filter", DEAD), **options)
    one, is_new = await store.start_operation(request.new_operation(None, "all"), by="olga")
    assert is_new
    return one


async def run(store, one, owner="anna"):
    held = await store.take_operation(one.id, owner)
    assert held is not None
    await drive(store, held)
    return await store.operation(one.id)


async def dead(store):
    return [record.id for record in await store.find(DEAD._replace(limit=10_000))]


@pytest.fixture
def naps(monkeypatch):
    """Replace sleeps by a list of them."""
    found = []
    real = asyncio.sleep

    async def sleep(seconds):
        found.append(seconds)
        await real(0)

    monkeypatch.setattr(driver.asyncio, "sleep", sleep)
    return found


async def test_a_replay_goes_in_order_and_ends():
    store, hand = await store_with(1_203)
    after = await run(store, await started(store))
    assert (after.state, after.handled, after.failed, after.owner) == ("done", 1_203, 0, None)
    sent = await hand.work(rows=2_000)
    assert sent == [f"e{n}" for n in range(1_203)]


async def test_an_operation_without_events_is_done():
    store = Clocked()
    after = await run(store, await started(store))
    assert (after.state, after.handled) == ("done", 0)


async def test_a_limit_and_a_filter():
    store, _ = await store_with(50)
    assert (await run(store, await started(store, limit=3))).handled == 3
    assert len(await dead(store)) == 47
    group = fingerprint("tested", "boom")
    other = await started(store, group="ffffffff")
    assert (await run(store, other)).handled == 0
    assert (await run(store, await started(store, group=group, limit=40))).handled == 40
    assert await dead(store) == [f"e{n}" for n in range(43, 50)]


async def test_an_event_that_dies_again_is_not_replayed_again(monkeypatch):
    store, hand = await store_with(30)
    monkeypatch.setattr(driver, "STEP", 10)
    advance = store.advance_operation

    async def dying(held, step):
        sent = await advance(held, step)
        for record in await hand.read():
            await hand.bury(record)
        return sent

    store.advance_operation = dying
    after = await run(store, await started(store))
    assert (after.state, after.handled) == ("done", 30)
    after = await run(store, await started(store, new_id=True))
    assert (after.state, after.handled) == ("done", 30)  # copies that die are not copied


async def test_a_rate_is_kept(naps):
    store, _ = await store_with(25)
    assert (await run(store, await started(store, per_second=10.0))).handled == 25
    assert naps == [1.0, 1.0]
    naps.clear()
    one = await started(store, per_second=0.05, filter=DEAD._replace(key="none"))
    assert (await run(store, one)).state == "done"
    store, _ = await store_with(2)
    await run(store, await started(store, per_second=0.05))
    assert sum(naps) == pytest.approx(40.0)  # in parts, and the lease is renewed between them
    assert max(naps) <= driver.RENEW_SECONDS


async def test_a_group_is_replayed_to_its_end_in_steps_smaller_than_a_page(naps):
    """A page of dead letters holds more of the group than a step may take."""
    store, hand = await store_with(25)
    group = fingerprint("tested", "boom")
    after = await run(store, await started(store, group=group, per_second=10.0))
    assert (after.state, after.handled, await dead(store)) == ("done", 25, [])
    assert naps == [1.0, 1.0]
    assert await hand.work() == [f"e{n}" for n in range(25)]


async def test_a_canary_grows_and_waits_for_each_group(naps):
    store, hand = await store_with(40)
    one = await started(store, canary=True)
    sizes = []
    look_up = store.look_up

    async def looking(ids):
        sizes.append(len(ids))
        if len(sizes) % 2 == 0:  # the relay sends between two looks
            await hand.work()
        return await look_up(ids)

    store.look_up = looking
    after = await run(store, one)
    assert (after.state, after.handled, after.failed) == ("done", 40, 0)
    assert list(dict.fromkeys(sizes)) == [1, 2, 5, 20, 12]
    assert len(naps) == 5


@pytest.mark.parametrize("how", ["fail", "bury"])
async def test_a_canary_stops_at_the_first_failure_and_can_be_resumed(naps, how):
    store, hand = await store_with(40)
    one = await started(store, canary=True)
    look_up = store.look_up
    failing = True

    async def looking(ids):
        for record in await hand.read():
            if failing and record.id == "e2":
                await getattr(hand, how)(record)
            else:
                await hand.settle(done=[record])
        return await look_up(ids)

    store.look_up = looking
    after = await run(store, one)
    assert (after.state, after.handled, after.failed) == ("stopped", 3, 1)
    assert after.error == "failed again: e2 (boom)"
    expected = [f"e{n}" for n in range(3, 40)]
    assert [name for name in await dead(store) if name != "e2"] == expected
    failing = False
    assert await store.change_operation(one.id, Change.RESUME, by="olga")
    after = await run(store, one)
    assert (after.state, after.handled, after.error) == ("done", 40, None)


@pytest.mark.parametrize(
    "request_text",
    [
        "", "{", "null", "[]", "[" * 100_000, '{"filter": 1}', '{"filter": {}}',
        '{"filter": {"state": "pending"}}', '{"filter": {"state": "dead", "seq": 1}}',
        '{"filter": {"state": "dead", "after_seq": "1"}}',
        '{"filter": {"state": "dead", "limit": 1}}',
        '{"filter": {"state": "dead"}, "limit": 0}',
        '{"filter": {"state": "dead"}, "limit": true}',
        '{"filter": {"state": "dead"}, "per_second": -1}',
        '{"filter": {"state": "dead"}, "per_second": NaN}',
        '{"filter": {"state": "dead"}, "canary": "yes"}',
        '{"filter": {"state": "dead"}, "group": 7}',
        '{"filter": {"state": "dead"}, "surprise": 7}',
    ],
)  # fmt: skip
async def test_one_damaged_operation_costs_one_operation(request_text):
    store, _ = await store_with(3)
    bad, _ = await store.start_operation(NewOperation("replay", request_text, "bad"), by="olga")
    good = await started(store)
    after = await run(store, bad)
    assert after.state == "stopped"
    assert after.error.startswith("its request is damaged")
    assert (await run(store, good)).handled == 3


@pytest.mark.parametrize(
    "position",
    [
        "", "{}", "7", '{"seq": "7", "group": 0, "watched": []}',
        '{"seq": -1, "group": 0, "watched": []}', '{"seq": 1, "group": 0, "watched": [1]}',
        json.dumps({"seq": 1, "group": 0, "watched": ["x"] * 501}), "[" * 100_000,
    ],
)  # fmt: skip
async def test_a_damaged_position_stops_the_operation(position):
    store, _ = await store_with(3)
    one = await started(store)
    store.data.operations[one.id] = one._replace(position=position)
    after = await run(store, one)
    assert (after.state, after.handled, after.position) == ("stopped", 0, position)
    assert after.error.startswith("its position is damaged")


async def test_an_unknown_kind_is_refused():
    store = Clocked()
    one, _ = await store.start_operation(NewOperation("melt", "{}", "x"), by="olga")
    with pytest.raises(ConfigError, match="no operation of the kind 'melt'"):
        read_request(one)
    assert (await run(store, one)).state == "stopped"


def test_a_request_and_a_position_survive_their_text():
    wanted = Filter(
        "s",
        State.DONE,
        "t",
        "o",
        "k",
        after_seq=2**90,
        error="'e",
        from_us=1,
        before_us=2,
        settled_before_us=3,
        correlation_id="c",
        causation_id="d",
        until_seq=2**91,
    )
    request = ReplayRequest(wanted, None, True, 5, 0.5, True)
    text = request.new_operation(1, "").request
    one = Operation(
        "i", "replay", text, "running", "", 0, 0, 1, 0, 0, None, None, None, None, 0, free=True
    )
    assert read_request(one) == request
    assert read_position(one, request).seq == 2**90


# One hostile item in the middle: the store refuses a step with it.
@pytest.mark.parametrize("canary", [False, True])
async def test_an_event_that_the_store_refuses_costs_one_event(canary, naps):
    store, hand = await store_with(20)
    advance, look_up = store.advance_operation, store.look_up

    async def refusing(held, step):
        if "e7" in step.ids:
            raise StoreRefusedError("no")
        return await advance(held, step)

    async def looking(ids):
        await hand.work()
        return await look_up(ids)

    store.advance_operation, store.look_up = refusing, looking
    after = await run(store, await started(store, canary=canary))
    assert (after.state, after.handled, after.failed) == ("done", 19, 1)
    assert after.error == "e7 cannot be replayed: StoreRefusedError: no"
    assert await dead(store) == ["e7"]


@pytest.mark.parametrize(("conflicts", "left"), [(5, 0), (6, 3)])
async def test_a_step_that_meets_locks_is_repeated_a_few_times(monkeypatch, naps, conflicts, left):
    """Beside busy relays a deadlock is ordinary: it must not cost the operation a pause."""
    store, _ = await store_with(3)
    one = await store.take_operation((await started(store)).id, "anna")
    advance, met = store.advance_operation, []

    async def locked(held, step):
        if step.ids and len(met) < conflicts:
            met.append(step)
            raise StoreLockedError("a deadlock")
        return await advance(held, step)

    monkeypatch.setattr(store, "advance_operation", locked)
    if left:
        with pytest.raises(StoreLockedError):
            await drive(store, one)
    else:
        await drive(store, one)
    assert len(await store.find(DEAD)) == left
    assert len(met) == conflicts


async def test_a_bug_stops_one_operation(monkeypatch, caplog):
    store, _ = await store_with(3)
    one = await started(store)

    async def broken(wanted):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(store, "find", broken)
    after = await run(store, one)
    assert after.state == "stopped"
    assert "ZeroDivisionError: oh" in after.error
    assert "stopped" in caplog.text


async def test_a_filter_that_the_store_refuses_stops_one_operation(monkeypatch):
    store, _ = await store_with(3)
    one = await started(store, filter=DEAD._replace(error="\x00"))

    async def refusing(wanted):
        raise StoreRefusedError("text cannot contain NUL")

    monkeypatch.setattr(store, "find", refusing)
    after = await run(store, one)
    assert (after.state, after.owner) == ("stopped", None)
    assert after.error == "StoreRefusedError: text cannot contain NUL"


async def test_a_cancelled_driver_gives_its_lease_up():
    store, _ = await store_with(3)
    one = await started(store, per_second=0.01)
    held = await store.take_operation(one.id, "anna")
    task = asyncio.create_task(drive(store, held))

    async def has_begun():
        return (await store.operation(one.id)).handled

    await until(has_begun)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    after = await store.operation(one.id)
    assert (after.state, after.owner, after.free, after.handled) == ("running", None, True, 1)


class Watched:
    """A watch without its pauses, and what it reports."""

    def __init__(self, store, monkeypatch, look_seconds=0.0):
        monkeypatch.setattr(watch, "LOOK_SECONDS", look_seconds)
        self.said = []
        self.watch = OperationWatch(
            store,
            trouble=lambda doing, error: self.said.append((doing, type(error))),
            recovered=lambda doing: None,
        )

    async def __aenter__(self):
        self.watch.start()
        return self

    async def __aexit__(self, *_):
        await self.watch.stop()


async def is_done(store, one):
    return (await store.operation(one.id)).state == "done"


async def test_a_relay_continues_the_operation_of_a_process_that_died(monkeypatch):
    store, _ = await store_with(20)
    one = await started(store)
    died = await store.take_operation(one.id, "dead process")
    async with Watched(store, monkeypatch) as watched:
        await until(lambda: _seen(watched))
        assert (await store.operation(one.id)).owner == "dead process"  # its lease still runs
        store.at += 31_000_000
        await until(lambda: is_done(store, one))
    assert await store.advance_operation(died, Step(ids=["e1"])) is None
    assert (await store.operation(one.id)).handled == 20


async def _seen(watched):
    return watched.watch.seen


async def test_a_slow_operation_does_not_delay_the_next(monkeypatch):
    store, _ = await store_with(20)
    slow = await started(store, per_second=0.001, filter=DEAD._replace(key="k1"))
    fast = await started(store, filter=DEAD._replace(key="k2"))
    async with Watched(store, monkeypatch):
        await until(lambda: is_done(store, fast))
        assert (await store.operation(slow.id)).state == "running"
    assert (await store.operation(slow.id)).free  # the watch was stopped


async def test_relays_of_one_process_look_once(monkeypatch):
    store, _ = await store_with(1)
    looks = []
    operations = store.operations

    async def counted(**options):
        looks.append(asyncio.get_running_loop().time())
        return await operations(**options)

    monkeypatch.setattr(store, "operations", counted)
    async with (
        patience(),
        Watched(store, monkeypatch, 0.2),
        Watched(store, monkeypatch, 0.2),
        Watched(store, monkeypatch, 0.2),
    ):
        await until(lambda: _enough(looks, 3))
    assert all(later - sooner >= 0.19 for sooner, later in zip(looks, looks[1:], strict=False))


async def _enough(found, number):
    return len(found) >= number


async def test_an_error_of_the_store_is_reported_and_the_operation_goes_on(monkeypatch):
    store, _ = await store_with(20)
    one = await started(store)
    advance, failures = store.advance_operation, [1, 2, 3, 4]  # two steps, two releases

    async def failing(held, step):
        if failures:
            failures.pop()
            raise StoreRetryableError("away")
        return await advance(held, step)

    monkeypatch.setattr(store, "advance_operation", failing)
    async with Watched(store, monkeypatch) as watched:
        await until(lambda: is_done(store, one))
    assert [kind for _, kind in watched.said] == [StoreRetryableError] * 2
    assert (await store.operation(one.id)).handled == 20


async def test_an_operation_that_always_fails_is_left_to_others_for_longer_each_time(monkeypatch):
    store, _ = await store_with(1)
    one = await started(store)
    pauses, advance = [], store.advance_operation

    class Counted(watch.Pauses):
        def grow(self):
            pauses.append(super().grow())
            return 0.0

    async def without_rights(held, step):
        if step.ids:
            raise StoreRetryableError("permission denied for table postroom_audit")
        return await advance(held, step)

    monkeypatch.setattr(watch, "Pauses", Counted)
    monkeypatch.setattr(store, "advance_operation", without_rights)
    async with Watched(store, monkeypatch, 0.001):
        await until(lambda: _enough(pauses, 4))
    assert pauses[:4] == [0.001, 0.002, 0.004, 0.008]
    assert (await store.operation(one.id)).free  # another process can take it


async def test_looks_that_fail_have_growing_pauses(monkeypatch):
    store, _ = await store_with(1)
    pauses = []

    class Counted(watch.Pauses):
        def grow(self):
            pauses.append(super().grow())
            return 0.0

    async def unreachable(**options):
        raise StoreRetryableError("away")

    monkeypatch.setattr(watch, "Pauses", Counted)
    monkeypatch.setattr(store, "operations", unreachable)
    async with Watched(store, monkeypatch, 0.001) as watched:
        await until(lambda: _enough(pauses, 4))
    assert pauses[:4] == [0.001, 0.002, 0.004, 0.008]
    assert watched.said[0] == (watch.READING, StoreRetryableError)
