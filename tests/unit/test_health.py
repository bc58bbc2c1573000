"""Health: what makes a probe fail, and what only warns."""

from __future__ import annotations

import asyncio
import socket
import time
from types import SimpleNamespace

import pytest

from postroom.brokers import MemoryBroker
from postroom.cli import health as command
from postroom.engine.relay.relay import Relay
from postroom.lookup import Stats
from postroom.model.url import Url
from postroom.source import SourceConnection
from postroom.store import Member, Membership
from postroom.stores.memory import MemoryStore
from postroom.telemetry.conditions import Seen, of_stream
from postroom.telemetry.health import Health, Pulse
from postroom.telemetry.sampler import Sample, Sampler
from postroom.testing.store.tools import until


@pytest.fixture
async def relay():
    relay = Relay(MemoryStore(), MemoryBroker(), lease_seconds=5.0)
    await relay.start()

    async def settled_in():
        return relay.vitals.lanes == 64

    await until(settled_in)
    yield relay
    await relay.stop()


@pytest.fixture
def pulse():
    return Pulse()


@pytest.fixture
def health(relay, pulse):
    return Health([relay], Sampler([relay]), pulse)


def sampled(health, lag=0.0, dead=0):
    stats = Stats({"pending": 0, "dead": dead}, lag, 0)
    found = tuple(of_stream(Seen("main", stats, Membership((), ()))))
    health._sampler.samples["main"] = Sample(stats, 0, 1, time.monotonic(), found)


async def test_all_is_well(health):
    sampled(health)
    ok, facts = health.ready()
    assert ok
    assert (facts["ready"], facts["problems"], facts["warnings"]) == (True, [], [])
    (told,) = facts["relays"]
    assert (told["stream"], told["running"], told["lanes"], told["breaker"]) == (
        "main",
        True,
        64,
        "closed",
    )
    assert health.alive().ok


async def test_a_dead_broker_a_lag_and_dead_letters_only_warn(health, relay):
    relay._context.outage("connection refused")
    sampled(health, lag=600.0, dead=3)
    ok, facts = health.ready()
    assert ok
    assert facts["problems"] == []
    assert facts["warnings"] == [
        "the destination of stream main is unreachable",
        "stream main lags by 600 s",
        "stream main has 3 dead letters",
    ]


async def test_a_store_that_does_not_answer_is_a_problem(health, relay):
    relay._context.beat_at -= 11.0
    health._sampler.errors["main"] = "StoreUnknownError: away"
    ok, facts = health.ready()
    assert not ok
    assert facts["problems"] == [
        "the store does not answer the relay of main, or refuses its writes; see the log"
    ]
    assert facts["warnings"] == ["metrics of stream main cannot be read; see the log"]
    relay._context.beat_at += 5.0
    assert health.ready().ok  # a beat or two late is no reason to restart


async def test_a_relay_that_does_not_run_is_a_problem(health, relay):
    await relay.stop()
    ok, facts = health.ready()
    assert not ok
    assert facts["relays"] == [{"stream": "main", "running": False}]


async def test_a_loop_that_does_not_turn_is_neither_alive_nor_ready(health, pulse):
    pulse.at -= 11.0
    assert not health.alive().ok
    ok, facts = health.ready()
    assert (ok, facts["problems"]) == (False, ["the event loop is stuck"])
    pulse.start()
    pulse.start()

    async def alive():
        return health.alive().ok

    await until(alive)
    await pulse.stop()
    await pulse.stop()


class Consuming:
    name, is_running, backlog_relay, is_paused = "payments", True, None, False

    def __init__(self):
        self.connection = SourceConnection()


def test_the_broker_of_a_consumer_that_cannot_be_reached_is_a_warning(pulse):
    """R-D1."""
    consumer = Consuming()
    health = Health([], Sampler([]), pulse, [consumer])
    ok, facts = health.ready()
    assert (ok, facts["warnings"], facts["notes"]) == (True, [], [])
    consumer.is_paused = True
    ok, facts = health.ready()
    assert (ok, facts["warnings"], facts["notes"]) == (True, [], ["consumer payments is paused"])
    assert facts["consumers"] == [{"name": "payments", "running": True, "connected": True}]
    consumer.connection.lost("amqp://user:secret@host refused")
    ok, facts = health.ready()
    assert (ok, facts["warnings"]) == (
        True,
        [
            (
                "the consumer payments cannot receive: its broker is unreachable, or its topic or "
                "queue is missing; see the log"
            )
        ],
    )
    assert facts["consumers"] == [{"name": "payments", "running": True, "connected": False}]
    assert "secret" not in str(facts)


async def test_a_relay_or_consumer_that_crashed_is_a_problem(health, relay, pulse):
    assert health.ready().ok
    relay._broke_down(RuntimeError("at postgresql://user:secret@host"))
    ok, facts = health.ready()
    assert (ok, facts["relays"]) == (False, [{"stream": "main", "running": False}])
    assert facts["problems"] == ["the relay of stream main crashed; see the log"]
    assert "secret" not in str(facts)
    with pytest.raises(RuntimeError):
        await relay.wait()
    assert health.ready().facts["problems"] == facts["problems"]
    consumer = Consuming()
    health = Health([], Sampler([]), pulse, [consumer])
    consumer.is_running, consumer.error = False, None
    assert health.ready().facts["problems"] == [
        "the consumer payments is not running; check its store"
    ]
    consumer.error = RuntimeError("a bug")
    assert health.ready().facts["problems"] == ["the consumer payments crashed; see the log"]


def test_a_broker_that_refuses_acknowledgements_is_a_warning(pulse):
    consumer = Consuming()
    health = Health([], Sampler([]), pulse, [consumer])
    consumer.connection.refused("Kafka: the group secret may not commit")
    ok, facts = health.ready()
    assert (ok, facts["warnings"]) == (
        True,
        ["the broker refuses acknowledgements of the consumer payments; see the log"],
    )
    consumer.connection.accepted()
    assert health.ready().facts["warnings"] == []


def test_a_reconciler_that_has_ended_is_a_problem(pulse):
    reconciler = SimpleNamespace(name="shop.pages", is_running=True)
    health = Health([], Sampler([]), pulse, reconcilers=[reconciler])
    assert health.ready().ok
    reconciler.is_running = False
    ok, facts = health.ready()
    assert not ok
    assert facts["problems"] == ["the reconciler shop.pages has ended; see the log"]


@pytest.mark.parametrize(("silent", "alive"), [(0.0, True), (9.0, True), (11.0, False)])
def test_a_short_delay_of_the_loop_is_no_reason_for_a_restart(pulse, silent, alive):
    pulse.at = time.monotonic() - silent
    assert Health([], Sampler([]), pulse).alive().ok is alive


async def test_a_store_that_hangs_is_not_healthy_for_the_command_either(monkeypatch):
    class Hanging(MemoryStore):
        async def open(self):
            await asyncio.Event().wait()

    monkeypatch.setattr(command, "_PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(command, "shared_store", lambda url: Hanging())
    assert await command._ask(Url.parse("sqlite:///app.db"), None, None, store_only=True) == {
        "healthy": False, "problems": ["the store did not answer within 0.01 s"], "warnings": [],
        "notes": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "wanted", "there"),
    [
        ("{host}:7", None, True),
        ("another-{host}:7", None, False),
        ("{host}-2:7", None, False),
        ("box-9", "box-9", True),
        ("box-9", "box-8", False),
    ],
)
def test_the_command_asks_for_a_relay_of_this_host_or_of_this_name(name, wanted, there):
    members = [Member("owner", healthy=True, name=name.format(host=socket.gethostname()))]
    assert command._is_there(members, wanted) is there
