"""Prometheus metrics of the consumers of one process.

Counts are read from the consumers on scrape; the outcomes of stored and replayed messages come from
the relay of the backlog. The only label is the consumer's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry

from postroom.engine.consumer import Consumer
from postroom.observer import Delivered, Fact, Handled, Settled
from postroom.telemetry.metric_names import MESSAGE_COUNTERS, MESSAGE_GAUGES, MESSAGE_HISTOGRAMS
from postroom.telemetry.metrics import RelayMetrics, Tally

_LABELS = ("consumer",)
_PREFIX = "postroom_messages_"


class _Backlog:
    """Outcomes of one consumer's stored and replayed messages."""

    def __init__(self) -> None:
        self.done = self.failed = self.dead = 0
        self.seconds = Tally(MESSAGE_HISTOGRAMS["postroom_handling_seconds"][1])


class ConsumerMetrics(Collector):
    """An observer of consumers and a prometheus-client collector."""

    def __init__(self, relays: RelayMetrics | None = None) -> None:
        self._consumers: list[tuple[Consumer, _Backlog]] = []
        self._backlogs: dict[str, _Backlog] = {}  # by stream
        self._relays = relays

    def watch(self, consumer: Consumer) -> None:
        """Count for this consumer; its backlog also counts as a stream of the relay metrics."""
        backlog = _Backlog()
        self._consumers.append((consumer, backlog))
        self._backlogs[consumer.stream] = backlog
        if self._relays is not None:
            self._relays.watch_consumer(consumer)

    def register(self, registry: CollectorRegistry) -> None:
        """Register these metrics with a registry."""
        registry.register(self)

    def observe(self, fact: Fact) -> None:
        backlog = self._backlogs.get(fact.stream)
        if backlog is None:
            return
        match fact:
            case Handled(seconds=seconds):
                backlog.seconds.add(seconds)
            case Delivered(records=records):
                backlog.done += len(records)
            case Settled(failed=failed, dead=dead):
                backlog.failed += failed
                backlog.dead += dead
            case _:
                pass

    # -- out ----------------------------------------------------------------------------------
    def collect(self) -> Iterator[Metric]:
        counts = [(one.name, _counts(one, backlog)) for one, backlog in self._consumers]
        for name, text in MESSAGE_COUNTERS.items():
            family = CounterMetricFamily(name, text, labels=_LABELS)
            for consumer, numbers in counts:
                family.add_metric((consumer,), numbers[name.removeprefix(_PREFIX)])
            yield family
        for name, (text, _) in MESSAGE_HISTOGRAMS.items():
            histogram = HistogramMetricFamily(name, text, labels=_LABELS)
            for one, backlog in self._consumers:
                tally = backlog.seconds
                histogram.add_metric((one.name,), tally.buckets(), tally.total)
            yield histogram
        for name, text in MESSAGE_GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=_LABELS)
            for one, _ in self._consumers:
                gauge.add_metric((one.name,), float(_NOW[name](one)))
            yield gauge


def _counts(consumer: Consumer, backlog: _Backlog) -> dict[str, float]:
    own = consumer.counts
    return {
        "received": own.received,
        "handled": own.done - own.repeats + backlog.done,
        "repeated": own.repeats,
        "stored": own.stored,
        "failed": own.failed + backlog.failed,
        "dead": own.dead + backlog.dead,
        "ignored": own.ignored,
        "lost": own.lost,
        "hashed_ids": own.hashed_ids,
        "batched": own.batched,
        "split": own.split,
        "postroom_consumer_connections_lost": consumer.connection.losses,
        "postroom_consumer_acknowledgements_refused": consumer.connection.refusals,
    }


def _is_connected(consumer: Consumer) -> bool:
    return consumer.is_running and not consumer.connection.trouble


def _in_flight(consumer: Consumer) -> int:
    relay = consumer.backlog_relay
    vitals = None if relay is None else relay.vitals
    return consumer.in_flight + (0 if vitals is None else vitals.in_flight)


_NOW: Mapping[str, Callable[[Consumer], float]] = {
    "postroom_consumer_up": lambda one: one.is_running,
    "postroom_consumer_connected": _is_connected,
    "postroom_messages_in_flight": _in_flight,
}
