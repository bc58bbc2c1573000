"""The relay: from the outbox to a broker, or to handlers in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Unpack
from uuid import uuid4

from postroom import notifier
from postroom.broker import Broker
from postroom.delivery import Watch, until_done
from postroom.engine.breaker import Breaker
from postroom.engine.controls import ControlWatch
from postroom.engine.failure_policy import FailurePolicy
from postroom.engine.handler_sets import HandlerSets
from postroom.engine.lifecycle import Lifecycle
from postroom.engine.operations.watch import OperationWatch
from postroom.engine.relay.block_repair import BlockRepair
from postroom.engine.relay.context import Counts, RelayContext, Vitals
from postroom.engine.relay.heartbeat import Heartbeat, Patience
from postroom.engine.relay.held_events import HeldEvents
from postroom.engine.relay.inbox_pruner import InboxPruner
from postroom.engine.relay.lanes import LaneKeeper
from postroom.engine.relay.prober import Prober
from postroom.engine.relay.pruner import Pruner
from postroom.engine.relay.stager import Stager
from postroom.engine.relay.suspects import Suspects
from postroom.engine.relay.watcher import Watcher
from postroom.engine.relay.worker import Worker
from postroom.engine.service import Service
from postroom.engine.summaries import Summaries
from postroom.errors import PausedError, StoreError, StoreRetryableError, StoreUnknownError
from postroom.model.clock import Clock, SystemClock
from postroom.model.controls import CONSUMER, Control
from postroom.model.durations import Seconds, to_seconds
from postroom.model.option_reader import with_options
from postroom.model.pauses import Pauses
from postroom.observer import Delivered, Fact, Observer, Woken
from postroom.operation import Operation
from postroom.options import RelayOptions
from postroom.record import Record, short_error
from postroom.registry import load_broker, load_store
from postroom.settings import RelaySettings
from postroom.store import Member, Store

DrainEnd = Literal["drained", "time", "unreachable", "stopped"]
_TICK = 0.02
_SUMMARISED = ("done", "failed", "dead", "expired", "repeated")
_LEAVE_SECONDS, _LEAVE_TRIES, _FIRST_PAUSE = 5.0, 5, 0.05
_LAST_BEAT_SECONDS = 2.0


class Relay(Lifecycle[RelayContext]):
    """Delivers the events of one stream, in order, at least once.

    Any number of relays may serve a stream, in this or other processes: they share its lanes.
    Settings are those of RelaySettings, given whole or by name: `Relay(store, broker,
    batch_size=500)`. The relay opens what it is given as URLs, and also objects it is handed.
    Warnings and errors are logged, unless log=False.
    """

    _noun = "relay"

    def __init__(
        self,
        store: Store | str,
        broker: Broker | str,
        settings: RelaySettings | None = None,
        *,
        observers: Iterable[Observer] = (),
        log: bool = True,
        clock: Clock | None = None,
        owner: str | None = None,
        **options: Unpack[RelayOptions],
    ) -> None:
        self.settings = with_options(settings or RelaySettings(), options, "relay setting")
        self.store = load_store(store) if isinstance(store, str) else store
        self.broker = load_broker(broker) if isinstance(broker, str) else broker
        super().__init__(observers, log=log)
        self._clock = clock or SystemClock()
        self._owner = owner
        self.is_impaired: Callable[[], bool] | None = None  # for status: it is unhealthy then
        self.on_members: Callable[[Sequence[Member]], None] | None = None
        self.consumer: str | None = None  # whose pauses it obeys: it handles its stored messages
        self._watch: ControlWatch | None = None
        self._operations: OperationWatch | None = None
        self._services: list[Service] = []
        self._workers: list[Worker] = []
        self._watched: set[Watch] = set()
        self._unsubscribe: Callable[[], None] = _nothing
        self._counts = Counts()
        self.drain_end: DrainEnd | None = None  # of the last drain

    @property
    def counts(self) -> Counts:
        """Counters since the relay was started."""
        if self._context is not None:
            self._context.recount()
            return self._context.counts
        return self._counts

    @property
    def vitals(self) -> Vitals | None:
        """The current state; None if the relay does not run."""
        return self._context.vitals if self._context is not None else None

    @property
    def pauses(self) -> list[Control]:
        """The pauses that the running relay obeys now: of its stream, and of topics."""
        if self._context is None:
            return []
        paused = self._context.paused
        return [*([paused.stream] if paused.stream else []), *paused.topics.values()]

    @property
    def operations(self) -> list[Operation]:
        """The unfinished operations of the store, as the running relay saw them last."""
        return [] if self._operations is None else self._operations.seen

    @property
    def limits(self) -> list[Control]:
        """The limits that the running relay obeys now: of its stream, and of topics."""
        return [] if self._context is None else self._context.limits.controls

    @property
    def owner(self) -> str | None:
        """The id under which the running relay holds its lanes: a new one at each start."""
        return self._context.owner if self._context else None

    async def drain(self, *, max_seconds: Seconds | None = None) -> Counts:
        """Send what is due now, stop, return the counts; `drain_end` tells why it ended.

        "drained": nothing due is left. "time": `max_seconds` are over. "unreachable": the
        destination does not answer. "stopped": by `stop` or `kill`. Events in flight are then
        finished within `stop_seconds`.

        Events in the lanes of another relay are left to it, even if it died within its lease.
        Raises the error of a crashed service, PausedError if the stream is paused, and StoreError
        if for a whole lease the store is unreachable or free lanes cannot be taken. Events of a
        paused topic wait, and are not due.
        """
        began, limit = self._clock.monotonic(), to_seconds(max_seconds or 0.0)
        self.drain_end = None
        await self.start()
        context = self._context
        if context is None:  # killed meanwhile
            self.drain_end = "stopped"
            return self._counts
        heartbeat = next(s for s in self._services if isinstance(s, Heartbeat))
        lease = self.settings.lease_seconds
        patience, settled_at = Patience(self._clock, lease), self._clock.monotonic()
        try:
            while not await patience.ask(lambda: self._nothing_due(context, heartbeat)):
                if self._context is not context or self._stopping or self._error:
                    self.drain_end = "stopped"
                    break
                if not context.breaker.is_closed:
                    self.drain_end = "unreachable"
                    break
                if limit and self._clock.monotonic() - began >= limit:
                    self.drain_end = "time"
                    break
                if (pause := context.paused.stream) is not None:
                    raise PausedError(pause.kind, pause.name, pause.command)
                now = self._clock.monotonic()
                if heartbeat.error is not None and now - context.beat_at > lease:
                    raise heartbeat.error
                if heartbeat.settled_in:
                    settled_at = now
                elif heartbeat.not_taken and now - settled_at > lease:
                    lanes = ", ".join(map(str, heartbeat.not_taken))
                    raise StoreRetryableError(
                        f"lanes {lanes} are free and could not be taken for {lease:g} s; look for "
                        "an open transaction in the database that has locked them"
                    )
                context.wake()
                await asyncio.sleep(_TICK / 4)
            else:
                self.drain_end = "drained"
        finally:
            await self.stop()
            counts = context.counts
        if self._error is not None:
            raise self._error
        return counts

    async def delivered(
        self,
        ids: Iterable[str],
        *,
        timeout: Seconds | None = 30.0,  # noqa: ASYNC109 - see NotDeliveredError
        committed: bool = False,
    ) -> None:
        """Return when these events are done, as `Outbox.wait` does, with this relay's store.

        The events may belong to any stream. Outcomes of this relay are noticed at once, without a
        query. The relay must be running, or its store be open.
        """
        watch = Watch(ids)
        self._watched.add(watch)
        try:
            await until_done(self.store, watch, timeout, committed=committed)
        finally:
            self._watched.discard(watch)

    # -- life ---------------------------------------------------------------------------------
    @property
    def _title(self) -> str:
        return f"the relay of stream {self.settings.stream}"

    @property
    def _fact_stream(self) -> str:
        return self.settings.stream

    async def _open(self) -> RelayContext:
        await self._open_shared(self.store)
        # Handlers run in the store's transactions, unless they were given others.
        bound = self.broker.bind(
            self.store, self.settings.lease_seconds, stream=self.settings.stream
        )
        owner, on_members = self._owner, self.on_members
        if owner is None and (functions := bound.functions()):
            sets = HandlerSets(self.settings.stream, functions, self._tell, self._clock)
            owner, on_members = sets.owner, on_members or sets.compare
        context = RelayContext(
            self.store,
            bound,
            self.settings,
            LaneKeeper(owner or str(uuid4()), self.settings.lease_seconds),
            Breaker(self.settings.outage_seconds, self.settings.max_outage_seconds),
            self._clock,
            (*self._observers, _Confirmations(self._watched)),
            outbox_id=await self.store.identity(),
            is_impaired=self.is_impaired,
            on_members=on_members,
        )
        if self.consumer is not None:
            context.paused.obey(CONSUMER, self.consumer)
            context.limits.ignore_topics()
        self._watch = ControlWatch(
            self.store, context.obey, trouble=context.trouble, recovered=context.recovered
        )
        await self._watch.look()
        self._operations = OperationWatch(
            self.store, trouble=context.trouble, recovered=context.recovered
        )
        try:
            await self._open_shared(bound)
        except Exception as error:
            context.outage(short_error(error))
        return context

    def _begin(self, context: RelayContext) -> None:
        self._build(context)
        self._subscribe(context)
        for service in self._services:
            service.start(self._broke_down)

    async def _finish(self, context: RelayContext) -> None:
        if not self._killed.is_set():
            context.stopping = True
            context.beat_now.set()
            context.wake()
            await self._unless_killed(_nothing_in_flight(context), self.settings.stop_seconds)
            await self._unless_killed(self._last_beat(), _LAST_BEAT_SECONDS)
        self._unsubscribe()
        for service in reversed(self._services):
            await service.stop()
        if not self._killed.is_set():
            await self._unless_killed(_leave(context))
        context.recount()
        self._counts = context.counts
        self._services, self._workers = [], []

    # -- inside -------------------------------------------------------------------------------
    async def _last_beat(self) -> None:
        for service in self._services:
            if isinstance(service, Heartbeat):
                await service.finish()

    def _subscribe(self, context: RelayContext) -> None:
        loop = asyncio.get_running_loop()

        def kicked() -> None:
            context.tell(Woken(context.stream, "kick"))
            context.wake()

        def kicked_from_anywhere() -> None:
            if not loop.is_closed():  # the relay ended with its loop, without a stop
                loop.call_soon_threadsafe(kicked)

        self._unsubscribe = notifier.subscribe(context.stream, kicked_from_anywhere)

    def _build(self, context: RelayContext) -> None:
        settings, broker = self.settings, context.broker
        marks_start = broker.capabilities.marks_start
        policy = FailurePolicy(
            settings.retry,
            counts_at_start=marks_start,
            suspect_limit=settings.suspect_limit,
            misconfigured_seconds=settings.misconfigured_seconds,
        )
        suspects = Suspects(self._try_alone)
        self._workers = [
            Worker(
                context,
                group,
                policy,
                on_suspect=suspects.add,
                publish_seconds=None if marks_start else settings.publish_seconds,
            )
            for group in range(context.allotment.workers)
        ]
        self._services = [
            Heartbeat(context), BlockRepair(context), *self._workers, suspects, Stager(context),
            HeldEvents(context), Prober(context), self._summaries(context),
        ]  # fmt: skip
        if self._watch is not None:
            self._services.append(self._watch)
        if self._operations is not None:
            self._services.append(self._operations)
        if self.store.capabilities.notify:
            self._services.append(Watcher(context))
        self._services.append(Pruner(context))  # also where done events are deleted at once
        if broker.capabilities.keeps_inbox:
            self._services.append(InboxPruner(context, broker.forget_accepted))

    def _summaries(self, context: RelayContext) -> Summaries:
        def counts() -> dict[str, int]:
            context.recount()
            return {name: getattr(context.counts, name) for name in _SUMMARISED}

        return Summaries(context.stream, counts, context.tell, self._clock, context.take_lag)

    async def _try_alone(self, record: Record) -> None:
        if self._context is not None:
            await self._workers[self._context.allotment.worker_of(record.lane)].publish_alone(
                record
            )

    async def _nothing_due(self, context: RelayContext, heartbeat: Heartbeat) -> bool:
        if not heartbeat.settled_in or not all(flight.is_empty for flight in context.flights):
            return False
        if context.to_repair or context.repairing:  # a key may be about to go on
            return False
        staged = await context.store.stage(context.stream, list(context.keeper.held), 1_000)
        # Events that were set aside are ready in the store, but cannot be settled for now.
        aside = any(worker.settler.has_aside for worker in self._workers)
        done = aside and all(worker.found_nothing for worker in self._workers)
        return (not staged.ready or done) and all(flight.is_empty for flight in context.flights)


class _Confirmations:
    """Tells callers of `delivered` about done events, without a query."""

    def __init__(self, watched: set[Watch]) -> None:
        self._watched = watched

    def observe(self, fact: Fact) -> None:
        if self._watched and isinstance(fact, Delivered):
            for watch in self._watched:
                watch.confirm(record.id for record in fact.records)


async def _nothing_in_flight(context: RelayContext) -> None:
    while not all(flight.is_empty for flight in context.flights):  # noqa: ASYNC110 - rare
        await asyncio.sleep(_TICK)


async def _leave(context: RelayContext) -> None:
    """Release the lanes, and report if that fails: other relays then wait until the lease expires.

    A call that was cancelled by this stop may still be running in the database: the release may be
    the victim of a deadlock with it, and is repeated.
    """
    error: StoreError = StoreUnknownError(f"no answer within {_LEAVE_SECONDS:g} s")
    pauses = Pauses(_FIRST_PAUSE, _LEAVE_SECONDS)
    try:
        async with asyncio.timeout(_LEAVE_SECONDS):
            for left in reversed(range(_LEAVE_TRIES)):
                try:
                    await context.store.leave(context.stream, context.owner)
                except StoreRetryableError as refused:
                    error = refused
                    await asyncio.sleep(pauses.grow() if left else 0)
                else:
                    return
    except TimeoutError:
        pass
    except StoreError as refused:
        error = refused
    lease = context.settings.lease_seconds
    context.trouble(f"releasing the lanes at the stop (they expire within {lease:g} s)", error)


def _nothing() -> None:
    pass
