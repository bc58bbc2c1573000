"""Prometheus metrics of the relays of one process, and of the events that it adds.

Facts are counted in plain numbers, a few operations per batch; the exposition format is created on
scrape. Labels are bounded: topics beyond the first hundred of a stream are counted as `other`, and
keys and ids are never labels.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry

from postroom.broker import Verdict
from postroom.engine.consumer import Consumer
from postroom.engine.relay.relay import Relay
from postroom.event import Event
from postroom.model import add_hooks
from postroom.model.clock import host_microseconds
from postroom.notifier import working_connections
from postroom.observer import (
    Alarm,
    Attempt,
    Delivered,
    EffectsLost,
    Fact,
    Sent,
    Settled,
    StoreTrouble,
    Vanished,
)
from postroom.operation import OperationState
from postroom.record import Record
from postroom.telemetry.conditions import is_silent
from postroom.telemetry.metric_names import COUNTERS, GAUGES, HISTOGRAMS, TOTALS
from postroom.telemetry.sampler import Sampler

MAX_TOPICS: Final = 100
OTHER: Final = "other"
_UNSPENT = {Verdict.UNSENT.value, Verdict.CONFIRMED.value}

_LAG_US = [int(bound * 1_000_000) for bound in HISTOGRAMS["postroom_delivery_lag_seconds"][1]]

_topic = attrgetter("topic")
Labels = tuple[str, ...]
_UNFINISHED: Final = (OperationState.RUNNING, OperationState.PAUSED, OperationState.STOPPED)


class Tally:
    """A histogram in plain numbers."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return cumulative buckets, as Prometheus expects them."""
        names = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(list(self.counts)), strict=True))


class RelayMetrics(Collector):
    """An observer of relays and a prometheus-client collector."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._relays: list[tuple[Relay, str]] = []
        self._consumers: list[Consumer] = []
        self._sampler = sampler
        self._counters: dict[str, dict[Labels, float]] = {name: {} for name in COUNTERS}
        self._tallies: dict[str, dict[Labels, Tally]] = {name: {} for name in HISTOGRAMS}
        self._topics: defaultdict[str, set[str]] = defaultdict(set)
        self._destinations: dict[str, str] = {}
        self._added: Counter[tuple[str, str]] = Counter()

    def watch(self, relay: Relay, destination: str) -> None:
        """Count for this relay; `destination` is the scheme of its broker, such as kafka."""
        self._relays.append((relay, destination))
        self.expect(relay.settings.stream, destination)

    def expect(self, stream: str, destination: str) -> None:
        """Count for a stream whose relay runs at times only, such as a consumer's backlog."""
        self._destinations[stream] = destination
        for name, (_, labels) in COUNTERS.items():
            if labels == ("stream", "destination"):
                self._counters[name][stream, destination] = 0.0
        for name, (_, bounds) in HISTOGRAMS.items():
            self._tallies[name][stream, destination] = Tally(bounds)

    def watch_consumer(self, consumer: Consumer) -> None:
        """Count for the stored messages of this consumer, and report its pauses."""
        self._consumers.append(consumer)
        self.expect(consumer.stream, "handlers")

    def count_added(self) -> None:
        """Start counting the events added in this process."""
        add_hooks.hooks.append(self._add)

    def close(self) -> None:
        """Stop counting added events."""
        if self._add in add_hooks.hooks:
            add_hooks.hooks.remove(self._add)

    def register(self, registry: CollectorRegistry) -> None:
        """Register these metrics with a registry."""
        registry.register(self)

    # -- in -----------------------------------------------------------------------------------
    def observe(self, fact: Fact) -> None:
        match fact:
            case Sent(stream, records, seconds):
                self._by_topic("postroom_events_published", stream, records)
                self._tally("postroom_publish_seconds", stream, seconds)
                self._tally("postroom_batch_size", stream, len(records))
            case Delivered(stream, records, seconds):
                self._by_topic("postroom_events_confirmed", stream, records)
                self._tally("postroom_settle_seconds", stream, seconds)
                self._lag(stream, records)
            case Settled(stream=stream, dead=dead, fenced=fenced, expired=expired, held=held):
                self._count("postroom_events_held", stream, held)
                self._count("postroom_events_expired", stream, expired)
                self._count("postroom_events_dead", stream, dead)
                self._count("postroom_events_fenced", stream, fenced)
            case Vanished(stream=stream, ids=ids):
                self._count("postroom_events_vanished", stream, len(ids))
            case EffectsLost(stream=stream, ids=ids):
                self._count("postroom_effects_lost", stream, len(ids))
            case Attempt(stream=stream, topic=topic, verdict=verdict):
                if verdict not in _UNSPENT:
                    labels = (*self._place(stream), self._bounded(stream, topic), verdict)
                    self._bump("postroom_events_failed", labels, 1)
            case Alarm(stream=stream):
                self._count("postroom_alarms", stream, 1)
            case StoreTrouble(stream=stream):
                self._count("postroom_store_errors", stream, 1)
            case _:
                pass

    def _add(self, event: Event) -> Event:
        name = (event.stream, event.type)
        known = name in self._added or len(self._added) < MAX_TOPICS
        self._added[name if known else (event.stream, OTHER)] += 1
        return event

    def _by_topic(self, name: str, stream: str, records: Sequence[Record]) -> None:
        for topic, number in Counter(map(_topic, records)).items():
            self._bump(name, (*self._place(stream), self._bounded(stream, topic)), number)

    def _lag(self, stream: str, records: Iterable[Record]) -> None:
        tally = self._tallies["postroom_delivery_lag_seconds"].get(self._place(stream))
        if tally is None:
            return
        now, counts, total = host_microseconds(), tally.counts, 0
        for record in records:  # a hot loop: runs for every delivered event
            age = now - (record.next_attempt_us or record.created_us)
            counts[bisect_left(_LAG_US, age)] += 1
            total += age
        tally.total += max(0.0, total / 1_000_000)

    def _tally(self, name: str, stream: str, value: float) -> None:
        tally = self._tallies[name].get(self._place(stream))
        if tally is not None:
            tally.add(value)

    def _count(self, name: str, stream: str, number: int) -> None:
        self._bump(name, self._place(stream), number)

    def _bump(self, name: str, labels: Labels, number: float) -> None:
        counter = self._counters[name]
        counter[labels] = counter.get(labels, 0.0) + number

    def _place(self, stream: str) -> tuple[str, str]:
        return stream, self._destinations.get(stream, "")

    def _bounded(self, stream: str, topic: str) -> str:
        known = self._topics[stream]
        if topic not in known:
            if len(known) >= MAX_TOPICS:
                return OTHER
            known.add(topic)
        return topic

    # -- out ----------------------------------------------------------------------------------
    def collect(self) -> Iterator[Metric]:
        yield from self._counted()
        yield from self._totals()
        yield from self._histograms()
        yield from self._gauges()

    def _counted(self) -> Iterator[Metric]:
        for name, (text, labels) in COUNTERS.items():
            family = CounterMetricFamily(name, text, labels=labels)
            values = list(self._counters[name].items())
            if name == "postroom_events_repeated":
                values = [((*self._of(r), d), r.counts.repeated) for r, d in self._relays]
            for found, number in values:
                family.add_metric(found, number)
            yield family
        added = CounterMetricFamily(
            "postroom_events_added", TOTALS["postroom_events_added"], labels=("stream", "type")
        )
        for found, number in list(self._added.items()):
            added.add_metric(found, number)
        yield added

    def _totals(self) -> Iterator[Metric]:
        """The `outbox_*` metrics, labelled by stream only."""
        new: Counter[str] = Counter({relay.settings.stream: 0 for relay, _ in self._relays})
        for (stream, _), number in list(self._added.items()):
            new[stream] += number
        done = {r.settings.stream: r.counts.done for r, _ in self._relays}
        failed = {r.settings.stream: r.counts.failed + r.counts.dead for r, _ in self._relays}
        totals: Mapping[str, Mapping[str, int]] = {
            "outbox_new": new, "outbox_done": done, "outbox_failed": failed,
        }  # fmt: skip
        for name, values in totals.items():
            family = CounterMetricFamily(name, TOTALS[name], labels=("stream",))
            for stream, number in values.items():
                family.add_metric((stream,), number)
            yield family

    def _histograms(self) -> Iterator[Metric]:
        for name, (text, _) in HISTOGRAMS.items():
            family = HistogramMetricFamily(name, text, labels=("stream", "destination"))
            for labels, tally in list(self._tallies[name].items()):
                family.add_metric(labels, tally.buckets(), tally.total)
            yield family

    def _gauges(self) -> Iterator[Metric]:
        values: dict[str, list[tuple[Labels, float]]] = {name: [] for name in GAUGES}
        for relay, destination in self._relays:
            stream, vitals = relay.settings.stream, relay.vitals
            in_flight = float(vitals.in_flight if vitals else 0)
            values["postroom_up"].append(((stream,), float(relay.is_running)))
            values["postroom_in_flight_events"].append(((stream,), in_flight))
            values["outbox_in_flight"].append(((stream,), in_flight))
            values["postroom_lanes_owned"].append(((stream,), float(vitals.lanes if vitals else 0)))
            is_open = float(vitals is not None and vitals.breaker != "closed")
            values["postroom_breaker_open"].append(((stream, destination), is_open))
        values["postroom_paused"] = list(self._pauses().items())
        values["postroom_operations"] = list(self._operations().items())
        limits = {(one.kind, one.name): one for relay, _ in self._relays for one in relay.limits}
        for place, one in limits.items():
            if one.max_per_second is not None:
                values["postroom_limit_per_second"].append((place, one.max_per_second))
            if one.max_in_flight is not None:
                values["postroom_limit_in_flight"].append((place, float(one.max_in_flight)))
        for stream in list(self._destinations):
            self._sampled(stream, values)
        for part, works in working_connections().items():
            values["postroom_notifications_up"].append(((part,), float(works)))
        for name, (text, labels) in GAUGES.items():
            family = GaugeMetricFamily(name, text, labels=labels)
            for found, number in values[name]:
                family.add_metric(found, number)
            yield family

    def _operations(self) -> dict[Labels, float]:
        """Count unfinished operations; relays of one store see the same ones."""
        relays = [relay for relay, _ in self._relays]
        relays += [one.backlog_relay for one in self._consumers if one.backlog_relay is not None]
        seen = {one.id: one.state for relay in relays for one in relay.operations}
        counts = Counter(seen.values())
        return {(state,): float(counts[state]) for state in _UNFINISHED}

    def _pauses(self) -> dict[Labels, float]:
        paused: dict[Labels, float] = {
            ("stream", relay.settings.stream): 0.0 for relay, _ in self._relays
        }
        paused |= {("consumer", consumer.name): 0.0 for consumer in self._consumers}
        backlogs = [consumer.backlog_relay for consumer in self._consumers]
        for relay in [*(relay for relay, _ in self._relays), *backlogs]:
            for one in relay.pauses if relay is not None else ():
                paused[one.kind, one.name] = 1.0
        return paused

    def _sampled(self, stream: str, values: dict[str, list[tuple[Labels, float]]]) -> None:
        sampler = self._sampler
        if sampler is None:
            return
        silent = any(is_silent(r) for r, _ in self._relays if r.settings.stream == stream)
        is_up = stream not in sampler.errors and not silent
        values["postroom_store_up"].append(((stream,), float(is_up)))
        sample = sampler.samples.get(stream)
        if sample is None:
            return
        for state, number in sample.stats.counts.items():
            values["postroom_events"].append(((stream, state), float(number)))
        pending = sum(sample.stats.counts.get(state, 0) for state in ("pending", "failed"))
        values["postroom_pending_events"].append(((stream,), float(pending)))
        values["postroom_oldest_age_seconds"].append(((stream,), sample.stats.lag_seconds))
        values["outbox_lag_seconds"].append(((stream,), sample.stats.lag_seconds))
        values["postroom_blocked_keys"].append(((stream,), float(sample.stats.blocked_keys)))
        values["postroom_lanes_free"].append(((stream,), float(sample.free_lanes)))
        values["postroom_relays"].append(((stream,), float(sample.relays)))
        values["postroom_handler_sets"].append(((stream,), float(sample.handler_sets)))

    @staticmethod
    def _of(relay: Relay) -> tuple[str]:
        return (relay.settings.stream,)
