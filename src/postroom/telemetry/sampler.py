"""Now and then a look at the store: counts, lag and lanes, for metrics and health.

Counting is not free on a large table. A look is never part of a scrape, and the sampler rests a
hundred times as long as its last look took: it never costs more than a hundredth of the time.

No error ends the sampler: the stream's last figures stay, `postroom_store_up` is 0, the log has one
line when looks begin to fail and one when they succeed again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from postroom.engine.pauses import Pauses
from postroom.engine.relay.relay import Relay
from postroom.engine.service import is_cancelled
from postroom.record import short_error
from postroom.store import Stats

SAMPLE_SECONDS = 10.0
_REST = 100
_PATIENCE_SECONDS = 60.0
_FIRST_PAUSE = 0.2  # the first look comes soon
_log = logging.getLogger("postroom.metrics")


class Sample(NamedTuple):
    """What a look at one stream found, and when (monotonic)."""

    stats: Stats
    free_lanes: int
    relays: int
    at: float


class Keeps(Protocol):
    """A consumer, as far as its kept messages and dead letters are asked about."""

    @property
    def backlog_relay(self) -> Relay | None: ...


class Sampler:
    """Looks at the streams of these relays and consumers while they run."""

    def __init__(
        self,
        relays: Sequence[Relay],
        every_seconds: float = SAMPLE_SECONDS,
        consumers: Sequence[Keeps] = (),
    ) -> None:
        self._relays = relays
        self._consumers = consumers
        self._every = every_seconds
        self._task: asyncio.Task[None] | None = None
        self.samples: dict[str, Sample] = {}
        self.errors: dict[str, str] = {}

    def start(self) -> None:
        """Begin to look, in this event loop."""
        if self._task is None:
            self._task = asyncio.create_task(self._loop())

    async def stop(self) -> None:
        """Stop; twice is safe."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _loop(self) -> None:
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
        """Ask about one stream; an error is kept in `errors` until the next good look."""
        stream = relay.settings.stream
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                self.samples[stream] = await _sample(relay)
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            self._failed(stream, error)  # a future of the driver was cancelled
        except Exception as error:  # whatever it is, the other streams are looked at
            self._failed(stream, error)
        else:
            if self.errors.pop(stream, None) is not None:
                _log.info("figures of stream %s are read again", stream)

    def _failed(self, stream: str, error: BaseException) -> None:
        said = short_error(error)
        if stream not in self.errors:
            _log.warning("figures of stream %s cannot be read and grow old: %s", stream, said)
        self.errors[stream] = said


async def _sample(relay: Relay) -> Sample:
    stream = relay.settings.stream
    stats = await relay.store.stats(stream)
    membership = await relay.store.leases(stream)
    alive = {member.owner for member in membership.members}
    free = sum(not lease.live or lease.owner not in alive for lease in membership.leases)
    return Sample(stats, free, len(membership.members), time.monotonic())
