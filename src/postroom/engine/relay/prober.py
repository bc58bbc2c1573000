"""Finds out that a wrong configuration was corrected, or that an idle destination is reachable.

While events wait because a topic, a route or a handler is missing, one event of each cause is made
due every few seconds. If it is delivered, the others that wait with the same error are made due,
too: they do not wait for the rest of `misconfigured_seconds`.

While the breaker is open and no event is there to try with, the destination is asked directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from postroom.engine.service import Service, is_cancelled
from postroom.errors import StoreError
from postroom.lookup import Filter
from postroom.model.pauses import Pauses
from postroom.observer import Freed
from postroom.record import Record, State, short_error

if TYPE_CHECKING:
    from postroom.engine.relay.context import RelayContext

_TICK_SECONDS = 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 5.0  # between two probes of one cause
_STEP = 100  # records include payloads, which may be large
_MOST_CAUSES = 100
_ERROR_CHARS = 200  # of an error: enough to find the events that wait with it
_FREEING = "freeing events that waited for a correction"


class Cause(NamedTuple):
    """Why events wait: the topic, and the beginning of the error."""

    topic: str
    error: str


class Corrections:
    """The causes that events wait for, each with the event that probes it; no input or output."""

    def __init__(self) -> None:
        self._probes: dict[Cause, str] = {}
        self._pauses: dict[Cause, Pauses] = {}
        self._due_at: dict[Cause, float] = {}
        self.corrected: dict[Cause, None] = {}

    def note(self, record: Record, error: str, now: float) -> None:
        """An event waits because of a wrong configuration."""
        cause = Cause(record.topic, short_error(error)[:_ERROR_CHARS])
        if cause not in self._probes and len(self._probes) < _MOST_CAUSES:
            self._probes[cause] = record.id
            self._pauses[cause] = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
            self._due_at[cause] = now + self._pauses[cause].grow()

    def delivered(self, records: Iterable[Record]) -> None:
        """These events were delivered: a cause whose probe is among them was corrected."""
        if not self._probes:
            return
        ids = {record.id for record in records}
        for cause in [cause for cause, probe in self._probes.items() if probe in ids]:
            self.forget(cause)
            self.corrected[cause] = None

    def due(self, now: float) -> list[tuple[Cause, str]]:
        """Return the causes to probe now, and their events; each is due again after a pause."""
        due = [cause for cause, at in self._due_at.items() if at <= now]
        for cause in due:
            self._due_at[cause] = now + self._pauses[cause].grow()
        return [(cause, self._probes[cause]) for cause in due]

    def probe_with(self, cause: Cause, event_id: str) -> None:
        """Probe the cause with another event: the last one does not wait any more."""
        if cause in self._probes:
            self._probes[cause] = event_id

    def forget(self, cause: Cause) -> None:
        """No event waits for it any more."""
        for known in (self._probes, self._pauses, self._due_at):
            known.pop(cause, None)


class Prober(Service):
    """Probes causes once a second, and the destination while the breaker is open."""

    def __init__(self, context: RelayContext) -> None:
        super().__init__()
        self._context = context

    async def loop(self) -> None:
        context, pauses = self._context, Pauses(_TICK_SECONDS, _LONGEST_PAUSE)
        while not is_cancelled():
            await asyncio.sleep(_TICK_SECONDS)
            await self._ask_destination()
            try:
                await self.probe()
            except StoreError as error:
                context.trouble(_FREEING, error)
                await asyncio.sleep(pauses.grow())
            else:
                context.recovered(_FREEING)
                pauses.reset()

    async def probe(self) -> None:
        """Make one event of each due cause due, and all events of corrected causes."""
        context, corrections = self._context, self._context.corrections
        for cause in list(corrections.corrected):
            events = await self._free(cause)
            corrections.corrected.pop(cause, None)
            context.tell(Freed(context.stream, cause.topic, events, cause.error))
        if context.paused.stream is not None or not context.breaker.is_closed:
            return
        for cause, event_id in corrections.due(context.clock.monotonic()):
            if await context.store.retry_now([event_id]):
                context.look_soon.set()
                continue
            page = await context.store.find(self._waiting(cause)._replace(limit=1))
            if page:
                corrections.probe_with(cause, page[0].id)
                await context.store.retry_now([page[0].id])
                context.look_soon.set()
            else:
                corrections.forget(cause)

    async def _free(self, cause: Cause) -> int:
        """Make the events of a corrected cause due, in small steps; returns how many."""
        context, wanted, events = self._context, self._waiting(cause), 0
        while True:
            page = await context.store.find(wanted)
            if page:
                events += await context.store.retry_now([record.id for record in page])
                context.look_soon.set()
            if len(page) < _STEP:
                return events
            wanted = wanted._replace(after_seq=page[-1].seq)

    def _waiting(self, cause: Cause) -> Filter:
        return Filter(
            stream=self._context.stream, state=State.FAILED, topic=cause.topic,
            error=cause.error, limit=_STEP,
        )  # fmt: skip

    async def _ask_destination(self) -> None:
        """Without an event to try with, an open breaker would stay open: ask the destination."""
        context, breaker = self._context, self._context.breaker
        if breaker.is_closed or not context.keeper.held or context.stopping:
            return  # without a lane, the heartbeat asks
        if any(flight.waiting_for_outcomes for flight in context.flights):
            return
        if breaker.state == "trying" or context.clock.monotonic() >= breaker.retry_at:
            if await context.destination_answers():
                context.answered()
            elif not breaker.is_closed:  # no answer meanwhile
                breaker.failed_again(context.clock.monotonic())
