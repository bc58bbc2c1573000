"""Liveness and readiness of this process, for container probes.

An unreachable broker, an open breaker and a growing lag are warnings: a restart would not help. A
pause is a note: an operator wants it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.engine.consumer import Consumer
from postroom.engine.relay.relay import Relay
from postroom.engine.service import Service
from postroom.operation import Operation
from postroom.telemetry import conditions
from postroom.telemetry.conditions import Condition
from postroom.telemetry.sampler import Sampler

if TYPE_CHECKING:
    from postroom.stores.mongo import Reconciler

BEAT_SECONDS = 0.5
_STUCK_SECONDS = 10.0  # an event loop without a beat for this long is stuck


class Answer(NamedTuple):
    """The answer to a probe."""

    ok: bool
    facts: dict[str, Any]


class Pulse(Service):
    """Records that the event loop runs; read from another thread."""

    def __init__(self) -> None:
        super().__init__()
        self.at = time.monotonic()

    async def loop(self) -> None:
        while True:
            self.at = time.monotonic()
            await asyncio.sleep(BEAT_SECONDS)


class Health:
    """Answers probes; safe to call from any thread."""

    def __init__(
        self,
        relays: Sequence[Relay],
        sampler: Sampler,
        pulse: Pulse,
        consumers: Sequence[Consumer] = (),
        reconcilers: Sequence[Reconciler] = (),
    ) -> None:
        self._relays = relays
        self._reconcilers = reconcilers
        self._consumers = consumers
        self._sampler = sampler
        self._pulse = pulse

    def alive(self) -> Answer:
        """Return whether the event loop runs."""
        silent = time.monotonic() - self._pulse.at
        return Answer(silent < _STUCK_SECONDS, {"loop_silent_seconds": round(silent, 3)})

    def ready(self) -> Answer:
        """Return whether the event loop and all relays run and the store answers them."""
        lives, facts = self.alive()
        problems: list[str] = [] if lives else ["the event loop is stuck"]
        warnings: list[str] = []
        relays: list[dict[str, Any]] = []
        notes = set[str]()
        operations = dict[str, Operation]()
        for relay in self._relays:
            stream, vitals = relay.settings.stream, relay.vitals
            told: dict[str, Any] = {"stream": stream, "running": relay.is_running}
            relays.append(told)
            _sort(conditions.of_relay(relay), problems, warnings)
            if vitals is None or not relay.is_running:
                continue
            told |= vitals._asdict() | {"silent_seconds": round(vitals.silent_seconds, 3)}
            told["paused"] = [f"{one.kind} {one.name}" for one in relay.pauses]
            notes |= {f"{one.kind} {one.name} is paused" for one in relay.pauses}
            operations |= {one.id: one for one in relay.operations}
            notes |= {f"{one.kind} {one.name} is limited: {one.limits}" for one in relay.limits}
            self._sampled(stream, told, warnings)
        notes |= {f"consumer {one.name} is paused" for one in self._consumers if one.is_paused}
        consumers = [
            {
                "name": one.name,
                "running": one.is_running,
                "connected": one.is_running and not one.connection.trouble,
            }
            for one in self._consumers
        ]
        problems += [
            f"the reconciler {one.name} has ended; see the log"
            for one in self._reconcilers
            if not one.is_running
        ]
        for one in self._consumers:
            _sort(conditions.of_consumer(one), problems, warnings)
        for one in self._consumers:
            if (backlog := one.backlog_relay) is not None:
                self._sampled(backlog.settings.stream, {}, warnings)
                operations |= {one.id: one for one in backlog.operations}
        _sort(conditions.of_operations(operations.values()), problems, warnings)
        more = {"relays": relays, "consumers": consumers, "problems": problems}
        more |= {"warnings": warnings, "notes": sorted(notes)}
        return Answer(not problems, {"ready": not problems, **facts, **more})

    def _sampled(self, stream: str, told: dict[str, Any], warnings: list[str]) -> None:
        if stream in self._sampler.errors:
            warnings.append(f"metrics of stream {stream} cannot be read; see the log")
        sample = self._sampler.samples.get(stream)
        if sample is None:
            return
        told["lag_seconds"] = round(sample.stats.lag_seconds, 3)
        told["counts"] = dict(sample.stats.counts)
        _sort(sample.conditions, [], warnings)


def _sort(found: Iterable[Condition], problems: list[str], warnings: list[str]) -> None:
    """Add the texts of conditions; their causes may name hosts and users, and stay in the log."""
    for condition in found:
        (problems if condition.is_red else warnings).append(condition.text)
