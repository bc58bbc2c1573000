"""A consumer on RabbitMQ when connections break, consumers die, and queues are not there."""

from __future__ import annotations

import asyncio
import signal
from urllib.parse import urlsplit

import pytest

from postroom import Handlers
from postroom.engine.consumer import Consumer
from postroom.errors import ConfigError
from postroom.retry import Constant, RetryPolicy
from postroom.sources.rabbitmq.message import incoming
from postroom.sources.rabbitmq.source import RabbitSource
from postroom.stores.memory import MemoryStore
from postroom.telemetry.health import Health, Pulse
from postroom.telemetry.sampler import Sampler
from postroom.testing.consumer import Sent
from tests.contract.test_consumer_rabbitmq import RabbitWire, Sender
from tests.scenario.consumer_place import Ledger, consumer, orders
from tests.scenario.place import until
from tests.scenario.postgres_place import own_schema
from tests.scenario.rabbit import fresh
from tests.servers.proxy import Proxy


@pytest.fixture
async def sender(rabbitmq_url):
    async with Sender(rabbitmq_url) as sender:
        yield sender


@pytest.fixture
async def wire(rabbitmq_url, sender):
    queue = fresh("faults")
    await sender.queue(queue, **{"x-single-active-consumer": True})
    return RabbitWire(rabbitmq_url, sender, queue)


@pytest.fixture
async def ledger(postgres_url):
    with own_schema(postgres_url) as url:
        yield await Ledger(url).create()


@pytest.fixture
def proxy(rabbitmq_url):
    with Proxy(urlsplit(rabbitmq_url).port) as proxy:
        yield proxy


def expected(keys, each):
    return {key: [f"{key}-{n}" for n in range(1, each + 1)] for key in keys}


@pytest.mark.slow
@pytest.mark.req("S5.3")
@pytest.mark.promise("G2", "G4", "G6")
async def test_cut_connections_lose_nothing_and_double_nothing(wire, ledger, proxy):
    keys, each = "abcde", 20
    await wire.send(*orders(keys, each))
    url = f"{proxy.url_for(wire.url)}?queue={wire.queue}&prefetch=20"
    async with consumer(ledger, url, "--slow", "0.01") as process:
        for done in (10, 30, 50, 70):
            await until(lambda wanted=done: len(ledger.effects()) >= wanted)
            proxy.cut()
        await until(lambda: len(ledger.effects()) >= 90)
        proxy.refuse()  # RabbitMQ is away for a while
        await wire.send(*orders("f", 3))
        proxy.accept()
        await until(lambda: len(ledger.effects()) >= 103)
        assert await process.stop() == 0
    assert ledger.by_key() == {**expected(keys, each), **expected("f", 3)}
    assert await wire.left() == 0


@pytest.mark.slow
@pytest.mark.promise("G4", "G6", "I3")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
async def test_a_standby_takes_over_and_keeps_the_order(wire, ledger, end):
    keys, each = "abcde", 20
    url = f"{wire.url}?queue={wire.queue}&prefetch=30"
    async with consumer(ledger, url, "--slow", "0.05") as first:
        await first.runs()
        async with consumer(ledger, url, "--slow", "0.05") as second:
            await second.runs()
            await wire.send(*orders(keys, each))
            await until(lambda: len(ledger.effects()) >= 30)
            first.signal(end)
            await until(lambda: len(ledger.effects()) >= 100)
            assert await second.stop() == 0
    assert ledger.by_key() == expected(keys, each)
    processes = {p for (p,) in ledger.run("SELECT DISTINCT process FROM effects")}
    assert processes == {first.pid, second.pid}
    assert await wire.left() == 0


@pytest.mark.parametrize("kind", ["quorum", "classic"])
@pytest.mark.promise("G4", "I3")
async def test_who_stops_leaves_nothing_to_the_next_before_it_lets_go(rabbitmq_url, sender, kind):
    """A consumer that is cancelled makes room for the next one, with messages still in hand."""
    queue = fresh("handover")
    await sender.queue(queue, kind=kind, **{"x-single-active-consumer": True})
    wire = RabbitWire(rabbitmq_url, sender, queue, prefetch=2)
    await wire.send(*(Sent(f"m-{n}", key="k") for n in range(1, 7)))
    first, second = wire.source(), wire.source()
    await first.open()
    in_hand = await receive(first, 2)
    await second.open()
    await first.pause()
    in_hand[0].ack()
    await first.close()
    seen = []
    while len(seen) < 5:
        for delivery in await second.receive():
            seen.append(delivery.message.headers["postroom-id"])
            delivery.ack()
    await second.close()
    assert [delivery.message.headers["postroom-id"] for delivery in in_hand] == ["m-1", "m-2"]
    assert seen == ["m-2", "m-3", "m-4", "m-5", "m-6"]


@pytest.mark.req("S4.9", "S5.3")
async def test_a_broker_that_cannot_be_reached_is_a_warning_until_it_is_back(wire, proxy, caplog):
    """R-D1."""
    handled = []
    handlers = Handlers(name="payments")

    @handlers.default
    async def note(event, tx):
        handled.append(event.id)

    url = f"{proxy.url_for(wire.url)}?queue={wire.queue}&connect_seconds=2"
    async with Consumer(url, MemoryStore(), handlers) as consumer:
        health = Health([], Sampler([]), Pulse(), [consumer])
        assert health.ready().facts["warnings"] == []
        proxy.refuse()
        proxy.cut()
        await until(lambda: consumer.connection.trouble)
        assert health.ready().ok
        assert health.ready().facts["warnings"] == [
            (
                "the consumer payments cannot receive: its broker is unreachable, or its topic or "
                "queue is missing; see the log"
            )
        ]
        await wire.send(Sent("m-1"))
        proxy.accept()
        await until(lambda: handled == ["m-1"])
        assert health.ready().facts["warnings"] == []
        assert consumer.connection.losses == 1
    lines = [r.getMessage() for r in caplog.records if r.name.startswith("postroom.sources")]
    assert [line.partition(": ")[0] for line in lines] == [
        "the connection to RabbitMQ was lost", f"consuming '{wire.queue}' of RabbitMQ again",
    ]  # fmt: skip


@pytest.mark.req("S4.9")
async def test_a_lost_connection_is_told_while_the_consumer_takes_no_more(wire, proxy):
    """R-D1: it may be busy for long with what it has."""
    busy, free = asyncio.Event(), asyncio.Event()
    handlers = Handlers(name="payments")

    @handlers.default
    async def charge(event, tx):
        busy.set()
        await free.wait()

    url = f"{proxy.url_for(wire.url)}?queue={wire.queue}"
    await wire.send(Sent("m-1"))
    async with Consumer(url, MemoryStore(), handlers, max_in_flight=1) as consumer:
        await asyncio.wait_for(busy.wait(), 30)
        proxy.refuse()
        proxy.cut()
        await until(lambda: consumer.connection.trouble)
        proxy.accept()
        free.set()
        await until(lambda: consumer.counts.repeats == 1)
        assert (consumer.connection.trouble, consumer.connection.losses) == ("", 1)


@pytest.mark.promise("G7")
async def test_a_message_that_cannot_be_read_is_handed_over_as_one(wire, monkeypatch):
    """What raises in a callback of aiormq would hold its message for ever."""

    def refuse(content, body, names):
        if content.message_id == "m-2":
            raise RecursionError("too deep")
        return incoming(content, body, names)

    monkeypatch.setattr("postroom.sources.rabbitmq.source.incoming", refuse)
    await wire.send(*(Sent(f"m-{n}") for n in (1, 2, 3)))
    source = wire.source()
    await source.open()
    found = await receive(source, 3)
    await source.close()
    told = "the message cannot be read: RecursionError: too deep"
    assert [delivery.message.problem for delivery in found] == ["", told, ""]


@pytest.mark.promise("G7")
async def test_attempts_outlive_lost_connections(wire, proxy):
    """R-D4: a message that RabbitMQ takes back before its end began with no attempts again."""
    tried = []
    handlers = Handlers(name="payments")

    @handlers.default
    async def charge(event, tx):
        tried.append(event.attempts)
        if len(tried) < 3:
            proxy.cut()
            losses = len(tried)
            await until(lambda: consumer.connection.losses == losses)
        raise ValueError("no")

    url = f"{proxy.url_for(wire.url)}?queue={wire.queue}"
    retry = RetryPolicy(3, Constant(0.01))
    await wire.send(Sent("m-1"))
    async with Consumer(url, MemoryStore(), handlers, retry=retry) as consumer:
        await until(lambda: consumer.counts.dead == 1)
    assert tried == [0, 1, 2]
    assert await wire.left() == 0


async def receive(source, number):
    found = []
    while len(found) < number:
        found += await source.receive()
    return found


async def test_a_queue_that_is_not_there_is_waited_for(rabbitmq_url, sender):  # U8
    seen, handlers, queue = [], Handlers(name="payments"), fresh("missing")

    @handlers.on(queue)  # the routing key, in messages without a type
    async def handle(event, tx):
        seen.append(event.id)

    source = RabbitSource(rabbitmq_url, queue=queue)
    async with Consumer(source, MemoryStore(), handlers) as consumer:
        assert "no queue" in consumer.connection.trouble
        await sender.queue(queue)
        await sender.publish_to("", queue, b"{}", "m-1")
        await until(lambda: seen == ["m-1"], 20)
        assert consumer.connection.trouble == ""


async def test_a_queue_is_declared_with_its_bindings_and_a_single_active_consumer(
    rabbitmq_url, sender
):
    queue, exchange = fresh("declared"), fresh("orders")
    sender.owns(exchange=exchange, queue=queue)
    source = RabbitSource(
        f"{rabbitmq_url}?queue={queue}&declare=on&exchange={exchange}&bindings=order.*"
    )
    await source.open()
    await source.health()
    await sender.publish_to(exchange, "order.created", b"{}", "m-1")
    (delivery,) = await source.receive()
    assert delivery.message.topic == "order.created"
    assert delivery.message.headers["postroom-id"] == "m-1"
    delivery.ack()
    await source.close()
    assert delivery.is_lost
    assert await sender.waiting(queue) == 0


@pytest.mark.promise("G2")
async def test_a_consumer_that_crashes_again_and_again_loses_nothing(rabbitmq_url, sender):
    """R-C3: on a queue with a limit of 20 deliveries all of them would be gone."""
    declared, limited = fresh("crashes"), fresh("crashes")
    sender.owns(queue=declared)
    await sender.queue(limited, **{"x-delivery-limit": 20})
    for queue, options, left in ((declared, {"declare": True}, 30), (limited, {}, 0)):
        wire = RabbitWire(rabbitmq_url, sender, queue, prefetch=100, **options)
        if options:
            await crash(wire, 0)  # it declares the queue
        await wire.send(*(Sent(f"m-{n}") for n in range(30)))
        for _ in range(21):
            await crash(wire, 30)
        async with asyncio.timeout(30):
            while await wire.left() != left:
                await asyncio.sleep(0.01)
    source = RabbitSource(rabbitmq_url, queue=declared)
    await source.open()
    assert len(await receive(source, 30)) == 30
    await source.close()


async def crash(wire, number):
    """Take messages, and die with them in hand."""
    source = wire.source()
    await source.open()
    in_hand = await receive(source, number)
    assert len(in_hand) == number
    source._link.abort()
    await source.close()


async def test_a_queue_that_is_deleted_is_waited_for(rabbitmq_url, sender):
    queue = fresh("deleted")
    await sender.queue(queue, kind="classic")
    wire = RabbitWire(rabbitmq_url, sender, queue)
    source = wire.source()
    await source.open()
    await sender.remove_queue(queue)
    await sender.queue(queue, kind="classic")
    await wire.send(Sent("m-1"))
    (delivery,) = await source.receive()
    assert delivery.message.headers["postroom-id"] == "m-1"
    await source.close()


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("queue=q&prefetch=0", "prefetch must be a number from 1 to 65535"),
        ("queue=q&confirm_seconds=1", "unknown option 'confirm_seconds'"),
        ("queue=q&single=maybe", "must be true or false"),
        ("queue=q&bindings=a", "bindings need declare"),
    ],
)
def test_options_that_make_no_sense(query, problem):
    with pytest.raises(ConfigError, match=problem):
        RabbitSource(f"amqp://localhost?{query}")
