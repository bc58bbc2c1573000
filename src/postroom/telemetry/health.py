"""Liveness and readiness of this process, for container probes.

An unreachable broker, an open breaker and a growing lag are warnings: a restart would not help. A
pause is a note: an operator wants it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.engine.consumer import Consumer
from postroom.engine.relay.relay import Relay
from postroom.engine.service import Service
from postroom.operation import OperationState
from postroom.telemetry.sampler import Sampler

if TYPE_CHECKING:
    from postroom.stores.mongo import Reconciler

BEAT_SECONDS = 0.5
LAG_SECONDS = 60.0
_LEASES = 2  # after this many lease times without a heartbeat, a relay has lost its lanes
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
        stopped = set[str]()
        for relay in self._relays:
            stream, vitals = relay.settings.stream, relay.vitals
            told: dict[str, Any] = {"stream": stream, "running": relay.is_running}
            relays.append(told)
            if vitals is None or not relay.is_running:
                problems.append(f"the relay of stream {stream} {_why_not(relay)}")
                continue
            told |= vitals._asdict() | {"silent_seconds": round(vitals.silent_seconds, 3)}
            if vitals.silent_seconds > _LEASES * relay.settings.lease_seconds:
                # The driver's error names hosts and users: it goes to the log, not to this port.
                problems.append(f"the store does not answer the relay of {stream}; see the log")
            if vitals.breaker != "closed":
                warnings.append(f"the destination of stream {stream} is unreachable")
            told["paused"] = [f"{one.kind} {one.name}" for one in relay.pauses]
            notes |= {f"{one.kind} {one.name} is paused" for one in relay.pauses}
            stopped |= {one.id for one in relay.operations if one.state == OperationState.STOPPED}
            notes |= {f"{one.kind} {one.name} is limited: {one.limits}" for one in relay.limits}
            self._sampled(stream, told, warnings)
        warnings += [f"operation {name} stopped; see: postroom operations" for name in stopped]
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
            f"the consumer {one.name} {_why_not(one)}"
            for one in self._consumers
            if not one.is_running
        ]
        problems += [
            f"the reconciler {one.name} has ended; see the log"
            for one in self._reconcilers
            if not one.is_running
        ]
        warnings += [  # the driver's error names hosts and users: it goes to the log only
            f"the consumer {told['name']} cannot receive: its broker is unreachable, or its topic "
            "or queue is missing; see the log"
            for told in consumers
            if told["running"] and not told["connected"]
        ]
        warnings += [
            f"the broker refuses acknowledgements of the consumer {one.name}; see the log"
            for one in self._consumers
            if one.is_running and one.connection.refusal
        ]
        for one in self._consumers:
            if (backlog := one.backlog_relay) is not None:
                self._sampled(backlog.settings.stream, {}, warnings)
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
        if sample.stats.lag_seconds > LAG_SECONDS:
            warnings.append(f"stream {stream} lags by {sample.stats.lag_seconds:,.0f} s")
        if sample.stats.counts.get("dead"):
            warnings.append(f"stream {stream} has dead letters")


def _why_not(service: Relay | Consumer) -> str:
    """Say why a relay or consumer does not run; the error itself is in the log."""
    broken = service.error is not None
    return "crashed; see the log" if broken else "is not running; check its store"
