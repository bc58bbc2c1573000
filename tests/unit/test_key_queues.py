"""The queues of a consumer's keys: order, dropped messages, and the count of those in flight."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from postroom.engine.consumer.key_queues import KeyQueues


class Scene:
    """Queues whose messages are finished by hand: True, False, or an error."""

    def __init__(self):
        self.begun, self.left, self.errors, self.answers = [], 0, [], {}
        self.queues = KeyQueues(self._finish, self._on_left, self.errors.append)

    async def _finish(self, received):
        self.begun.append(received.name)
        answer = self.answers.get(received.name, True)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _on_left(self, number):
        self.left += number

    def put(self, *names, lost=False):
        """Queue messages; the first letter is their key."""
        for name in names:
            record = SimpleNamespace(key_hash=name[:1].encode())
            delivery = SimpleNamespace(is_lost=lost)
            self.queues.put(
                SimpleNamespace(name=name, record=record, delivery=delivery, keep=False, problem="")
            )

    async def end(self):
        async with asyncio.timeout(10):
            await self.queues.wait()


@pytest.fixture
def scene():
    return Scene()


async def test_each_key_goes_in_its_order_and_all_are_counted(scene):
    scene.put("a1", "b1", "a2", "a3", "b2")
    assert [scene.queues.count(key) for key in (b"a", b"b", b"c")] == [3, 2, 0]
    await scene.end()
    assert [name for name in scene.begun if name[0] == "a"] == ["a1", "a2", "a3"]
    assert [name for name in scene.begun if name[0] == "b"] == ["b1", "b2"]
    assert scene.left == 5
    assert scene.queues.count(b"a") == 0


@pytest.mark.parametrize("answer", [False, ZeroDivisionError()])
async def test_messages_behind_one_that_could_not_be_finished_are_no_longer_in_flight(
    scene, answer
):
    """They are dropped. Otherwise the room of the consumer would shrink with each of them."""
    scene.answers["a2"] = answer
    scene.put("a1", "a2", "a3", "a4", "b1")
    await scene.end()
    assert sorted(scene.begun) == ["a1", "a2", "b1"]
    assert scene.left == 5
    assert scene.queues.count(b"a") == 0
    assert scene.errors == ([answer] if answer else [])


async def test_lost_messages_are_passed_over(scene):
    scene.put("a1", "a2", lost=True)
    scene.put("a3")
    await scene.end()
    assert (scene.begun, scene.left) == (["a3"], 3)
