"""Samples counts, lag and lanes of the store for metrics and health.

Counting is expensive on a large table. Scrapes never query the store, and the sampler pauses a
hundred times as long as its last sample took, so that it uses at most one percent of the time.

No error ends the sampler: the last sample stays, `postroom_store_up` is 0, and the log has one line
when sampling begins to fail and one when it succeeds again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

from postroom.engine.consumer import Consumer
from postroom.engine.relay.relay import Relay
from postroom.engine.service import Service, is_cancelled
from postroom.lookup import Stats
from postroom.model.pauses import Pauses
from postroom.record import short_error
from postroom.telemetry import conditions
from postroom.telemetry.conditions import Condition

SAMPLE_SECONDS = 10.0
_REST = 100
_PATIENCE_SECONDS = 60.0
_FIRST_PAUSE = 0.2  # the first sample comes soon
_log = logging.getLogger("postroom.metrics")


class Sample(NamedTuple):
    """The sampled values of one stream, their time (monotonic), and what of them is a condition."""

    stats: Stats
    free_lanes: int
    relays: int
    at: float
    conditions: tuple[Condition, ...] = ()
    handler_sets: int = 0


class Sampler(Service):
    """Samples the streams of these relays and consumers while they run."""

    def __init__(
        self,
        relays: Sequence[Relay],
        every_seconds: float = SAMPLE_SECONDS,
        consumers: Sequence[Consumer] = (),
    ) -> None:
        super().__init__()
        self._relays = relays
        self._consumers = consumers
        self._every = every_seconds
        self.samples: dict[str, Sample] = {}
        self.errors: dict[str, str] = {}

    async def loop(self) -> None:
        pauses = Pauses(min(_FIRST_PAUSE, self._every), self._every)
        while True:
            began = time.monotonic()
            backlogs = [consumer.backlog_relay for consumer in self._consumers]
            for relay in (*self._relays, *backlogs):
                if relay is not None and relay.is_running:
                    await self.look(relay)
            took = time.monotonic() - began
            waits = self._every if self.samples else pauses.grow()
            await asyncio.sleep(max(waits, _REST * took))

    async def look(self, relay: Relay) -> None:
        """Sample one stream; an error stays in `errors` until the next success."""
        stream = relay.settings.stream
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                self.samples[stream] = await _sample(relay)
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            self._failed(stream, error)  # a future of the driver was cancelled
        except Exception as error:  # the other streams must still be sampled
            self._failed(stream, error)
        else:
            if self.errors.pop(stream, None) is not None:
                _log.info("metrics of stream %s are up to date again", stream)

    def _failed(self, stream: str, error: BaseException) -> None:
        said = short_error(error)
        if stream not in self.errors:
            _log.warning("metrics of stream %s cannot be read and are stale: %s", stream, said)
        self.errors[stream] = said


async def _sample(relay: Relay) -> Sample:
    stream = relay.settings.stream
    seen = await conditions.look(relay.store, stream)
    membership = seen.membership
    alive = {member.owner for member in membership.members}
    free = sum(not lease.live or lease.owner not in alive for lease in membership.leases)
    found = tuple(conditions.of_stream(seen))
    members = membership.members
    sets = conditions.handler_sets(members)
    return Sample(seen.stats, free, len(members), time.monotonic(), found, sets)
