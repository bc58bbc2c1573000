"""Metrics: what is counted, with bounded labels, and never at the price of a scrape."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from postroom import notifier
from postroom.broker import Outcome, Verdict
from postroom.brokers import MemoryBroker
from postroom.engine.relay.relay import Relay
from postroom.errors import StoreError, StoreUnknownError
from postroom.event import Event
from postroom.lookup import Stats
from postroom.model import add_hooks
from postroom.model.clock import host_microseconds
from postroom.observer import Attempt, Delivered, Sent, Settled
from postroom.outbox import Outbox
from postroom.record import short_error
from postroom.retry import Constant, RetryPolicy
from postroom.stores.memory import MemoryStore
from postroom.telemetry import sampler as sampler_module
from postroom.telemetry.metrics import RelayMetrics, Tally
from postroom.telemetry.sampler import Sample, Sampler
from postroom.testing.broker_tools import make_record
from tests.sim.loop import SimClock, virtual_time


@pytest.fixture
def relay():
    return Relay(MemoryStore(), MemoryBroker())


@pytest.fixture
def metrics(relay):
    metrics = RelayMetrics()
    metrics.watch(relay, "kafka")
    yield metrics
    metrics.close()


def read(metrics):
    """Return the value of every line that is served."""
    registry = CollectorRegistry()
    metrics.register(registry)
    lines = generate_latest(registry).decode().splitlines()
    return {
        name: float(number)
        for name, _, number in (li.rpartition(" ") for li in lines if li[0] != "#")
    }


def test_a_histogram_counts_each_value_once():
    tally = Tally((1.0, 10.0))
    for value in (0.5, 1.0, 2.0, 11.0):
        tally.add(value)
    assert tally.buckets() == [("1.0", 2), ("10.0", 3), ("+Inf", 4)]
    assert tally.total == 14.5


def test_facts_are_counted(metrics):
    records = [make_record(n, topic="orders") for n in range(3)]
    metrics.observe(Sent("main", records, 0.02))
    metrics.observe(Delivered("main", records[:2], 0.004))
    metrics.observe(Settled("main", 2, 1, 1, 3, 0))
    metrics.observe(Attempt("main", "e", "t", "orders", "failed", 1, "no"))
    found = read(metrics)
    place = 'destination="kafka",stream="main"'
    assert found[f'postroom_events_published_total{{{place},topic="orders"}}'] == 3
    assert found[f'postroom_events_confirmed_total{{{place},topic="orders"}}'] == 2
    assert found[f'postroom_events_failed_total{{{place},topic="orders",verdict="failed"}}'] == 1
    assert found[f"postroom_events_dead_total{{{place}}}"] == 1
    assert found[f"postroom_events_fenced_total{{{place}}}"] == 3
    assert found[f"postroom_batch_size_sum{{{place}}}"] == 3
    assert found[f"postroom_publish_seconds_count{{{place}}}"] == 1
    assert found[f"postroom_settle_seconds_count{{{place}}}"] == 1
    assert found[f"postroom_delivery_lag_seconds_count{{{place}}}"] == 2


def test_connections_for_notifications_are_seen_by_their_parts(metrics, monkeypatch):
    monkeypatch.setattr(notifier, "_connections", {})
    assert not [name for name in read(metrics) if name.startswith("postroom_notifications_up")]
    notifier.report_connection("one", "listener", works=True)
    notifier.report_connection("two", "listener", works=False)
    notifier.report_connection("three", "notifier", works=True)
    name = 'postroom_notifications_up{{part="{}"}}'
    found = read(metrics)
    assert (found[name.format("listener")], found[name.format("notifier")]) == (0.0, 1.0)
    notifier.report_connection("two", "listener", works=True)
    notifier.forget_connection("three")
    found = read(metrics)
    assert found[name.format("listener")] == 1.0
    assert name.format("notifier") not in found


def test_labels_are_bounded(metrics):
    for n in (*range(500), *range(500)):  # also when they are seen again
        metrics.observe(Sent("main", [make_record(n, topic=f"t{n}")], 0.01))
    found = {
        name: v for name, v in read(metrics).items() if name.startswith("postroom_events_published")
    }
    assert len(found) == 101
    assert (
        found['postroom_events_published_total{destination="kafka",stream="main",topic="other"}']
        == 800
    )
    metrics.count_added()
    for n in (*range(500), *range(500)):
        add_hooks.seen(Event(f"type-{n}", id=str(n)))
    added = {n: v for n, v in read(metrics).items() if n.startswith("postroom_events_added_total")}
    assert len(added) == 101
    assert sum(added.values()) == 1_000


async def test_a_relay_is_watched(metrics, relay):
    relay = Relay(
        relay.store,
        MemoryBroker(),
        retry=RetryPolicy(max_attempts=1, backoff=Constant(0)),
        observers=[metrics],
    )
    relay.broker.script(lambda r: Outcome(Verdict.FAILED, "no") if r.id == "b" else None)
    metrics._relays.clear()
    metrics.watch(relay, "kafka")
    metrics.count_added()
    async with relay.store.begin() as tx:
        await Outbox().add_many(tx, [Event("t", id="a", topic="x"), Event("t", id="b", topic="x")])
    await relay.drain()
    found = read(metrics)
    assert found['outbox_new_total{stream="main"}'] == 2
    assert found['outbox_done_total{stream="main"}'] == 1
    assert found['outbox_failed_total{stream="main"}'] == 1
    assert found['postroom_up{stream="main"}'] == 0


async def test_the_store_is_asked_by_the_sampler_alone(relay):
    sampler = Sampler([relay])
    metrics = RelayMetrics(sampler)
    metrics.watch(relay, "kafka")
    asked = []
    stats = relay.store.stats

    async def counted(stream):
        asked.append(stream)
        return await stats(stream)

    relay.store.stats = counted
    async with relay.store.begin() as tx:
        await Outbox().add(tx, Event("t", id="a"))
    await sampler.look(relay)
    assert asked == ["main"]
    for _ in range(3):
        found = read(metrics)
    assert asked == ["main"]
    assert found['postroom_events{state="pending",stream="main"}'] == 1
    assert found['postroom_pending_events{stream="main"}'] == 1
    assert found['postroom_store_up{stream="main"}'] == 1
    assert found['postroom_lanes_free{stream="main"}'] == 64

    async def away(stream):
        raise StoreUnknownError("away")

    relay.store.stats = away
    await sampler.look(relay)
    found = read(metrics)
    assert found['postroom_store_up{stream="main"}'] == 0
    assert found['postroom_pending_events{stream="main"}'] == 1  # the last that is known

    relay.store.stats = counted
    await sampler.look(relay)
    assert read(metrics)['postroom_store_up{stream="main"}'] == 1


async def test_lanes_of_a_relay_that_shows_no_sign_of_life_count_as_free(relay):
    await relay.store.take("main", "ghost", [0, 1, 2], 60.0)
    assert sum(lease.live for lease in (await relay.store.leases("main")).leases) == 3
    sampler = Sampler([relay])
    await sampler.look(relay)
    assert sampler.samples["main"].free_lanes == 64


async def test_a_store_that_hangs_is_told_as_one_that_is_away(relay, monkeypatch):
    async def hang(stream):
        await asyncio.Event().wait()

    monkeypatch.setattr(sampler_module, "_PATIENCE_SECONDS", 0.01)
    relay.store.stats = hang
    sampler = Sampler([relay])
    await sampler.look(relay)
    assert sampler.errors == {"main": "TimeoutError"}


@pytest.mark.promise("F2")
@pytest.mark.parametrize(
    "error", [StoreError("no"), KeyError("no"), asyncio.CancelledError("no")], ids=repr
)
def test_no_error_ends_the_sampler_and_one_line_tells_of_it(error, caplog):
    async def story(loop):
        relay = Relay(MemoryStore(), MemoryBroker(), clock=SimClock(loop))
        stats, asked = relay.store.stats, []

        async def fail(stream):
            asked.append(loop.time())
            raise error

        sampler = Sampler([relay])
        async with relay:
            relay.store.stats = fail
            sampler.start()
            await asyncio.sleep(3600)
            assert sampler.errors == {"main": short_error(error)}
            assert 350 < len(asked) < 370  # growing pauses, up to 10 s
            relay.store.stats = stats
            await asyncio.sleep(11)
            assert not sampler.errors
            assert sampler.samples["main"].relays == 1
            await sampler.stop()

    with virtual_time() as loop, caplog.at_level(logging.INFO, "postroom.metrics"):
        loop.run_until_complete(story(loop))
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"metrics of stream main cannot be read and are stale: {short_error(error)}"),
        ("INFO", "metrics of stream main are up to date again"),
    ]


def test_what_failed_and_will_be_tried_again_is_pending(relay):
    sampler = Sampler([relay])
    counts = {"pending": 2, "processing": 1, "failed": 3, "done": 50, "dead": 4}
    sampler.samples["main"] = Sample(Stats(counts, 7.5, 3), 0, 1, 0.0)
    metrics = RelayMetrics(sampler)
    metrics.watch(relay, "kafka")
    found = read(metrics)
    assert found['postroom_pending_events{stream="main"}'] == 5
    assert found['postroom_blocked_keys{stream="main"}'] == 3
    assert found['outbox_lag_seconds{stream="main"}'] == 7.5


def test_the_lag_counts_from_when_an_event_could_go(metrics):
    now = host_microseconds()
    late = make_record(1, created_us=now - 3_600_000_000, next_attempt_us=now - 2_000_000)
    metrics.observe(Delivered("main", [late], 0.01))
    name = 'postroom_delivery_lag_seconds_sum{destination="kafka",stream="main"}'
    assert 2 <= read(metrics)[name] < 60


def test_a_metric_that_is_closed_leaves_nothing_behind():
    before = list(add_hooks.hooks)
    metrics = RelayMetrics()
    metrics.count_added()
    assert len(add_hooks.hooks) == len(before) + 1
    metrics.close()
    metrics.close()
    assert add_hooks.hooks == before


@pytest.mark.parametrize(("took", "rest"), [(0.0, 10.0), (0.05, 10.0), (3.0, 300.0)])
async def test_the_sampler_takes_a_hundredth_of_the_time_at_most(monkeypatch, relay, took, rest):
    clock, rests = [0.0], []

    class Enough(Exception):
        pass

    async def look(_):
        clock[0] += took
        sampler.samples["main"] = "seen"

    async def sleep(seconds):
        rests.append(seconds)
        raise Enough

    sampler = Sampler([relay])
    monkeypatch.setattr(sampler, "look", look)
    monkeypatch.setattr(sampler_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(sampler_module, "asyncio", SimpleNamespace(sleep=sleep))
    async with relay:
        with pytest.raises(Enough):
            await sampler.loop()
    assert rests == [rest]


async def test_a_sampler_starts_and_stops_twice(relay):
    sampler = Sampler([relay], every_seconds=0.01)
    sampler.start()
    sampler.start()
    await sampler.stop()
    await sampler.stop()
