"""The limiter: side by side, alone, fair, and not confused by cancellation."""

from __future__ import annotations

import asyncio

import pytest

from postroom.engine.handlers.limiter import SharedLimiter


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


class Crowd:
    """Runs that enter a limiter and stay until they are let go."""

    def __init__(self, size):
        self.limiter = SharedLimiter(size)
        self.inside = []
        self.order = []
        self._go = {}
        self.tasks = {}

    async def come(self, *names):
        for name in names:
            self._go[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._stay(name))
            await settle()

    async def go(self, *names):
        for name in names:
            self._go[name].set()
            await settle()

    async def cancel(self, name):
        self.tasks[name].cancel()
        await settle()
        assert self.tasks[name].cancelled()

    async def _stay(self, name):
        alone = name.isupper()
        async with self.limiter.alone() if alone else self.limiter.shared():
            self.inside.append(name)
            self.order.append(name)
            assert not alone or self.inside == [name]
            try:
                await self._go[name].wait()
            finally:
                self.inside.remove(name)


async def test_so_many_side_by_side_and_the_rest_in_order():
    crowd = Crowd(2)
    await crowd.come("a", "b", "c", "d")
    assert crowd.inside == ["a", "b"]
    await crowd.go("b", "a", "c", "d")
    assert crowd.order == ["a", "b", "c", "d"]
    assert crowd.inside == []


@pytest.mark.promise("P3")
async def test_one_who_must_be_alone_goes_before_those_who_wait_and_shares_with_nobody():
    crowd = Crowd(2)
    await crowd.come("a", "b", "c", "X", "d")
    await crowd.go("a")
    assert crowd.inside == ["b"]
    await crowd.go("b")
    assert crowd.inside == ["X"]
    await crowd.go("X")
    assert crowd.inside == ["c", "d"]


async def test_those_who_waited_meanwhile_go_before_the_next_one_alone():
    crowd = Crowd(2)
    await crowd.come("X", "a", "Y", "b", "c")
    assert crowd.inside == ["X"]
    await crowd.go("X")
    assert crowd.inside == ["a", "b"]
    await crowd.go("a", "b")
    assert crowd.inside == ["Y"]
    await crowd.go("Y")
    assert crowd.inside == ["c"]
    await crowd.go("c")
    assert crowd.inside == []


@pytest.mark.parametrize("leaver", ["b", "X"])
async def test_one_who_gives_up_waiting_is_in_nobodys_way(leaver):
    crowd = Crowd(1)
    await crowd.come("a", leaver, "c")
    await crowd.cancel(leaver)
    await crowd.go("a")
    assert crowd.inside == ["c"]


async def test_who_waits_behind_one_alone_that_gives_up_goes_on_at_once():
    crowd = Crowd(2)
    await crowd.come("a", "X", "b")
    assert crowd.inside == ["a"]
    await crowd.cancel("X")
    assert crowd.inside == ["a", "b"]


@pytest.mark.parametrize("winner", ["b", "X"])
async def test_one_let_in_and_cancelled_in_the_same_moment_gives_its_place_on(winner):
    crowd = Crowd(1)
    await crowd.come("a", winner, "c")
    crowd._go["a"].set()
    while crowd.inside:  # until `a` has left and the next one is let in, but has not run yet
        await asyncio.sleep(0)
    crowd.tasks[winner].cancel()
    await settle()
    assert crowd.inside == ["c"]
    await crowd.go("c")
    await crowd.come("d")
    assert crowd.inside == ["d"]


async def test_one_cancelled_inside_leaves():
    crowd = Crowd(1)
    await crowd.come("X", "a")
    await crowd.cancel("X")
    assert crowd.inside == ["a"]
