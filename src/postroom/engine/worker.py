"""The worker: read, publish, settle, for one group of lanes.

While one group is in flight, another is read; within a group a read never runs beside a settle. A
slow key does not hold the group: what has finished is settled, and reading goes on without it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from math import ceil
from operator import attrgetter

from postroom.broker import Outcome, Verdict
from postroom.engine.allotment import Depths
from postroom.engine.blocks import Judge
from postroom.engine.flight import Flight
from postroom.engine.office import Office, is_cancelled, wait_for
from postroom.engine.pauses import Pauses
from postroom.engine.service import Service, end
from postroom.engine.settler import Settler
from postroom.errors import StoreError
from postroom.observer import Attempt, Sent
from postroom.record import LANES, Record, short_error
from postroom.store import Read

_lane = attrgetter("lane")
_SHORTEST_PAUSE = 0.05
_SHORTEST_REST = 0.0005
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # after reads that fail
_EVERYTHING = 1 << 62
_STUCK_SECONDS = 1.0  # after which work that hangs no longer counts against what may be read
_DOUBT_SECONDS = 1.0  # no sooner after a beat: what another group has in flight looks the same
_DEPTH = 1.25  # times its fair part is looked at in each lane


class Portion:
    """How much to ask for: grows with a backlog, fair over the lanes that have work (R4, D1)."""

    def __init__(self, smallest: int, largest: int) -> None:
        self._smallest = smallest
        self._largest = largest
        self.rows = smallest
        self._busy_lanes = 1
        self._first = 0

    def ask(self, lanes: Sequence[int], rows: int) -> tuple[list[int], int]:
        """Return the lanes in a rotated order, and how many rows to take of each at most.

        Each lane may bring more than its fair part, since the oldest go first and lanes are not
        equally full; but not all, since every candidate is looked at.
        """
        self._first = (self._first + 7) % LANES
        ordered = sorted(lanes, key=lambda lane: (lane - self._first) % LANES)
        fair = ceil(rows / min(self._busy_lanes, len(ordered)))
        return ordered, min(rows, ceil(fair * _DEPTH))

    def learn(self, found: Sequence[Record], rows: int, per_lane: int) -> bool:
        """Adapt to what a read found; True if there was more than it was allowed to bring."""
        by_lane = Counter(map(_lane, found))
        capped = sum(n >= per_lane for n in by_lane.values())
        full = len(found) >= rows
        self._busy_lanes = max(1, len(by_lane) if full else capped)
        if full and rows >= self.rows:
            self.rows = min(self._largest, self.rows * 2)
        elif len(found) < self.rows // 2 and not capped:
            self.rows = max(self._smallest, self.rows // 2)
        return full or capped > 0


class Restraint:
    """Keeps a worker from asking the store again and again for little.

    Handlers end one by one, and each outcome would lead to a read that finds the next event of one
    key. While others are on their way, reads that bring little take a fifth of the time at most.
    """

    def __init__(self) -> None:
        self._few = _EVERYTHING
        self.until = 0.0

    def learn(self, found: int, rows: int, in_flight: int, took: float, now: float) -> None:
        """Note what a read brought, and what is on its way now."""
        self._few = in_flight // 2 if found * 4 < rows else _EVERYTHING
        self.until = now + 4 * took

    def holds(self, in_flight: int, now: float) -> bool:
        """Say whether to wait `until` then, since not even half of those have come to an end."""
        return in_flight > self._few and now < self.until


class Worker(Service):
    """One group of a relay's lanes. It is the desk that the destination reports to."""

    def __init__(
        self,
        office: Office,
        group: int,
        judge: Judge,
        *,
        on_suspect: Callable[[Record], None],
        publish_seconds: float | None,
    ) -> None:
        super().__init__()
        self._office = office
        self._group = group
        self._publish_seconds = publish_seconds
        self._stirred = asyncio.Event()
        self._publishing: set[asyncio.Task[None]] = set()
        self._restraint = Restraint()
        self._pauses = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._again_at: float | None = None
        self._depths = Depths(is_apart=group == office.settings.groups)
        self.found_nothing = False  # by the last read
        self._portion = Portion(office.settings.batch_size, office.settings.max_batch_size)
        self.confirm: Callable[[Sequence[Record]], None]
        self.flight = Flight(
            judge,
            on_stir=self._stirred.set,
            on_suspect=on_suspect,
            on_outage=office.outage,
            on_answer=office.answered,
            on_attempt=self._tell_attempt,
        )
        self.settler = Settler(office, self.flight)
        self.confirm = self.flight.confirm
        self.report = self.flight.report
        office.flights.append(self.flight)
        office.wakers.append(self._stirred.set)

    @property
    def outbox_id(self) -> str:
        return self._office.outbox_id

    async def begin(self, record: Record) -> bool:
        return not self._office.stopping and await self.flight.start(record)

    def may_go_on(self, record: Record) -> bool:
        office = self._office
        still_ours = self.flight.is_begun(record) and office.may_publish(record.lane)
        return still_ours and not office.stopping

    # -- the loop -----------------------------------------------------------------------------
    async def loop(self) -> None:
        office = self._office
        while True:
            self._stirred.clear()
            try:
                went_on = await self._turn()
            except StoreError as error:
                office.trouble("reading events", error)
                await asyncio.sleep(self._pauses.grow())
                continue
            if not went_on:
                await self._rest()

    async def stop(self) -> None:
        await super().stop()
        await end(*self._publishing)
        await self.settler.stop()

    async def _turn(self) -> bool:
        flight, office = self.flight, self._office
        if office.stopping:
            self.settler.hasten()
        if flight.wants_settle:
            await self._settle()
            await office.release_drained()
        more = False if office.stopping else await self._read()
        if flight.waiting_for_outcomes and not flight.wants_settle:
            await self._rest()
        if flight.waiting_for_outcomes and flight.wants_settle and not flight.wants_start:
            await self._linger()
        return more or flight.wants_settle

    async def _rest(self) -> None:
        """Wait until there is an outcome, a kick, the breaker lets one try, or a read is due."""
        pause, now = None, self._office.clock.monotonic()
        if not self._office.breaker.is_closed:
            pause = max(self._office.breaker.retry_at - now, _SHORTEST_PAUSE)
        if self._again_at is not None:
            due = max(self._again_at - now, _SHORTEST_REST)
            pause = due if pause is None else min(pause, due)
        await wait_for(self._stirred, pause)

    async def _linger(self) -> None:
        """Give the rest of the batch a moment, so that one settle serves it all."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._office.settings.linger_seconds
        while self.flight.waiting_for_outcomes and not self.flight.wants_start:
            self._stirred.clear()
            if not await wait_for(self._stirred, until - loop.time()):
                return

    # -- read and publish ---------------------------------------------------------------------
    async def _read(self) -> bool:
        """Read and send; True if there is more than was read."""
        office, flight, settings = self._office, self.flight, self._office.settings
        now = office.clock.monotonic()
        self._again_at = None
        if self._restraint.holds(flight.waiting_for_outcomes, now):
            self._again_at = self._restraint.until
            return False
        wanted = self._portion.rows
        room = wanted - flight.waiting_for_outcomes
        if room < max(1, wanted // 4):  # what hangs must not stall the others (P1)
            stuck = sum(len(r.records) - r.next for r in flight.stuck(now - _STUCK_SECONDS))
            room = min(room + min(stuck, settings.max_batch_size), wanted)
            if room < max(1, wanted // 4):
                return False
        exclude = [*flight.busy_keys(), *self.settler.keys_aside()]
        lanes = self._lanes(now, exclude)
        if self.settler.has_aside:
            lanes = [lane for lane in lanes if not self.settler.is_locked(lane)]
        if not flight.waiting_for_outcomes:  # no suspect is left that might tell
            office.breaker.untried(self._group)
        if not lanes:
            self.found_nothing = self._again_at is None
        rows = office.breaker.room(room, now, self._group) if lanes else 0
        if not rows:
            return False
        ordered, per_lane = self._portion.ask(lanes, rows)
        tokens = office.keeper.tokens(lanes)  # what is read belongs to these, and to no later ones
        question = Read(
            settings.stream,
            ordered,
            per_lane,
            rows,
            settings.max_batch_bytes,
            exclude,
            office.owner,
            tokens,
        )
        try:
            found = await office.store.read(question)
        except StoreError:
            office.breaker.untried(self._group)
            raise
        self._pauses.reset()
        self.found_nothing = not found
        if office.stopping:  # what is sent now might not be settled any more
            return False
        more = self._portion.learn(found, rows, per_lane)
        took, now = office.clock.monotonic() - now, office.clock.monotonic()
        self._depths.learn(question, found, more=more, took=took, now=now)
        may_publish = office.keeper.may_publish
        still = {lane for lane, token in tokens.items() if may_publish(lane, now, token)}
        batch = flight.admit(found, still, now)
        self._restraint.learn(len(found), rows, flight.waiting_for_outcomes, took, now)
        if batch:
            task = asyncio.create_task(self._publish(batch))
            self._publishing.add(task)
            task.add_done_callback(self._publishing.discard)
            office.nudge.set()
        else:
            office.breaker.untried(self._group)
            if not found and office.events_seen and not question.exclude:
                office.events_seen = False
                if now - office.beat_at > _DOUBT_SECONDS:
                    office.hurry.set()  # something can be read, but not by us: who has our lanes?
        return more and bool(batch or flight.wants_settle)

    def _lanes(self, now: float, exclude: Sequence[bytes]) -> list[int]:
        """Return the lanes to read, after handing over those that another worker is to serve."""
        allotment = self._office.allotment
        mine = allotment.of(self._group, self._office.keeper.readable(now))
        lanes, moving = self._depths.part(mine, self._is_idle, now, exclude)
        self._again_at = self._depths.look_at
        if moving:
            for lane in moving:
                allotment.move(lane)
            self._office.wake()
        return lanes

    def _is_idle(self, lane: int) -> bool:
        return self.flight.is_idle(lane) and not self.settler.is_locked(lane)

    async def _publish(self, batch: list[Record]) -> None:
        runs = self.flight.runs_of(batch)
        error = "the relay stopped before the destination answered"
        try:
            error = await self._send(batch, self._office.broker.publish(batch, self))
        finally:
            self.flight.ended(runs, error)
            if all(run.closed or run.lost for _, run in runs):  # nothing is in doubt: if this was a
                self._office.breaker.untried(self._group)  # try that told nothing, the next may go

    async def publish_alone(self, record: Record) -> None:
        """Try a suspect with nothing beside it (P3)."""
        office = self._office
        away = office.breaker.state == "open"
        if office.stopping or away or not office.may_publish(record.lane):
            self.flight.withdraw(record)
            return
        run = self.flight.send_alone(record, office.clock.monotonic())
        if run is None:
            return
        error = await self._send([record], office.broker.publish_alone(record, self))
        if not run.closed:
            if await office.destination_answers():
                office.answered()
            else:  # no answer to anything: it is away, and that is not this event's fault
                self.report(record, Outcome(Verdict.OUTAGE, error))
        self.flight.ended([(record.key_hash, run)], error)

    async def _send(self, records: Sequence[Record], publishing: Awaitable[None]) -> str:
        """Wait for a publish call to end; returns what to say of records it did not report."""
        began = self._office.clock.monotonic()
        try:
            async with asyncio.timeout(self._publish_seconds):
                await publishing
        except TimeoutError:
            return f"no answer within {self._publish_seconds} s"
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return "the destination cancelled it"
        except Exception as problem:
            return short_error(problem)
        finally:
            took = self._office.clock.monotonic() - began
            self._office.tell(Sent(self._office.stream, records, took))
        return "the destination did not say what became of it"

    # -- settle -------------------------------------------------------------------------------
    async def _settle(self) -> None:
        office = self._office
        ticket = self.flight.collect(
            office.stream, office.owner, office.settings.lease_seconds, office.keeper.tokens,
            keep_done=office.settings.keep_done_seconds > 0,
        )  # fmt: skip
        if ticket.settlement:
            now = office.clock.monotonic()
            ticket.settlement.claims += office.witnesses.of(ticket.lanes, now)
        await self.settler.settle(ticket)

    # -- telling ------------------------------------------------------------------------------
    def _tell_attempt(self, record: Record, outcome: Outcome, attempts: int) -> None:
        self._office.tell(
            Attempt(
                record.stream,
                record.id,
                record.type,
                record.topic,
                outcome.verdict.value,
                attempts,
                outcome.error,
            )
        )
