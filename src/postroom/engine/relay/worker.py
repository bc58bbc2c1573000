"""The worker: read, publish, settle, for one group of lanes.

While one group is in flight, another is read; within a group a read never runs beside a settle. A
slow key does not hold the group: what has finished is settled, and reading goes on without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from postroom.broker import Outcome, Verdict
from postroom.engine.failure_policy import FailurePolicy
from postroom.engine.relay.context import RelayContext
from postroom.engine.relay.in_flight import InFlight
from postroom.engine.relay.lane_groups import Depths
from postroom.engine.relay.pacing import BatchSize, ReadPacer
from postroom.engine.relay.settler import Settler
from postroom.engine.service import Service, end, is_cancelled, wait_for
from postroom.errors import StoreError
from postroom.model.pauses import Pauses
from postroom.observer import Attempt, Sent
from postroom.record import Record, short_error
from postroom.store import ReadRequest

_SHORTEST_PAUSE = 0.05
_SHORTEST_REST = 0.0005
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # after reads that fail
_STUCK_SECONDS = 1.0  # after which stuck work no longer counts against the read limit
_DOUBT_SECONDS = 1.0  # no sooner after a heartbeat: events in flight in another group look the same


class Worker(Service):
    """One group of a relay's lanes, and the reporter that the destination reports to."""

    def __init__(
        self,
        context: RelayContext,
        group: int,
        policy: FailurePolicy,
        *,
        on_suspect: Callable[[Record], None],
        publish_seconds: float | None,
    ) -> None:
        super().__init__()
        self._context = context
        self._group = group
        self._publish_seconds = publish_seconds
        self._stirred = asyncio.Event()
        self._publishing: set[asyncio.Task[None]] = set()
        self._restraint = ReadPacer()
        self._pauses = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._again_at: float | None = None
        self._depths = Depths(is_apart=group == context.settings.groups)
        self.found_nothing = False  # by the last read
        self._portion = BatchSize(context.settings.batch_size, context.settings.max_batch_size)
        self.flight = InFlight(
            policy,
            on_stir=self._stirred.set,
            on_suspect=on_suspect,
            on_outage=context.outage,
            on_answer=context.answered,
            on_attempt=self._tell_attempt,
            paused=context.paused,
            limits=context.limits,
            relay=context.settings.name or context.owner,
        )
        self.settler = Settler(context, self.flight)
        self.confirm = self.flight.confirm
        self.report = self.flight.report
        context.flights.append(self.flight)
        context.wakers.append(self._stirred.set)

    @property
    def outbox_id(self) -> str:
        return self._context.outbox_id

    @property
    def keeps_receipts(self) -> bool:
        return self._context.settings.keep_done_seconds > 0

    async def begin(self, record: Record) -> bool:
        context = self._context
        if context.stopping or context.paused.holds(record) or self.flight.is_over(record):
            return False
        return await self.flight.start(record)

    def may_go_on(self, record: Record) -> bool:
        context = self._context
        still_ours = self.flight.is_begun(record) and context.may_publish(record.lane)
        return still_ours and not context.stopping

    # -- the loop -----------------------------------------------------------------------------
    async def loop(self) -> None:
        context = self._context
        while not is_cancelled():
            self._stirred.clear()
            try:
                went_on = await self._turn()
            except StoreError as error:
                context.trouble("reading events", error)
                await asyncio.sleep(self._pauses.grow())
                continue
            context.recovered("reading events")
            if not went_on:
                await self._rest()

    async def stop(self) -> None:
        await super().stop()
        await end(*self._publishing)
        await self.settler.stop()

    async def _turn(self) -> bool:
        flight, context = self.flight, self._context
        if context.stopping:
            self.settler.hasten()
        if flight.wants_settle:
            await self._settle()
            await context.release_drained()
        more = False if context.stopping else await self._read()
        if flight.waiting_for_outcomes and not flight.wants_settle:
            await self._rest()
        if flight.waiting_for_outcomes and flight.wants_settle and not flight.wants_start:
            await self._linger()
        return more or flight.wants_settle

    async def _rest(self) -> None:
        """Wait for an outcome, a kick, a try by the breaker, or the next read."""
        pause, now = None, self._context.clock.monotonic()
        if not self._context.breaker.is_closed and self._context.paused.stream is None:
            pause = max(self._context.breaker.retry_at - now, _SHORTEST_PAUSE)
        if self._again_at is not None:
            due = max(self._again_at - now, _SHORTEST_REST)
            pause = due if pause is None else min(pause, due)
        await wait_for(self._stirred, pause)

    async def _linger(self) -> None:
        """Wait a moment for the rest of the batch, so that one settle covers all of it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._context.settings.linger_seconds
        while self.flight.waiting_for_outcomes and not self.flight.wants_start:
            self._stirred.clear()
            if not await wait_for(self._stirred, until - loop.time()):
                return

    # -- read and publish ---------------------------------------------------------------------
    async def _read(self) -> bool:
        """Read and send; True if there is more than was read."""
        context, flight, settings = self._context, self.flight, self._context.settings
        now = context.clock.monotonic()
        self._again_at = None
        if context.paused.stream is not None:
            return self._idle()
        if self._restraint.holds(flight.waiting_for_outcomes, now):
            self._again_at = self._restraint.until
            return False
        wanted = self._portion.rows
        room = wanted - flight.waiting_for_outcomes
        if room < max(1, wanted // 4):  # stuck events must not stall the others (P1)
            stuck = flight.stuck_records(now - _STUCK_SECONDS)
            room = min(room + min(stuck, settings.max_batch_size), wanted)
            if room < max(1, wanted // 4):
                return False
        limits = context.limits
        if limits.stream is not None:
            room = limits.room(self._group, room)
            if not room:
                self._again_at = limits.again_at()
                return self._idle()
        exclude = [*flight.busy_keys(), *self.settler.keys_aside()]
        if limits.topics:
            exclude += limits.keys_waiting()
        lanes = self._lanes(now, exclude)
        if self.settler.has_aside:
            lanes = [lane for lane in lanes if not self.settler.is_locked(lane)]
        if not flight.waiting_for_outcomes:  # no suspect is left that might give an answer
            context.breaker.untried(self._group)
        if not lanes:
            self.found_nothing = self._again_at is None
        self._wait_for_turns(lanes)
        rows = context.breaker.room(room, now, self._group) if lanes else 0
        if not rows:
            return False
        ordered, per_lane = self._portion.ask(lanes, rows)
        tokens = context.keeper.tokens(
            lanes
        )  # events read belong to these tokens, not to later ones
        request = ReadRequest(
            settings.stream,
            ordered,
            per_lane,
            rows,
            settings.max_batch_bytes,
            exclude,
            context.owner,
            tokens,
        )
        try:
            found = await context.store.read(request)
        except StoreError:
            context.breaker.untried(self._group)
            raise
        self._pauses.reset()
        self.found_nothing = not found
        if context.stopping or context.paused.stream is not None:
            return self._idle()  # at a stop, events sent now might not be settled in time
        more = self._portion.learn(found, rows, per_lane)
        took, now = context.clock.monotonic() - now, context.clock.monotonic()
        self._depths.learn(request, found, more=more, took=took, now=now)
        may_publish = context.keeper.may_publish
        still = {lane for lane, token in tokens.items() if may_publish(lane, now, token)}
        waiting = len(limits.waiting)
        batch = flight.admit(found, still, now)
        went_on = bool(batch) or len(limits.waiting) > waiting
        self._wait_for_turns(lanes)
        self._restraint.learn(len(found), rows, flight.waiting_for_outcomes, took, now)
        if batch:
            task = asyncio.create_task(self._publish(batch))
            self._publishing.add(task)
            task.add_done_callback(self._publishing.discard)
            context.look_soon.set()
        else:
            context.breaker.untried(self._group)
            if not found and context.events_seen and not request.exclude:
                context.events_seen = False
                if now - context.beat_at > _DOUBT_SECONDS:
                    context.beat_now.set()  # ready, but not for us: check the lanes
        return more and (went_on or flight.wants_settle)

    def _wait_for_turns(self, lanes: Sequence[int]) -> None:
        """Read again when a key of these lanes has its turn that waits for a limit."""
        turn = self._context.limits.next_turn(lanes)
        if turn is not None:
            self._again_at = turn if self._again_at is None else min(turn, self._again_at)

    def _idle(self) -> bool:
        """Send nothing: leave a try of the breaker to others. Returns False: nothing was read."""
        if not self.flight.waiting_for_outcomes:
            self._context.breaker.untried(self._group)
        return False

    def _lanes(self, now: float, exclude: Sequence[bytes]) -> list[int]:
        """Return the lanes to read, after handing over those that another worker should serve."""
        allotment = self._context.allotment
        mine = allotment.of(self._group, self._context.keeper.readable(now))
        lanes, moving = self._depths.part(mine, self._is_idle, now, exclude)
        self._again_at = self._depths.look_at
        if moving:
            for lane in moving:
                allotment.move(lane)
            self._context.wake()
        return lanes

    def _is_idle(self, lane: int) -> bool:
        return self.flight.is_idle(lane) and not self.settler.is_locked(lane)

    async def _publish(self, batch: list[Record]) -> None:
        runs = self.flight.runs_of(batch)
        error = "the relay stopped before the destination answered"
        try:
            error = await self._send(batch, self._context.broker.publish(batch, self))
        finally:
            self.flight.ended(runs, error)
            if self.flight.nothing_in_doubt(runs):  # after a try without an answer, another may try
                self._context.breaker.untried(self._group)

    async def publish_alone(self, record: Record) -> None:
        """Try a suspect alone (P3)."""
        context = self._context
        away = context.breaker.state == "open"
        held = context.stopping or away or context.paused.holds(record)
        held = held or self.flight.is_over(record)
        if held or not context.may_publish(record.lane):
            self.flight.withdraw(record)
            return
        if context.limits.active:
            context.limits.count()
            if context.limits.admit(record, alone=True) is not None:
                self.flight.withdraw(record, limited=True)
                return
        run = self.flight.send_alone(record, context.clock.monotonic())
        if run is None:
            return
        error = await self._send([record], context.broker.publish_alone(record, self))
        if run.is_open:
            if await context.destination_answers():
                context.answered()
            else:  # no answer at all: it is unreachable, which is not this event's fault
                self.report(record, Outcome(Verdict.OUTAGE, error))
        self.flight.ended([(record.key_hash, run)], error)

    async def _send(self, records: Sequence[Record], publishing: Awaitable[None]) -> str:
        """Wait for a publish call to end; returns the outcome for records it did not report."""
        began = self._context.clock.monotonic()
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
            took = self._context.clock.monotonic() - began
            self._context.tell(Sent(self._context.stream, records, took))
        return "the destination did not report an outcome"

    # -- settle -------------------------------------------------------------------------------
    async def _settle(self) -> None:
        context = self._context
        pending = self.flight.collect(
            context.stream, context.owner, context.settings.lease_seconds, context.keeper.tokens,
            keep_done=context.settings.keep_done_seconds > 0,
        )  # fmt: skip
        if pending.settlement:
            now = context.clock.monotonic()
            pending.settlement.claims += context.witnesses.of(pending.lanes, now)
        await self.settler.settle(pending)

    # -- reporting -----------------------------------------------------------------------------
    def _tell_attempt(self, record: Record, outcome: Outcome, attempts: int) -> None:
        if outcome.verdict is Verdict.MISCONFIGURED:
            now = self._context.clock.monotonic()
            self._context.corrections.note(record, outcome.error, now)
        self._context.tell(
            Attempt(
                record.stream,
                record.id,
                record.type,
                record.topic,
                outcome.verdict.value,
                attempts,
                outcome.error,
                outcome.traceback,
            )
        )
