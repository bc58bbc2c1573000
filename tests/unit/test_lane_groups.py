"""A lane behind a key with a deep backlog is served apart; others do not wait for its reads."""

from __future__ import annotations

import asyncio

import pytest

from postroom.brokers import MemoryBroker
from postroom.engine.relay.lane_groups import SLOW_SECONDS, Depths, LaneGroups
from postroom.engine.relay.relay import Relay
from postroom.event import Event
from postroom.outbox import Outbox
from postroom.record import key_hash, lane_of
from postroom.store import ReadRequest
from postroom.stores.memory import MemoryStore
from postroom.testing.broker_tools import make_record
from tests.scenario.place import ids, until

HOT = key_hash(None, "hot", "")
LANE = lane_of(HOT)
SLOW, QUICK = SLOW_SECONDS, SLOW_SECONDS / 2


def question(lanes=(LANE, LANE + 2), exclude=(), per_lane=20):
    return ReadRequest("main", lanes, per_lane, 100, 1_000_000, exclude)


def rows(key, count):
    return [make_record(n + 1, key=key) for n in range(count)]


def deep(depths):
    depths.learn(question(), rows("hot", 20), more=True, took=QUICK, now=0.0)


def test_a_lane_belongs_to_its_group_until_it_is_moved():
    allotment = LaneGroups(2)
    assert (allotment.workers, allotment.worker_of(5), allotment.worker_of(6)) == (3, 1, 0)
    allotment.move(5)
    assert allotment.of(1, range(8)) == [1, 3, 7]
    assert allotment.of(2, range(8)) == [5]
    allotment.move(5)
    assert allotment.of(1, range(8)) == [1, 3, 5, 7]


def test_a_slow_read_past_a_deep_key_sets_its_lane_apart_once_it_is_idle():
    depths = Depths(is_apart=False)
    deep(depths)
    assert depths.part([LANE, 1], lambda _: True, 0.0) == ([LANE, 1], [])
    depths.learn(question(exclude=[HOT]), [], more=False, took=SLOW, now=0.0)
    assert depths.part([LANE, 1], lambda _: False, 0.0) == ([1], [])  # it drains
    assert depths.look_at == pytest.approx(9 * SLOW)
    assert depths.part([LANE, 1], lambda _: False, 10 * SLOW) == ([LANE, 1], [])  # it may hang
    assert depths.part([LANE, 1], lambda _: True, 0.0) == ([1], [LANE])
    assert depths.part([1], lambda _: True, 0.0) == ([1], [])


@pytest.mark.parametrize(
    ("found", "exclude", "took"),
    [
        (rows("hot", 20), [HOT], QUICK),  # a quick read harms nobody
        (rows("hot", 20), [], SLOW),  # slow, but past nobody
        (rows("hot", 15), [HOT], SLOW),  # no backlog
        (rows("hot", 10) + rows("other-key", 10), [HOT], SLOW),
    ],
    ids=["quick", "nobody in flight", "few", "mixed"],
)
def test_other_reads_set_nothing_apart(found, exclude, took):
    depths = Depths(is_apart=False)
    depths.learn(question(per_lane=15), found, more=True, took=QUICK, now=0.0)
    depths.learn(question(exclude=exclude), [], more=False, took=took, now=0.0)
    assert depths.part([LANE], lambda _: True, 0.0)[1] == []


@pytest.mark.parametrize("hot", [20, 18])
def test_a_lane_is_deep_although_the_heads_of_others_take_a_few_rows(hot):  # E-8, T-D
    depths = Depths(is_apart=False)
    asked = ReadRequest("main", (LANE, LANE + 2), 20, 20, 1_000_000)
    found = rows("hot", hot) + rows("other-key", 20 - hot)
    depths.learn(asked, found, more=True, took=QUICK, now=0.0)
    depths.learn(question(exclude=[HOT]), [], more=False, took=SLOW, now=0.0)
    assert depths.part([LANE, 1], lambda _: True, 0.0) == ([1], [LANE])


def test_the_worker_apart_walks_past_a_busy_key_for_a_tenth_of_the_time():  # E-8, T-D
    depths = Depths(is_apart=True)
    deep(depths)
    depths.learn(question((LANE,), exclude=[HOT]), [], more=False, took=SLOW, now=1.0)
    later = 1.0 + 9 * SLOW
    assert depths.part([LANE], lambda _: False, 1.0, [HOT]) == ([], [])
    assert depths.look_at == pytest.approx(later)
    assert depths.part([LANE], lambda _: False, 1.0, [bytes(16)]) == ([LANE], [])  # it is its turn
    assert depths.look_at is None
    assert depths.part([LANE], lambda _: False, later, [HOT]) == ([LANE], [])
    depths.learn(question((LANE,), exclude=[HOT]), [], more=False, took=QUICK, now=later)
    assert depths.part([LANE], lambda _: False, later, [HOT]) == ([LANE], [])  # quick is harmless


def test_a_lane_comes_back_when_its_backlog_is_gone():
    depths = Depths(is_apart=True)
    deep(depths)
    assert depths.part([LANE], lambda _: True, 0.0) == ([LANE], [])
    depths.learn(question((LANE,), exclude=[HOT]), [], more=False, took=SLOW, now=0.0)
    assert depths.part([LANE], lambda _: True, 0.0) == ([LANE], [])  # it cannot be seen
    depths.learn(question((LANE,)), rows("hot", 3), more=False, took=QUICK, now=0.0)
    assert depths.part([LANE], lambda _: False, 0.0) == ([], [])
    assert depths.part([LANE], lambda _: True, 0.0) == ([], [LANE])


class SlowStore(MemoryStore):
    """Walks slowly past a key that is left out, as databases do."""

    def __init__(self):
        super().__init__()
        self.slow = []
        self.quick = []

    async def read(self, question):
        walks = LANE in question.lanes and HOT in question.exclude
        (self.slow if walks else self.quick).append(set(question.lanes))
        if walks:
            await asyncio.sleep(2 * SLOW_SECONDS)
        return await super().read(question)


class Gated(MemoryBroker):
    """Takes events of the hot key one by one, when it is told to."""

    def __init__(self):
        super().__init__()
        self.gate = asyncio.Semaphore(0)

    def _is_plain(self):
        return False

    async def _send(self, record):
        if record.key == "hot":
            await self.gate.acquire()
        return await super()._send(record)


@pytest.mark.promise("P1", "G4")
async def test_others_do_not_wait_for_reads_past_a_hot_key():  # E-8, T-D
    store, broker = SlowStore(), Gated()
    neighbour = next(k for n in range(10_000) if lane_of(key_hash(None, k := f"n{n}", "")) == LANE)

    async def write(key, *numbers):
        async with store.transaction() as tx:
            await Outbox().add_many(tx, [Event("e", id=f"{key}/{n}", key=key) for n in numbers])

    await write("hot", *range(300))
    async with Relay(store, broker, batch_size=20):
        for n in range(200):  # one of these keys is in the same lane: it must not wait for ever
            if any(lanes == {LANE} for lanes in store.slow):
                break
            await write(f"k{n}", 0)
            await until(lambda n=n: f"k{n}/0" in ids(broker))
            broker.gate.release()
        else:
            pytest.fail("the lane was never set apart")
        mixed = len([lanes for lanes in store.slow if lanes != {LANE}])
        await write(neighbour, 0, 1)
        await until(lambda: f"{neighbour}/1" in ids(broker))  # while the hot key is in flight
        for n in range(20):
            await write(f"later{n}", 0)
            await until(lambda n=n: f"later{n}/0" in ids(broker))
        assert len([lanes for lanes in store.slow if lanes != {LANE}]) == mixed
        for _ in range(300):
            broker.gate.release()
        await until(lambda: "hot/299" in ids(broker))
        before = len(store.quick)
        n = 0
        while not any(LANE in lanes and len(lanes) > 1 for lanes in store.quick[before:]):
            await write("end", n := n + 1)  # it comes back with what happens next
            await until(lambda: f"end/{n}" in ids(broker))
    seen = ids(broker)
    assert [i for i in seen if i.startswith("hot/")] == [f"hot/{n}" for n in range(300)]
    assert len(seen) == len(set(seen))
