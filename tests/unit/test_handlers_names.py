"""The names by which the inbox knows handlers: stable, and distinct between services (R-A7)."""

from __future__ import annotations

import pytest

from postroom import ConfigError, Consumer, Handlers, Relay
from postroom.broker import Verdict
from postroom.engine.handlers import commit_check
from postroom.engine.handlers.high_water import gate_of
from postroom.event import MAX_TOPIC_BYTES
from postroom.sources.kafka.source import KafkaSource
from postroom.sources.memory import MemorySource
from postroom.sources.rabbitmq.source import RabbitSource
from postroom.stores.memory import MemoryStore
from postroom.testing.broker_tools import make_record
from tests.unit.handler_database import Database, outcome_of


def accepted(database):
    return [line.removeprefix("accept ") for line in database.log if line.startswith("accept")]


async def handle(event, tx):
    pass


@pytest.mark.parametrize(
    ("source", "options", "handlers", "name"),
    [
        ("amqp://localhost?queue=mails", {}, {}, "mails"),
        ("kafka://localhost?topic=t&group=audit", {}, {}, "audit"),
        ("kafka://localhost?topic=t&group=audit", {}, {"name": "h"}, "h"),
        ("kafka://localhost?topic=t&group=audit", {"name": "n"}, {"name": "h"}, "n"),
        ("kafka://localhost?topic=t&group=audit", {"name": "n"}, {}, "n"),
    ],
)
def test_a_consumer_is_called_by_its_own_name_its_handlers_or_its_queue(
    source, options, handlers, name
):
    consumer = Consumer(source, MemoryStore(), Handlers(**handlers), **options)
    assert consumer.name == name
    assert consumer.stream == f"inbox.{name}"


def test_sources_are_called_by_their_queue_and_group():
    assert RabbitSource("amqp://localhost?queue=mails").name == "mails"
    assert KafkaSource("kafka://localhost?topic=t&group=audit").name == "audit"


def test_a_consumer_without_any_name_is_refused():
    with pytest.raises(ConfigError, match=r"Consumer\(…, name='payments'\)"):
        Consumer(MemorySource(), MemoryStore(), Handlers())


def test_a_queue_with_a_name_too_long_for_a_stream_asks_for_another():
    with pytest.raises(ConfigError, match="name has 200 bytes"):
        Consumer(f"amqp://localhost?queue={'q' * 200}", MemoryStore(), Handlers())


async def test_handlers_in_a_relay_are_called_by_its_stream():
    database, handlers = Database(), Handlers()
    handlers.on("order.created")(handle)
    await outcome_of(handlers.bind(database, stream="main"))
    await outcome_of(handlers.bind(database, stream="late"), make_record(2))
    await outcome_of(handlers.bind(database, stream="main"), make_record(3))
    assert accepted(database) == ["relay.main/handle", "relay.late/handle", "relay.main/handle"]


async def test_handlers_of_two_consumers_have_two_names():
    database, handlers = Database(), Handlers()
    handlers.on("order.created")(handle)
    for name in ("charge", "mail"):
        await outcome_of(handlers.bind(database, name=name))
    assert accepted(database) == ["charge/handle", "mail/handle"]


async def test_handlers_with_a_name_of_their_own_keep_it():
    database, handlers = Database(), Handlers(name="shop")
    handlers.on("order.created")(handle)
    assert handlers.bind(database, name="queue").name == "shop"
    assert handlers.bind(database, stream="main").name == "shop"
    await outcome_of(handlers)
    assert accepted(database) == ["shop/handle"]


async def test_a_relay_refuses_handlers_without_a_name_in_transactions_of_their_own():
    relay = Relay(MemoryStore(), Handlers(transaction=Database().transaction))
    with pytest.raises(ConfigError, match=r"Handlers\(name='payments', …\)"):
        await relay.start()
    await Relay(MemoryStore(), Handlers(transaction=False, sync_transaction=False)).drain()


async def test_without_a_name_nothing_is_accepted():
    database = Database()
    handlers = Handlers(
        transaction=database.transaction, sync_transaction=database.sync_transaction, batch=5
    )
    handlers.on("order.created")(handle)
    outcome = await outcome_of(handlers)
    assert outcome.verdict is Verdict.MISCONFIGURED
    assert "need a name" in outcome.error
    assert database.log == []


def test_a_name_that_becomes_too_long_is_refused_when_it_is_bound():
    handlers = Handlers()
    handlers.on("order.created", name="h" * 250)(handle)
    with pytest.raises(ConfigError, match="a handler's name has"):
        handlers.bind(Database(), stream="main")


def test_that_a_handler_commits_is_said_once_for_each_of_them(caplog, monkeypatch):
    monkeypatch.setattr(commit_check, "_told", set())
    for names in (["pay/charge"], ["pay/charge"], ["pay/charge", "pay/mail"], ["pay/mail"]):
        commit_check.tell_committed(names)
    told = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert told == [
        "a handler commits its own transaction (pay/charge)",
        "a handler commits its own transaction (pay/mail)",
    ]


@pytest.mark.promise("I4", "F4")
def test_counters_of_topics_with_long_names_are_not_mixed_up():
    topics = ["x" * 248 + end for end in "ab"]
    gates = [gate_of("payments", make_record(kseq=1, topic=topic), "current") for topic in topics]
    assert len({gate.counter for gate in gates}) == 2
    assert all(len(gate.counter.encode()) <= MAX_TOPIC_BYTES for gate in gates)
