"""Messages that no decoder likes, on a real RabbitMQ: each costs itself, and no neighbour (G7)."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress

import pytest

from postroom.testing.consumer.tools import Room, Sent
from tests.contract.test_consumer_rabbitmq import RabbitWire, Sender
from tests.hostile_amqp import HOSTILE, fuzzed
from tests.scenario.rabbit import fresh
from tests.servers.amqp_wire import RawSender, RefusedError

FUZZED = 100


@pytest.fixture
async def sender(rabbitmq_url):
    async with Sender(rabbitmq_url) as sender:
        yield sender


@pytest.fixture
async def room(rabbitmq_url, sender, tmp_path):
    """A quorum queue that drops what it has delivered 20 times, as RabbitMQ 4 does by default."""
    queue, exchange = fresh("hostile"), fresh("hostile")
    await sender.queue(queue, **{"x-single-active-consumer": True, "x-delivery-limit": 20})
    await sender.exchange(exchange, "fanout")
    await sender.bind(queue, exchange, "")
    wire = RabbitWire(rabbitmq_url, sender, queue)
    wire.exchange = exchange.encode()
    room = Room(wire, tmp_path / "consumer.db")
    await room.store.migrate()
    with closing(sqlite3.connect(room.path)) as conn:
        conn.execute("CREATE TABLE effects (name TEXT)")
        conn.commit()
    await room.store.open()

    @room.handlers.default
    async def charge(event, tx):
        await room.effect(tx, event.id)

    yield room
    await room.store.close()


def neighbours(first, number):
    return [Sent(f"good-{n}", key=f"k-{n % 3}") for n in range(first, first + number)]


@pytest.mark.req("S5.3", "S2.4")
@pytest.mark.promise("G2", "G6", "G7", "F1")
@pytest.mark.parametrize("mode", ["direct", "durable"])
async def test_a_message_that_cannot_be_decoded_costs_no_other(room, rabbitmq_url, mode):
    """X-C1, R-C2, R-C3: good neighbours before and after each of them."""
    sent = 0
    async with RawSender(rabbitmq_url) as raw:
        for case in HOSTILE:
            await room.wire.send(*neighbours(sent, 3))
            sent += 3
            await raw.publish(case.routing_key, case.listed, exchange=room.wire.exchange)
        await room.wire.send(*neighbours(sent, 3))
        sent += 3
    handled = [case for case in HOSTILE if not case.problem]
    dead = [case for case in HOSTILE if case.problem]
    async with room.consuming(mode=mode) as consumer:
        await room.until(lambda: len(room.effects()) == sent + len(handled))
        await room.until(lambda: consumer.counts.dead == len(dead))
        assert consumer.source.connection.losses == 0
    assert sorted(room.effects()) == sorted(
        [f"good-{n}" for n in range(sent)] + [f"hostile-{case.name}" for case in handled]
    )
    told = await room.dead()
    assert sorted(told.values()) == sorted(case.problem for case in dead)
    assert any(dead_id.endswith("/caf\\xe9") for dead_id in told)  # what could be read of it
    assert await room.wire.left() == 0


@pytest.mark.slow
@pytest.mark.promise("G2", "G6", "G7")
async def test_random_properties_cost_no_other_message_anything(room, rabbitmq_url):
    taken, sent = 0, 0
    async with RawSender(rabbitmq_url) as raw:
        for seed in range(FUZZED):
            with suppress(RefusedError):  # RabbitMQ looks at them, too
                await raw.publish(b"", fuzzed(seed), exchange=room.wire.exchange)
                taken += 1
            if seed % 10 == 0:
                await room.wire.send(*neighbours(sent, 2))
                sent += 2
    assert taken > FUZZED / 3
    async with room.consuming() as consumer:
        await room.until(lambda: consumer.counts.done + consumer.counts.dead == sent + taken)
        assert consumer.source.connection.losses == 0
    effects = [name for name in room.effects() if name.startswith("good-")]
    assert sorted(effects) == sorted(f"good-{n}" for n in range(sent))
    assert len(set(room.effects())) == len(room.effects())
    assert len(room.effects()) - sent + len(await room.dead()) == taken
    assert await room.wire.left() == 0
