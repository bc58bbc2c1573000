"""FastStream's subscribers that end their own transaction, swallow errors or fail for ever."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Annotated, Any

import psycopg
import pytest
from faststream import AckPolicy, Context
from faststream.confluent import KafkaBroker
from faststream.exceptions import NackMessage, RejectMessage, SkipMessage
from faststream.rabbit import RabbitBroker, RabbitQueue

from postroom.engine.handlers.commit_check import OutsideTransactionError
from postroom.integrations import faststream_runs
from postroom.integrations.faststream import inbox_middleware
from postroom.integrations.faststream_runs import Failures, Run
from postroom.model.incoming import Incoming
from postroom.testing.consumer import Sent
from postroom.transaction import Acceptance
from tests.contract.test_consumer_kafka import KafkaWire
from tests.contract.test_consumer_rabbitmq import RabbitWire, Sender
from tests.scenario.consumer_place import Ledger
from tests.scenario.place import until
from tests.scenario.postgres_place import own_schema
from tests.scenario.rabbit import fresh

Tx = Annotated[Any, Context("tx")]
TRIES = 5  # of a run that was rolled back behind the middleware's back
LOG = "postroom.integrations.faststream"


class PanicError(BaseException):
    """What a Rust extension raises, more or less."""


async def effect(tx, name):
    await tx.execute("INSERT INTO effects (message) VALUES (%s)", (name,))


async def well(tx, tries):
    await effect(tx, "well")


async def swallow(tx, tries):
    await effect(tx, "swallow")
    with suppress(psycopg.errors.DivisionByZero):
        await tx.execute("SELECT 1 / 0")


async def swallow_twice(tx, tries):
    await (swallow if tries < 3 else well)(tx, tries)


async def commit(tx, tries):
    await effect(tx, "commit")
    await tx.commit()


async def commit_and_raise(tx, tries):
    await effect(tx, "commit_and_raise")
    await tx.commit()
    raise ValueError


async def roll_back(tx, tries):
    await effect(tx, "roll_back")
    await tx.rollback()


async def roll_back_and_go_on(tx, tries):
    await tx.rollback()
    await effect(tx, "roll_back_and_go_on")


async def roll_back_and_commit(tx, tries):
    await roll_back_and_go_on(tx, tries)
    await tx.commit()


async def roll_back_commit_and_go_on(tx, tries):
    await roll_back_and_commit(tx, tries)
    await effect(tx, "never")


async def panic_once(tx, tries):
    await effect(tx, "panic_once")
    if tries == 1:
        raise PanicError


BEHAVIOURS = {
    each.__name__: each
    for each in (
        swallow, swallow_twice, commit, commit_and_raise, roll_back, roll_back_and_go_on,
        roll_back_and_commit, roll_back_commit_and_go_on, panic_once, well,
    )
}  # fmt: skip
RUNS = {
    "well": 1, "swallow": TRIES, "swallow_twice": 3, "commit": 1,
    "commit_and_raise": 1,  # and a repeat, which is not handed on
    "roll_back": 1, "roll_back_and_commit": 1,  # it may have committed something after that
    "roll_back_and_go_on": 1, "roll_back_commit_and_go_on": 1, "panic_once": 2,
}  # fmt: skip
REJECTED = {
    "swallow", "roll_back", "roll_back_and_go_on", "roll_back_and_commit",
    "roll_back_commit_and_go_on",
}  # fmt: skip
EFFECTS = Counter(
    {
        "well": 2, "commit": 1, "commit_and_raise": 1, "panic_once": 1,
        "roll_back_and_go_on": 2,  # of those that commit
    }
)  # fmt: skip


@pytest.fixture
async def ledger(postgres_url):
    with own_schema(postgres_url) as url:
        yield await Ledger(url).create()


@pytest.fixture
def quick(monkeypatch):
    for name in ("FIRST_PAUSE", "LONGEST_PAUSE", "REJECT_SECONDS"):
        monkeypatch.setattr(faststream_runs, name, 0.0)


def plain(ledger):
    """A connection that a subscriber can commit and roll back; it opens the next transaction."""

    @asynccontextmanager
    async def transaction():
        async with await psycopg.AsyncConnection.connect(ledger.url) as conn:
            yield conn

    return transaction


def misbehaving(broker, *where, **options):
    runs = Counter()

    @broker.subscriber(*where, ack_policy=AckPolicy.NACK_ON_ERROR, **options)
    async def pay(body: dict, tx: Tx):
        runs[body["id"]] += 1
        if runs[body["id"]] > 20:
            await asyncio.Event().wait()  # it would go on for ever
        await BEHAVIOURS[body["id"]](tx, runs[body["id"]])

    return runs


def messages():
    return [Sent(name, b'{"id": "%s"}' % name.encode(), key="k") for name in BEHAVIOURS]


def told(caplog, word):
    lines = [r.getMessage() for r in caplog.records if r.name == LOG and r.levelname == "ERROR"]
    return [line for line in lines if word in line]


@pytest.mark.promise("F2", "F3", "G6")
async def test_on_rabbitmq_what_cannot_be_done_is_dead_lettered(
    rabbitmq_url, ledger, quick, caplog
):  # R-A1, R-B2
    async with Sender(rabbitmq_url) as sender:
        queue, dead = fresh("misbehaving"), fresh("dead")
        await sender.queue(dead)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        await sender.queue(queue, **arguments)
        middleware = inbox_middleware("payments", plain(ledger))
        broker = RabbitBroker(rabbitmq_url, middlewares=[middleware], logger=None)
        declared = {"x-queue-type": "quorum", **arguments}
        runs = misbehaving(broker, RabbitQueue(queue, durable=True, arguments=declared))
        await RabbitWire(rabbitmq_url, sender, queue).send(*messages())
        async with broker:
            await broker.start()
            await until(lambda: len(told(caplog, "is rejected")) >= 5 and runs == RUNS, 20)
            found = await sender.messages(dead, 5)
        assert {message.message_id for message in found} == REJECTED
        assert len(found) == len(REJECTED)
        assert await sender.waiting(queue) == 0
    assert Counter(ledger.effects()) == EFFECTS
    assert runs == RUNS
    assert all("dead-letter exchange" in line for line in told(caplog, "is rejected"))
    assert len(told(caplog, "is rejected")) == 5


@pytest.mark.promise("F2", "F3", "G6")
async def test_on_kafka_what_cannot_be_done_is_stepped_over(kafka_url, ledger, quick, caplog):
    wire = KafkaWire(kafka_url, partitions=1)
    middleware = inbox_middleware("payments", plain(ledger))
    broker = KafkaBroker(kafka_url.removeprefix("kafka://"), middlewares=[middleware], logger=None)
    runs = misbehaving(
        broker, wire.topic, group_id=wire.group, auto_offset_reset="earliest", fetch_max_wait_ms=20
    )
    await wire.send(*messages())
    async with broker:
        await broker.start()

        async def all_are_committed():
            return runs["well"] and await wire.unacknowledged() == 0

        await until(all_are_committed, 60)
    assert Counter(ledger.effects()) == EFFECTS
    assert runs == RUNS
    lines = told(caplog, "is rejected")
    assert len(lines) == len(REJECTED)
    assert f"{wire.topic}/0/0" in lines[0]  # where it can be read again


@pytest.mark.promise("F2")
async def test_a_subscriber_that_always_fails_is_tried_with_growing_pauses(monkeypatch):
    failures, pauses = Failures(), []

    async def sleep(seconds):
        pauses.append(seconds)

    monkeypatch.setattr(faststream_runs, "asyncio", SimpleNamespace(sleep=sleep))
    run = Run(Acceptance("pay", "m-1", "order.created", None))
    message = Incoming("orders", b"{}", {})
    for _ in range(6):
        await failures.judge(run, message, ConnectionError())
    failures.done(run)
    await failures.judge(run, message, ConnectionError())
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 0.1]
    with pytest.raises(RejectMessage):
        await failures.judge(run, message, OutsideTransactionError("why"))
    assert pauses[7:] == [1.0]
    await failures.judge(run, message, SkipMessage())  # what the subscriber wants
    assert len(pauses) == 8
    await failures.judge(run, message, NackMessage())
    assert pauses[8:] == [0.1]


@pytest.mark.promise("F2")
async def test_failures_of_many_messages_are_not_remembered_for_ever(monkeypatch):
    monkeypatch.setattr(faststream_runs, "_MOST_REMEMBERED", 3)
    monkeypatch.setattr(faststream_runs, "FIRST_PAUSE", 0.0)
    failures = Failures()
    for n in range(10):
        run = Run(Acceptance("pay", f"m-{n}", "order.created", None))
        await failures.judge(run, Incoming("orders", b"{}", {}), ValueError())
    assert [key[1] for key in failures._failed] == ["m-7", "m-8", "m-9"]
