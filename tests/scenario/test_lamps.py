"""Every lamp against every condition: what the page promises is what real servers show."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from contextlib import AsyncExitStack, nullcontext

import psycopg
import pytest

from postroom import Consumer, Event, Handlers, Outbox, Relay, RetryPolicy
from postroom.brokers.kafka import KafkaBroker
from postroom.brokers.memory import MemoryBroker
from postroom.brokers.rabbitmq import RabbitBroker
from postroom.cli import health as health_command
from postroom.cli import status as status_command
from postroom.errors import StoreError
from postroom.operation import NewOperation
from postroom.sources.rabbitmq import RabbitSource
from postroom.stores.memory import MemoryStore
from postroom.stores.postgres import PostgresStore
from postroom.telemetry.consumer_metrics import ConsumerMetrics
from postroom.telemetry.health import Health, Pulse
from postroom.telemetry.metrics import RelayMetrics
from postroom.telemetry.sampler import Sampler
from tests.scenario.postgres_place import own_database
from tests.unit.test_docs import ROOT, rows_of

PAGE = {row[0]: row[1:] for row in rows_of(ROOT / "docs/operations/lamps.md", "Conditions")}
NOWHERE = "amqp://guest:guest@127.0.0.1:1/"
LEASE = {"lease_seconds": 0.6, "poll_seconds": 0.05}
WITHIN_SECONDS = 30.0
LATER = RetryPolicy(max_attempts=5, backoff=lambda _: 3_600.0)

ALERTS = {  # the conditions of deploy/prometheus/postroom.rules.yml, without their times
    "PostroomBreakerOpen": lambda m: m["postroom_breaker_open"] == 1,
    "PostroomEventsWaiting": lambda m: m["postroom_events", "failed"] > 0,
    "PostroomLaneWithoutOwner": lambda m: m["postroom_lanes_free"] > 0,
    "PostroomConsumerDisconnected": lambda m: m["postroom_consumer_connected"] == 0,
    "PostroomOperationStopped": lambda m: m["postroom_operations", "stopped"] > 0,
    "PostroomHandlersDiffer": lambda m: m["postroom_handler_sets"] > 1,
    "PostroomStoreDown": lambda m: m["postroom_store_up"] == 0,
}


class Panel:
    """The five lamps of one relay, or of one consumer."""

    def __init__(self, store, relay=None, consumer=None):
        self.relay, self.consumer = relay, consumer
        self.open = store if callable(store) else lambda: nullcontext(store)
        self.stream = consumer.stream if consumer else "main"
        self.relays, self.consumers = [relay] if relay else [], [consumer] if consumer else []
        self.sampler = Sampler(self.relays, consumers=self.consumers)
        self.metrics = RelayMetrics(self.sampler)
        for one in self.relays:
            self.metrics.watch(one, "broker")
        self.received = ConsumerMetrics(self.metrics)
        for one in self.consumers:
            self.received.watch(one)
        self.health = Health(self.relays, self.sampler, Pulse(), self.consumers)

    async def look(self, caplog):
        for one in (self.relay, self.consumer and self.consumer.backlog_relay):
            if one is not None:
                await self.sampler.look(one)
        self.health._pulse.at = time.monotonic()
        try:
            async with self.open() as store:
                commands = await self.commands(store)
        except StoreError:  # its connections were ended
            commands = "unknown", "unknown"
        ok, facts = self.health.ready()
        return (
            *commands,
            "red" if not ok else "yellow" if facts["warnings"] else "green",
            self.alerts(),
            max((r.levelno for r in caplog.records if r.name.startswith("postroom")), default=0),
        )

    async def commands(self, store):
        seen, warnings = await status_command.look(store, self.stream), []
        below = status_command._operations(await store.operations(unfinished=True))
        shown = "\n".join([*status_command.render([seen]), *below])
        assert all(len(line) <= 80 for line in shown.splitlines())
        alive = await health_command._look(store, [self.stream], warnings)
        return (
            "yellow" if "  warning: " in shown else "green",
            "red" if not alive else "yellow" if warnings else "green",
        )

    def alerts(self):
        found = {}
        for collector in (self.metrics, self.received):
            for family in collector.collect():
                for sample in family.samples:
                    labels = sample.labels
                    if labels.get("stream", self.stream) == self.stream:
                        state = labels.get("state")
                        name = (family.name, state) if state else family.name
                        found[name] = max(sample.value, found.get(name, 0.0))
        return [name for name, rule in ALERTS.items() if _holds(rule, found)]


def _holds(rule, metrics):
    try:
        return rule(metrics)
    except KeyError:  # not a metric of this kind of service
        return False


async def shows(panel, caplog, condition):
    status, health, readyz, alert, log = PAGE[condition]
    expected = (status, health, readyz, [alert], getattr(logging, log))
    seen = None
    try:
        async with asyncio.timeout(WITHIN_SECONDS):
            while seen != expected:
                *lamps, alerts, level = await panel.look(caplog)
                seen = (*lamps, [each for each in alerts if each == alert], level)
                await asyncio.sleep(0.02)
    except TimeoutError:
        assert seen == expected  # noqa: PT017 - to show both


async def add(store, *events):
    async with store.transaction() as tx:
        await Outbox().add_many(tx, events)


def event():
    return Event("order.paid", {}, topic=f"missing-{uuid.uuid4().hex[:8]}")


def no_handlers():
    return Handlers(name="payments")


def failing():
    handlers = Handlers(name="payments")

    @handlers.on("order.paid")
    async def pay(event, tx):
        raise ValueError("the bank is busy")

    return handlers


def mailing():
    handlers = Handlers(name="mails")

    @handlers.on("order.paid")
    async def mail(event, tx): ...

    return handlers


def test_the_page_lists_these_alerts_and_the_rules_have_them():  # U3
    rules = (ROOT / "deploy/prometheus/postroom.rules.yml").read_text()
    assert {row[3] for row in PAGE.values()} == set(ALERTS)
    assert set(ALERTS) <= set(re.findall(r"alert: (\w+)", rules))


async def test_all_lamps_are_green(caplog):  # U3
    store = MemoryStore()
    async with Relay(store, MemoryBroker(), **LEASE) as relay:
        await add(store, event())
        while relay.counts.done < 1 or relay.vitals.lanes < 64:
            await asyncio.sleep(0.01)
        assert await Panel(store, relay).look(caplog) == ("green", "green", "green", [], 0)


DESTINATIONS = {
    "broker unreachable": lambda urls: RabbitBroker(f"{NOWHERE}?exchange=orders"),
    "topic missing": lambda urls: KafkaBroker(urls["kafka"]),
    "unroutable": lambda urls: RabbitBroker(f"{urls['rabbitmq']}?exchange=amq.topic"),
    "handler missing": lambda urls: no_handlers(),
    "key blocked": lambda urls: failing(),
}


@pytest.mark.parametrize("condition", DESTINATIONS)
async def test_a_destination(condition, kafka_url, rabbitmq_url, caplog):  # U3
    store = MemoryStore()
    broker = DESTINATIONS[condition]({"kafka": kafka_url, "rabbitmq": rabbitmq_url})
    await add(store, event())
    async with Relay(store, broker, retry=LATER, **LEASE) as relay:
        await shows(Panel(store, relay), caplog, condition)


async def test_a_lease_of_a_dead_relay(caplog):  # U3
    """Its member row is gone, its leases are not: an operator has edited one, or a clock jumped."""
    store = MemoryStore()
    await store.take("main", "dead", list(range(32)), 3_600.0)
    async with Relay(store, MemoryBroker(), **LEASE) as relay:
        await shows(Panel(store, relay), caplog, "lease held by a dead relay")


async def test_a_consumer_without_its_broker(caplog):  # U3
    store = MemoryStore()
    source = RabbitSource(f"{NOWHERE}?queue=payments")
    async with Consumer(source, store, failing(), lease_seconds=0.6) as consumer:
        await shows(Panel(store, consumer=consumer), caplog, "consumer's broker unreachable")


async def test_an_operation_that_stopped(caplog, monkeypatch):
    monkeypatch.setattr("postroom.engine.operations.watch.LOOK_SECONDS", 0.05)
    store = MemoryStore()
    await store.start_operation(NewOperation("melt", "{}", "fingerprint"), by="olga")
    async with Relay(store, MemoryBroker(), **LEASE) as relay:
        await shows(Panel(store, relay), caplog, "operation stopped")
    told = [r.message for r in caplog.records if "stopped" in r.message]
    (name,) = [one.id for one in await store.operations()]
    why = "this version knows no operation of the kind 'melt'"
    assert told == [f"operation {name} stopped: {why}; see: postroom operations"]


async def test_an_operation_that_stopped_in_a_process_with_a_consumer_only(monkeypatch):
    monkeypatch.setattr("postroom.engine.operations.watch.LOOK_SECONDS", 0.05)
    store = MemoryStore()
    await store.start_operation(NewOperation("melt", "{}", "fingerprint"), by="olga")
    source = RabbitSource(f"{NOWHERE}?queue=payments")
    async with Consumer(source, store, failing(), lease_seconds=0.6) as consumer:
        panel = Panel(store, consumer=consumer)
        async with asyncio.timeout(WITHIN_SECONDS):
            while "PostroomOperationStopped" not in panel.alerts():
                await asyncio.sleep(0.02)
        (one,) = await store.operations()
        told = f"operation {one.id} stopped; see: postroom operations"
        assert told in panel.health.ready().facts["warnings"]


async def test_two_sets_of_handlers(caplog):  # U15
    store = MemoryStore()
    async with (
        Relay(store, failing(), name="old", **LEASE) as relay,
        Relay(store, no_handlers(), name="none", **LEASE),
        Relay(store, mailing(), name="new", **LEASE),
    ):
        await shows(Panel(store, relay), caplog, "different handlers")


async def test_a_database_that_is_read_only(postgres_url, caplog):  # U3
    async with AsyncExitStack() as stack:
        url = stack.enter_context(own_database(postgres_url))
        await PostgresStore(url).migrate()
        async with PostgresStore(url) as store:
            await add(store, event())
        broker = MemoryBroker()
        hold = broker.hold()  # the event stays in flight
        relay = Relay(PostgresStore(url), broker, stop_seconds=0.1, **LEASE)
        await stack.enter_async_context(relay)
        await asyncio.wait_for(hold.reached.wait(), WITHIN_SECONDS)
        name = url.rpartition("/")[2].partition("?")[0]
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as admin:
            await admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
            await admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
            )
            try:
                panel = Panel(lambda: PostgresStore(url), relay)
                await shows(panel, caplog, "database read-only")
            finally:
                await admin.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')


async def test_events_without_a_relay_are_a_warning():  # U3
    store = MemoryStore()
    await add(store, event())
    warnings = []
    await health_command._look(store, ["main"], warnings)
    assert warnings == ["no relay serves stream main"]


async def test_waiting_events_are_part_of_the_lag_with_their_cause(monkeypatch):  # U3
    store = MemoryStore()
    await add(store, Event("order.paid", {}, key="k"), Event("order.paid", {}, key="k"))
    await Relay(store, failing(), retry=LATER, log=False, **LEASE).drain()
    monkeypatch.setattr(
        "postroom.telemetry.conditions.host_microseconds", lambda: store.now_us() + 90_000_000
    )
    seen = await status_command.look(store, "main")
    assert 90 <= seen.lag_seconds < 120
    lag, waiting, relay = seen.warnings
    assert lag.startswith("stream main lags by ")
    assert waiting == (
        "stream main: 1 event waits for a retry, 1 key is blocked: ValueError: the bank is busy"
    )
    assert relay == "no relay serves stream main"


async def test_events_of_a_paused_topic_are_named_beside_those_that_fail():  # U3
    store = MemoryStore()
    await store.set_control("topic", "held", pause=True, by="anna")
    held = [Event("order.paid", {}, topic="held", key=f"h{n}") for n in range(3)]
    await add(store, *held)
    await Relay(store, failing(), retry=LATER, log=False, **LEASE).drain()
    assert (await status_command.look(store, "main")).warnings == ["no relay serves stream main"]
    await add(store, Event("order.paid", {}, key="k"))
    await Relay(store, failing(), retry=LATER, log=False, **LEASE).drain()
    waiting, _ = (await status_command.look(store, "main")).warnings
    assert waiting == (
        "stream main: 4 events wait for a retry, some of them only for a topic that is paused or "
        "limited, 4 keys are blocked: ValueError: the bank is busy"
    )
