"""The contract of a consumer whose messages share transactions (`batch`).

The first message of each test occupies the only slot until all others have been received, so that
the batches are those that the test expects.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from postroom.engine.consumer import Consumer
from postroom.record import Record
from postroom.retry import Constant, RetryPolicy
from postroom.testing.consumer.tools import PATIENCE_SECONDS, Room, Sent


class Gate:
    """The message `gate`, which keeps its slot until it is opened; counts every call."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._reached = asyncio.Event()
        self._open = asyncio.Event()
        self.calls: Counter[str] = Counter()

    async def passed(self, event: Record) -> None:
        self.calls[event.id] += 1
        if event.id == "gate":
            self._reached.set()
            await self._open.wait()

    async def gather(self, consumer: Consumer, *messages: Sent) -> None:
        """Let all of these messages wait for the consumer's only slot, then open it."""
        await self._room.wire.send(Sent("gate", key="gate"))
        await asyncio.wait_for(self._reached.wait(), PATIENCE_SECONDS)
        await self._room.wire.send(*messages)
        await self._room.until(lambda: consumer.counts.received == len(messages) + 1)
        self._open.set()


class ConsumerBatches:
    """A part of ConsumerContract."""

    @pytest.mark.promise("G4", "G6")
    async def test_a_batch_is_one_transaction_and_keys_keep_their_order(self, room: Room) -> None:
        gate = Gate(room)
        seen: dict[str, list[str]] = {}

        @room.handlers.on("order.created")
        async def charge(event: Record, tx: Any) -> None:
            await gate.passed(event)
            seen[event.id] = sorted(room.effects())  # as another connection sees it
            await room.effect(tx, event.id)

        async with room.consuming(batch=10) as consumer:
            await gate.gather(
                consumer, Sent("a-1", key="a"), Sent("b-1", key="b"), Sent("c-1", key="c"),
                Sent("a-2", key="a"), Sent("b-2", key="b"), Sent("a-3", key="a"),
                Sent("b-1", key="b"),
            )  # fmt: skip
            await room.until(lambda: consumer.counts.done == 8)
        counts = consumer.counts
        assert (counts.repeats, counts.failed, counts.split) == (1, 0, 0)
        # Three batches: all keys, then a and b, then a's last one with the repeat.
        assert counts.batched == 7
        first, second = ["gate"], ["a-1", "b-1", "c-1", "gate"]
        assert [seen[name] for name in ("a-1", "b-1", "c-1")] == [first, first, first]
        assert [seen[name] for name in ("a-2", "b-2")] == [second, second]
        effects = room.effects()
        assert [name for name in effects if name.startswith("a")] == ["a-1", "a-2", "a-3"]
        assert [name for name in effects if name.startswith("b")] == ["b-1", "b-2"]
        assert await room.wire.left() == 0

    @pytest.mark.promise("G7")
    async def test_poison_in_a_batch_costs_its_neighbours_nothing(self, room: Room) -> None:
        gate = Gate(room)

        @room.handlers.on("order.created")
        async def charge(event: Record, tx: Any) -> None:
            await gate.passed(event)
            await room.effect(tx, event.id)
            if event.id == "b-1":
                raise ValueError("no such customer")

        retry = RetryPolicy(max_attempts=3, backoff=Constant(0.01))
        async with room.consuming(batch=10, retry=retry) as consumer:
            await gate.gather(
                consumer, Sent("a-1", key="a"), Sent("b-1", key="b"), Sent("c-1", key="c"),
                Sent("b-2", key="b"),
            )  # fmt: skip
            await room.until(lambda: consumer.counts.done + consumer.counts.dead == 5)
            dead = await room.dead()
        counts = consumer.counts
        assert sorted(room.effects()) == ["a-1", "b-2", "c-1", "gate"]
        assert dead == {"inbox/payments/b-1": "ValueError: no such customer"}
        # Once in the batch, without an attempt, and then each individually.
        assert gate.calls["b-1"] == 4
        assert max(gate.calls["a-1"], gate.calls["c-1"]) <= 2
        assert (counts.split, counts.failed, counts.dead) == (3, 2, 1)
        assert await room.wire.left() == 0

    @pytest.mark.promise("G6")
    async def test_a_consumer_that_dies_in_a_batch_loses_nothing(self, room: Room) -> None:
        gate = Gate(room)
        reached = asyncio.Event()
        hang = True

        @room.handlers.on("order.created")
        async def charge(event: Record, tx: Any) -> None:
            await gate.passed(event)
            await room.effect(tx, event.id)
            if hang and event.id == "c-1":
                reached.set()
                await asyncio.Event().wait()

        first = room.consumer(batch=10)
        await first.start()
        await gate.gather(first, Sent("a-1", key="a"), Sent("b-1", key="b"), Sent("c-1", key="c"))
        await asyncio.wait_for(reached.wait(), PATIENCE_SECONDS)
        await first.kill()
        assert room.effects() == ["gate"]
        hang = False
        async with room.consuming(batch=10) as consumer:
            await room.until(lambda: len(room.effects()) == 4 and consumer.counts.done >= 3)
        assert sorted(room.effects()) == ["a-1", "b-1", "c-1", "gate"]
        assert await room.wire.left() == 0

    @pytest.mark.promise("G6")
    async def test_a_graceful_stop_finishes_the_batch_that_runs(self, room: Room) -> None:
        gate = Gate(room)
        reached, go_on = asyncio.Event(), asyncio.Event()

        @room.handlers.on("order.created")
        async def charge(event: Record, tx: Any) -> None:
            await gate.passed(event)
            await room.effect(tx, event.id)
            if event.id != "gate":
                reached.set()
                await go_on.wait()

        consumer = room.consumer(batch=2)
        await consumer.start()
        await gate.gather(
            consumer, Sent("a-1", key="a"), Sent("b-1", key="b"), Sent("c-1", key="c")
        )
        await asyncio.wait_for(reached.wait(), PATIENCE_SECONDS)
        stopping = asyncio.create_task(consumer.stop())
        await asyncio.sleep(0)
        go_on.set()
        await stopping
        assert consumer.counts.batched == 2
        assert len(room.effects()) == 3  # the third one was not started
        async with room.consuming(batch=2) as after:
            await room.until(lambda: after.counts.done == 1)
        assert sorted(room.effects()) == ["a-1", "b-1", "c-1", "gate"]
        assert after.counts.repeats == 0
