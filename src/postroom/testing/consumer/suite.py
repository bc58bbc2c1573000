"""The contract of a Source, tested through a whole Consumer, as tests to inherit.

    class TestMyBroker(ConsumerContract):
        @pytest.fixture
        async def wire(self): ...        # a ConsumerWire to your broker, with its own queue

Effects are rows of an SQLite file, written in the handlers' own transactions: the table would
show a duplicate.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from postroom.errors import Reject, Retry
from postroom.event import Event
from postroom.model.diagnostics import Finding
from postroom.record import Record
from postroom.retry import Constant, RetryPolicy
from postroom.testing.consumer.batches import ConsumerBatches
from postroom.testing.consumer.tools import JSON, PATIENCE_SECONDS, ConsumerWire, Room, Sent

__all__ = ["ConsumerContract", "ConsumerWire", "Room", "Sent"]


class ConsumerContract(ConsumerBatches):
    """Inherit it, and provide the fixture `wire`."""

    @pytest.fixture
    async def wire(self) -> ConsumerWire:
        raise NotImplementedError("give your test class a fixture `wire`")

    @pytest.fixture
    async def room(self, wire: ConsumerWire, tmp_path: Path) -> AsyncIterator[Room]:
        room = Room(wire, tmp_path / "consumer.db")
        await room.store.migrate()
        with closing(sqlite3.connect(room.path)) as conn:
            conn.execute("CREATE TABLE effects (name TEXT)")
            conn.commit()
        await room.store.open()
        yield room
        await room.store.close()

    @pytest.fixture
    def named(self, room: Room) -> None:
        """Register a handler whose effect is the id of the event."""

        @room.handlers.on("order.created")
        async def charge(event: Record, tx: Any) -> None:
            await room.effect(tx, event.id)

    # -- effects once (G6) ------------------------------------------------------------------------

    @pytest.mark.req("S3.4", "S5.4")
    @pytest.mark.promise("G6")
    @pytest.mark.usefixtures("named")
    async def test_a_message_takes_effect_and_is_gone(self, room: Room) -> None:
        await room.wire.send(Sent("m-1", key="a"), Sent("m-2", key="b"))
        async with room.consuming() as consumer:
            await room.until(lambda: consumer.counts.done == 2)
        assert sorted(room.effects()) == ["m-1", "m-2"]
        assert (consumer.counts.received, consumer.counts.repeats) == (2, 0)
        assert await room.wire.left() == 0

    @pytest.mark.usefixtures("named")
    async def test_a_check_of_the_source_consumes_nothing(self, room: Room) -> None:
        await room.wire.send(Sent("m-1", key="a"))
        found = await room.wire.source().check()
        assert all(isinstance(one, Finding) and one.what and one.fix for one in found)
        assert await room.wire.source().backlog() in (1, None)
        async with room.consuming() as consumer:
            await room.until(lambda: consumer.counts.done == 1)
        assert room.effects() == ["m-1"]
        assert await room.wire.source().backlog() in (0, None)

    @pytest.mark.req("S5.4")
    @pytest.mark.promise("G6")
    @pytest.mark.usefixtures("named")
    async def test_a_repeat_takes_no_effect(self, room: Room) -> None:
        await room.wire.send(Sent("m-1", key="a"), Sent("m-1", key="a"), Sent("m-2", key="a"))
        async with room.consuming() as consumer:
            await room.until(lambda: consumer.counts.done == 3)
        assert room.effects() == ["m-1", "m-2"]
        assert consumer.counts.repeats == 1

    @pytest.mark.req("S5.5")
    @pytest.mark.promise("G6", "I5")
    async def test_a_cloudevent_is_known_by_its_source_and_its_id(self, room: Room) -> None:  # R-A5
        @room.handlers.on("order.created")
        async def charge(event: Record, tx: Any) -> None:
            await room.effect(tx, f"{event.id} {event.data} {event.aggregate_id}")

        def facts(source: str) -> dict[str, str]:
            return {
                "specversion": "1.0", "id": "42", "source": source, "type": "order.created",
                "subject": "o-1",
            }  # fmt: skip

        def binary(source: str, prefix: str) -> Sent:
            headers = {f"{prefix}{name}": value for name, value in facts(source).items()}
            return Sent(None, b'{"n": 1}', None, None, {**headers, **JSON})

        def structured(source: str) -> Sent:
            body = json.dumps({**facts(source), "data": {"n": 1}}).encode()
            return Sent(None, body, None, None, {"content-type": "application/cloudevents+json"})

        await room.wire.send(
            binary("/a", "ce_"), binary("/b", "ce-"), structured("/c"),
            structured("/b"), structured("/a"), binary("/c", "cloudEvents:"),
        )  # fmt: skip
        async with room.consuming() as consumer:
            await room.until(lambda: consumer.counts.done == 6)
        assert consumer.counts.repeats == 3
        assert sorted(room.effects()) == [f"/{s} 42 {{'n': 1}} o-1" for s in "abc"]
        assert await room.dead() == {}

    @pytest.mark.promise("G7")
    @pytest.mark.usefixtures("named")
    async def test_a_message_that_is_too_large_costs_itself_alone(self, room: Room) -> None:  # X-M3
        await room.wire.send(
            Sent("a-1", key="a"), Sent("large", bytes(5_000), key="a"), Sent("a-2", key="a")
        )
        async with room.consuming(max_bytes=4_000) as consumer:
            await room.until(lambda: consumer.counts.done == 2 and consumer.counts.dead == 1)
        assert room.effects() == ["a-1", "a-2"]
        (reason,) = (await room.dead()).values()
        assert "more than max_bytes (4000), so its body was not stored" in reason
        assert await room.wire.left() == 0

    @pytest.mark.req("S3.5")
    @pytest.mark.promise("G6")
    async def test_a_consumer_that_dies_in_the_middle_loses_nothing(self, room: Room) -> None:
        reached = asyncio.Event()
        hang = True

        @room.handlers.on("order.created")
        async def charge(event: Record, tx: Any) -> None:
            await room.effect(tx, event.id)
            if hang:
                reached.set()
                await asyncio.Event().wait()

        await room.wire.send(Sent("m-1", key="a"), Sent("m-2", key="a"))
        first = room.consumer()
        await first.start()
        await asyncio.wait_for(reached.wait(), PATIENCE_SECONDS)
        await first.kill()
        hang = False
        async with room.consuming() as consumer:
            await room.until(lambda: consumer.counts.done == 2)
        assert room.effects() == ["m-1", "m-2"]
        assert await room.wire.left() == 0

    @pytest.mark.promise("G6")
    async def test_a_graceful_stop_finishes_what_runs_and_begins_nothing(self, room: Room) -> None:
        reached, go_on = asyncio.Event(), asyncio.Event()

        @room.handlers.on("order.created")
        async def charge(event: Record, tx: Any) -> None:
            reached.set()
            await go_on.wait()
            await room.effect(tx, event.id)

        await room.wire.send(Sent("m-1", key="a"), Sent("m-2", key="a"))
        consumer = room.consumer()
        await consumer.start()
        await asyncio.wait_for(reached.wait(), PATIENCE_SECONDS)
        stopping = asyncio.create_task(consumer.stop())
        await asyncio.sleep(0)
        go_on.set()
        await stopping
        assert not consumer.is_running
        assert room.effects() == ["m-1"]
        async with room.consuming() as after:
            await room.until(lambda: after.counts.done == 1)
        assert room.effects() == ["m-1", "m-2"]
        assert after.counts.repeats == 0

    # -- order (G4, I3) ---------------------------------------------------------------------------

    @pytest.mark.promise("G4", "I3")
    async def test_a_failed_message_holds_its_key_and_no_other(self, room: Room) -> None:
        other = asyncio.Event()

        @room.handlers.on("order.created")
        async def charge(event: Record, tx: Any) -> None:
            if event.id == "a-1" and not other.is_set():
                raise Retry("the other key is not through yet", after=0.01)
            await room.effect(tx, event.id)
            if event.id == "b-2":
                other.set()

        await room.wire.send(
            Sent("a-1", key="a"), Sent("a-2", key="a"), Sent("b-1", key="b"), Sent("b-2", key="b"),
            Sent("a-3", key="a"),
        )  # fmt: skip
        async with room.consuming(retry=RetryPolicy(max_attempts=10_000)) as consumer:
            await room.until(lambda: consumer.counts.done == 5)
        effects = room.effects()
        assert [name for name in effects if name.startswith("a")] == ["a-1", "a-2", "a-3"]
        assert [name for name in effects if name.startswith("b")] == ["b-1", "b-2"]
        assert await room.wire.left() == 0

    # -- poison (G7) ------------------------------------------------------------------------------

    @pytest.mark.promise("G7")
    async def test_what_always_fails_becomes_a_dead_letter_that_can_be_replayed(
        self, room: Room
    ) -> None:
        broken = True

        @room.handlers.on("order.created")
        async def charge(event: Record, tx: Any) -> None:
            if broken and event.id == "m-1":
                raise ValueError("no such customer")
            await room.effect(tx, event.id)

        numbered = {**JSON, "postroom-kseq": "1"}  # by a strict outbox; these handlers ignore it
        await room.wire.send(
            Sent("m-1", b'{"n": 1}', key="a", headers=numbered), Sent("m-2", key="a")
        )
        retry = RetryPolicy(max_attempts=3, backoff=Constant(0.01))
        async with room.consuming(retry=retry) as consumer:
            await room.until(lambda: consumer.counts.done == 1)
            assert room.effects() == ["m-2"]
            assert consumer.counts.dead == 1
            assert await room.dead() == {"inbox/payments/m-1": "ValueError: no such customer"}
            broken = False
            assert await room.store.replay(["inbox/payments/m-1"]) == 1
            await room.until(lambda: len(room.effects()) == 2)
        assert room.effects() == ["m-2", "m-1"]
        assert await room.dead() == {}
        assert await room.wire.left() == 0

    @pytest.mark.promise("G7")
    async def test_poison_of_every_kind_is_kept(self, room: Room) -> None:
        @room.handlers.on("order.created")
        async def charge(event: Record, tx: Any) -> None:
            if event.id == "rejected":
                raise Reject("the customer is dead")
            await room.effect(tx, str(event.data["n"]))

        await room.wire.send(
            Sent("no-handler", type="order.lost"),
            Sent("rejected"),
            Sent("no-json", b"{"),
            Sent("no-utf8", b"\xff\xfe\x00"),
            Sent("fine", b'{"n": 7}'),
        )
        async with room.consuming() as consumer:
            await room.until(lambda: consumer.counts.dead == 4 and consumer.counts.done == 1)
            dead = await room.dead()
        assert sorted(dead) == [
            "inbox/payments/no-handler",
            "inbox/payments/no-json",
            "inbox/payments/no-utf8",
            "inbox/payments/rejected",
        ]
        assert "no handler for type 'order.lost'" in dead["inbox/payments/no-handler"]
        assert "the customer is dead" in dead["inbox/payments/rejected"]
        assert "the body is not JSON" in dead["inbox/payments/no-json"]
        assert "the body is not JSON" in dead["inbox/payments/no-utf8"]
        kept = await room.store.get("inbox/payments/no-utf8")
        assert kept is not None
        assert kept.payload == b"\xff\xfe\x00"
        assert room.effects() == ["7"]
        assert await room.wire.left() == 0

    @pytest.mark.usefixtures("named")
    async def test_types_without_a_handler_can_be_ignored(self, room: Room) -> None:
        await room.wire.send(Sent("m-1", type="order.lost"), Sent("m-2"))
        async with room.consuming(unhandled="ignore") as consumer:
            await room.until(lambda: consumer.counts.done == 1 and consumer.counts.ignored == 1)
            assert await room.dead() == {}
        assert await room.wire.left() == 0

    # -- ids (S5.5) -------------------------------------------------------------------------------

    @pytest.mark.req("S5.5")
    @pytest.mark.promise("I5")
    async def test_a_message_without_an_id_is_known_by_its_body(self, room: Room) -> None:
        @room.handlers.default
        async def charge(event: Record, tx: Any) -> None:
            await room.effect(tx, event.payload.decode())

        await room.wire.send(Sent(None, b"1"), Sent(None, b"2"), Sent(None, b"1"))
        async with room.consuming() as consumer:
            await room.until(lambda: consumer.counts.done == 3)
        assert sorted(room.effects()) == ["1", "2"]
        assert consumer.counts.hashed_ids == 3

    @pytest.mark.promise("I5")
    @pytest.mark.usefixtures("named")
    async def test_a_message_without_an_id_can_be_rejected(self, room: Room) -> None:
        await room.wire.send(Sent(None, b'{"n": 1}'), Sent("m-2"))
        async with room.consuming(missing_id="reject") as consumer:
            await room.until(lambda: consumer.counts.dead == 1 and consumer.counts.done == 1)
            (problem,) = (await room.dead()).values()
        assert "missing_id='reject'" in problem
        assert room.effects() == ["m-2"]

    # -- what a handler receives (S3.1, S5.7) -----------------------------------------------------

    @pytest.mark.req("S3.1", "S5.7")
    async def test_the_event_carries_its_history_and_hands_it_on(self, room: Room) -> None:
        seen: list[Record] = []

        @room.handlers.on("order.created")
        async def charge(event: Record, tx: Any, context: Any) -> None:
            seen.append(event)
            await context.add(Event("payment.made", {"of": event.id}, id="p-1"))

        headers = {
            **JSON,
            "postroom-correlation-id": "story-1",
            "postroom-causation-path": '[["shop","cart.closed"]]',
            "postroom-aggregate-type": "order",
            "postroom-kseq": "3",
            "tenant": "north",
        }
        await room.wire.send(Sent("m-1", b'{"n":1}', key="a", headers=headers))
        async with room.consuming() as consumer:
            await room.until(lambda: consumer.counts.done == 1)
        (event,) = seen
        assert (event.id, event.type, event.key, event.data) == (
            "m-1", "order.created", "a", {"n": 1},
        )  # fmt: skip
        assert (event.correlation_id, event.aggregate_type) == ("story-1", "order")
        assert event.kseq == 3
        assert event.headers["tenant"] == "north"
        added = await room.store.get("p-1")
        assert added is not None
        assert added.correlation_id == "story-1"
        assert added.causation_path == (("shop", "cart.closed"), ("payments", "order.created"))

    # -- the durable inbox (S2, S3.5) -------------------------------------------------------------

    @pytest.mark.req("S3.5")
    @pytest.mark.promise("G2", "G6", "I1")
    async def test_a_kept_message_needs_the_broker_no_more(self, room: Room) -> None:
        reached = asyncio.Event()
        hang = True

        @room.handlers.on("order.created")
        async def charge(event: Record, tx: Any) -> None:
            await room.effect(tx, event.id)
            if hang:
                reached.set()
                await asyncio.Event().wait()

        await room.wire.send(Sent("m-1", key="a"), Sent("m-2", key="a"), Sent("m-1", key="a"))
        first = room.consumer(mode="durable", lease_seconds=1.5)
        await first.start()
        await asyncio.wait_for(reached.wait(), PATIENCE_SECONDS)
        await room.until(lambda: first.counts.stored == 3)
        await room.broker_knows()
        await first.kill()
        assert room.effects() == []  # received is not done
        assert await room.wire.left() == 0
        hang = False
        async with room.consuming(mode="durable", lease_seconds=1.5):
            await room.until(lambda: len(room.effects()) == 2)
        assert room.effects() == ["m-1", "m-2"]

    @pytest.mark.promise("G4", "G7")
    async def test_kept_messages_are_tried_in_order_and_buried(self, room: Room) -> None:
        @room.handlers.on("order.created")
        async def charge(event: Record, tx: Any) -> None:
            if event.id == "a-1":
                raise ValueError("no such customer")
            await room.effect(tx, event.id)

        numbered = {**JSON, "postroom-kseq": "1"}  # by a strict outbox; these handlers ignore it
        await room.wire.send(
            Sent("a-1", key="a", headers=numbered), Sent("a-2", key="a"), Sent("a-3", key="a"),
            Sent("b-1", key="b"),
        )  # fmt: skip
        retry = RetryPolicy(max_attempts=3, backoff=Constant(0.01))
        async with room.consuming(mode="durable", retry=retry):
            await room.until(lambda: len(room.effects()) == 3)
            dead = await room.dead()
        assert dead == {"inbox/payments/a-1": "ValueError: no such customer"}
        assert [name for name in room.effects() if name.startswith("a")] == ["a-2", "a-3"]
