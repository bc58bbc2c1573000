"""The inbox around FastStream's subscribers, on real brokers, with effects in PostgreSQL."""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Annotated, Any

import psycopg
import pytest
from faststream import AckPolicy, Context
from faststream.confluent import KafkaBroker
from faststream.exceptions import RejectMessage
from faststream.rabbit import RabbitBroker, RabbitQueue

from postroom.errors import ConfigError
from postroom.integrations import faststream, faststream_runs
from postroom.integrations.faststream import check_policies, inbox_middleware
from postroom.model.incoming import Incoming
from postroom.testing.consumer import Sent
from tests.contract.test_consumer_kafka import KafkaWire
from tests.contract.test_consumer_rabbitmq import RabbitWire, Sender
from tests.scenario.consumer_place import Ledger
from tests.scenario.place import until
from tests.scenario.postgres_place import own_schema
from tests.scenario.rabbit import fresh

Tx = Annotated[Any, Context("tx")]


@pytest.fixture
async def ledger(postgres_url):
    with own_schema(postgres_url) as url:
        yield await Ledger(url).create()


@pytest.fixture
def middleware(ledger):
    @asynccontextmanager
    async def transaction():
        async with await psycopg.AsyncConnection.connect(ledger.url) as conn, conn.transaction():
            yield conn

    return inbox_middleware("payments", transaction)


class Crash(Exception):
    pass


def subscribing(broker, *where, **options):
    """A subscriber that fails at its first message, after the effect."""
    tried = []

    @broker.subscriber(*where, ack_policy=AckPolicy.NACK_ON_ERROR, **options)
    async def pay(body: dict, tx: Tx):
        first = not tried
        tried.append(body["id"])
        await tx.execute("INSERT INTO effects (message) VALUES (%s)", (body["id"],))
        if first:
            raise Crash

    return tried


def orders(*ids):
    return [Sent(each, b'{"id": "%s"}' % each.encode(), key="k") for each in ids]


@pytest.mark.req("S5.4")
@pytest.mark.promise("G6", "I5")
async def test_on_rabbitmq_effects_happen_once(rabbitmq_url, ledger, middleware):
    async with Sender(rabbitmq_url) as sender:
        queue = fresh("faststream")
        await sender.queue(queue)
        wire = RabbitWire(rabbitmq_url, sender, queue)
        broker = RabbitBroker(rabbitmq_url, middlewares=[middleware], logger=None)
        declared = RabbitQueue(queue, durable=True, arguments={"x-queue-type": "quorum"})
        tried = subscribing(broker, declared)
        check_policies(broker)
        await wire.send(*orders("m-1", "m-2", "m-1"))
        async with broker:
            await broker.start()
            await until(lambda: len(tried) >= 3 and len(ledger.effects()) >= 2)
        assert sorted(ledger.effects()) == ["m-1", "m-2"]
        assert ledger.inbox() == ["m-1", "m-2"]


@pytest.mark.req("S5.4")
@pytest.mark.promise("G6", "I5")
async def test_on_kafka_effects_happen_once(kafka_url, ledger, middleware):
    wire = KafkaWire(kafka_url, partitions=1)
    broker = KafkaBroker(kafka_url.removeprefix("kafka://"), middlewares=[middleware], logger=None)
    tried = subscribing(broker, wire.topic, group_id=wire.group, auto_offset_reset="earliest")
    check_policies(broker)
    await wire.send(*orders("m-1", "m-2", "m-1", "m-3"))
    async with broker:
        await broker.start()
        await until(lambda: len(ledger.effects()) >= 3, 40)
    assert ledger.effects() == ["m-1", "m-2", "m-3"]
    assert tried == ["m-1", "m-1", "m-2", "m-3"]  # the crash came again, the repeat did not


@pytest.mark.promise("I5")
@pytest.mark.parametrize("policy", [None, AckPolicy.ACK_FIRST, AckPolicy.ACK, AckPolicy.MANUAL])
def test_policies_that_lose_messages_are_refused(policy):
    options = {} if policy is None else {"ack_policy": policy}
    kafka_options = {**options, "group_id": "payments"}
    for broker, given in ((RabbitBroker(), options), (KafkaBroker(), kafka_options)):

        @broker.subscriber("payments", **given)
        async def pay(body: dict): ...

        with pytest.raises(ConfigError, match="NACK_ON_ERROR"):
            check_policies(broker)


def quorum(name):
    return RabbitQueue(name, durable=True, arguments={"x-queue-type": "quorum"})


@pytest.fixture
async def sender(rabbitmq_url):
    async with Sender(rabbitmq_url) as sender:
        yield sender


async def queues(sender, *names):
    made = [fresh(name) for name in names]
    for name in made:
        await sender.queue(name)
    return made


@pytest.mark.promise("G6")
async def test_two_subscribers_each_see_every_message(rabbitmq_url, ledger, middleware, sender):
    """As two queues of a fanout exchange do.  R-A2"""
    pay_queue, mail_queue = await queues(sender, "pay", "mail")
    broker = RabbitBroker(rabbitmq_url, middlewares=[middleware], logger=None)

    @broker.subscriber(quorum(pay_queue), ack_policy=AckPolicy.NACK_ON_ERROR)
    async def handle(body: dict, tx: Tx):
        await tx.execute("INSERT INTO effects (message) VALUES (%s)", ("pay " + body["id"],))

    def mailing():
        @broker.subscriber(quorum(mail_queue), ack_policy=AckPolicy.NACK_ON_ERROR)
        async def handle(body: dict, tx: Tx):  # of the same name
            await tx.execute("INSERT INTO effects (message) VALUES (%s)", ("mail " + body["id"],))

    mailing()
    for queue in (pay_queue, mail_queue):
        await RabbitWire(rabbitmq_url, sender, queue).send(*orders("m-1", "m-2", "m-1"))
    async with broker:
        await broker.start()
        await until(lambda: len(ledger.effects()) >= 4)
    assert sorted(ledger.effects()) == ["mail m-1", "mail m-2", "pay m-1", "pay m-2"]


@pytest.mark.promise("G6")
async def test_a_repeat_publishes_nothing(rabbitmq_url, ledger, middleware, sender):  # R-A2
    source, target = await queues(sender, "in", "out")
    broker = RabbitBroker(
        rabbitmq_url, middlewares=[middleware], logger=None, graceful_timeout=30.0
    )
    seen = []

    @broker.subscriber(quorum(source), ack_policy=AckPolicy.NACK_ON_ERROR)
    @broker.publisher(target)
    async def convert(body: dict, tx: Tx):
        seen.append(body["id"])
        return {"converted": body["id"]}

    await RabbitWire(rabbitmq_url, sender, source).send(*orders("m-1", "m-1", "m-1", "m-2"))
    async with broker:
        await broker.start()

        async def two_are_out():
            return await sender.waiting(target) >= 2

        await until(two_are_out)
    assert sorted(seen) == ["m-1", "m-2"]  # each once; which one was first, nobody says
    assert await sender.waiting(source) == 0
    assert await sender.waiting(target) == 2


async def test_a_message_without_an_id_or_too_large_is_rejected_once(
    rabbitmq_url, ledger, sender, monkeypatch, caplog
):  # R-D8
    monkeypatch.setattr(faststream_runs, "REJECT_SECONDS", 0.0)

    @asynccontextmanager
    async def transaction():
        async with await psycopg.AsyncConnection.connect(ledger.url) as conn, conn.transaction():
            yield conn

    [queue] = await queues(sender, "no-id")
    middleware = inbox_middleware("payments", transaction, missing_id="reject", max_bytes=1_000)
    broker = RabbitBroker(rabbitmq_url, middlewares=[middleware], logger=None)
    subscribing(broker, quorum(queue))
    stranger = Sent(None, b'{"id": "nameless"}', key="k")
    large = Sent("large", b'{"id": "' + b"x" * 1_000 + b'"}', key="k")
    await RabbitWire(rabbitmq_url, sender, queue).send(stranger, large, *orders("m-1", "m-2"))
    async with broker:
        await broker.start()
        await until(lambda: len(ledger.effects()) >= 2)
    assert sorted(ledger.effects()) == ["m-1", "m-2"]
    assert await sender.waiting(queue) == 0
    told = [r.message for r in caplog.records if r.name == "postroom.integrations.faststream"]
    assert len(told) == 2
    assert "is rejected: event.id is missing" in told[0]
    assert "bytes, more than max_bytes (1000)" in told[1]


@pytest.mark.promise("F4", "G6")
@pytest.mark.parametrize("wired", ["rabbitmq", "kafka"])
async def test_a_schema_and_the_headers_of_foreign_senders_can_be_named(
    request, postgres_url, ledger, wired
):
    """As a Consumer's source and an Inbox take them."""
    [(schema,)] = ledger.run("SELECT current_schema()")

    @asynccontextmanager
    async def transaction():
        async with await psycopg.AsyncConnection.connect(postgres_url) as conn, conn.transaction():
            yield conn

    middleware = inbox_middleware(
        "payments", transaction, schema=schema, id_header="eventId", type_header="eventType"
    )
    url = request.getfixturevalue(f"{wired}_url")
    seen, same = [], {"eventId": "e-1", "eventType": "paid"}
    sent = [
        Sent(None, b'{"n": %d}' % n, type=None, headers=headers)
        for n, headers in ((1, same), (2, same), (3, {"eventId": "e-2"}))
    ]

    async def handled(broker, wire, *where, **options):
        @broker.subscriber(*where, ack_policy=AckPolicy.NACK_ON_ERROR, **options)
        async def pay(body: dict, tx: Tx):
            seen.append(body["n"])

        await wire.send(*sent)
        async with broker:
            await broker.start()
            await until(lambda: len(seen) >= 2 and len(ledger.inbox()) >= 2)

    if wired == "kafka":
        wire = KafkaWire(url, partitions=1)
        broker = KafkaBroker(url.removeprefix("kafka://"), middlewares=[middleware], logger=None)
        options = {"group_id": wire.group, "auto_offset_reset": "earliest"}
        await handled(broker, wire, wire.topic, **options)
    else:
        async with Sender(url) as sender:
            [queue] = await queues(sender, "named")
            broker = RabbitBroker(url, middlewares=[middleware], logger=None)
            await handled(broker, RabbitWire(url, sender, queue), quorum(queue))
    assert seen in ([1, 3], [3, 1], [2, 3], [3, 2])  # RabbitMQ's are handled side by side
    assert ledger.inbox() == ["e-1", "e-2"]
    assert ("paid",) in ledger.run("SELECT type FROM postroom_inbox")


@pytest.mark.promise("G6", "F3")
async def test_a_swallowed_error_is_not_acknowledged(rabbitmq_url, ledger, middleware, sender):
    """PostgreSQL answers the COMMIT with a rollback, and the driver does not tell.  R-A1"""
    [queue] = await queues(sender, "swallow")
    broker = RabbitBroker(rabbitmq_url, middlewares=[middleware], logger=None)
    tried = []

    @broker.subscriber(quorum(queue), ack_policy=AckPolicy.NACK_ON_ERROR)
    async def pay(body: dict, tx: Tx):
        tried.append(body["id"])
        await tx.execute("INSERT INTO effects (message) VALUES (%s)", (body["id"],))
        if len(tried) < 3:
            with pytest.raises(psycopg.errors.DivisionByZero):
                await tx.execute("SELECT 1 / 0")

    await RabbitWire(rabbitmq_url, sender, queue).send(*orders("m-1"))
    async with broker:
        await broker.start()
        await until(lambda: len(ledger.effects()) >= 1)
    assert (ledger.effects(), len(tried)) == (["m-1"], 3)


@pytest.mark.promise("F4", "G6")
def test_each_subscriber_has_an_inbox_name_of_its_own():
    def named(function="pay", queue=None, topics=(), group=None, consumer="shop"):
        found = SimpleNamespace(
            queue=queue and SimpleNamespace(name=queue), topics=topics, group_id=group,
            specification=SimpleNamespace(call_name=function),
        )  # fmt: skip
        return faststream.inbox_name(consumer, found)

    names = [
        named(), named("mail"), named(queue="orders"), named(queue="refunds"),
        named(topics=["refunds", "orders"]), named(topics=["orders"], group="refunds"),
        named(topics=["orders"], group="one"),
        named(topics=["orders"], group="two"), named(topics=["orders", "refunds"], group="one"),
        named(queue="orders", consumer="billing"),
        named(queue="x" * 250 + "1"), named(queue="x" * 250 + "2"),
    ]  # fmt: skip
    assert len(set(names)) == len(names)
    assert all(len(name.encode()) <= 255 for name in names)
    assert named(topics=["b", "a"]) == named(topics=["a", "b"])


@pytest.mark.promise("F2")
async def test_a_message_without_an_id_is_rejected_after_a_pause(monkeypatch, caplog):
    rests = []

    async def sleep(seconds):
        rests.append(seconds)

    monkeypatch.setattr(faststream_runs, "asyncio", SimpleNamespace(sleep=sleep))
    with pytest.raises(RejectMessage):
        await faststream._read(Incoming("orders", b"{}", {}), "reject", 1_000)
    assert rests == [1.0]  # a flood of them must not fill the log
    assert "a message of 'orders' is rejected" in caplog.text
