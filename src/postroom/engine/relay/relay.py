"""The relay: from the outbox to a broker, or to handlers in this process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from postroom import notifier
from postroom.broker import Broker
from postroom.engine.breaker import Breaker
from postroom.engine.failure_policy import FailurePolicy
from postroom.engine.relay.block_repair import BlockRepair
from postroom.engine.relay.context import Counts, RelayContext, Vitals
from postroom.engine.relay.heartbeat import Heartbeat, Patience
from postroom.engine.relay.inbox_pruner import InboxPruner
from postroom.engine.relay.lanes import LaneKeeper
from postroom.engine.relay.pruner import Pruner
from postroom.engine.relay.stager import Stager
from postroom.engine.relay.suspects import Suspects
from postroom.engine.relay.watcher import Watcher
from postroom.engine.relay.worker import Worker
from postroom.engine.runner import run_all
from postroom.engine.service import Service
from postroom.engine.sharing import close_shared, open_shared
from postroom.errors import ConfigError, SchemaError, StoreError
from postroom.model.clock import Clock, SystemClock
from postroom.model.suggest import unknown
from postroom.observer import Alarm, Observer, Woken
from postroom.record import Record, short_error
from postroom.registry import load_broker, load_store
from postroom.settings import RelaySettings
from postroom.store import Store

_TICK = 0.02
_CLOSE_SECONDS = 10.0
_log = logging.getLogger(__name__)


class Relay:
    """Delivers the events of one stream, in order, at least once.

    Any number of relays may serve a stream, in this or other processes: they share its lanes.
    Settings are those of RelaySettings, given whole or by name: `Relay(store, broker,
    batch_size=500)`. The relay opens what it is given as URLs, and also objects it is handed.
    """

    def __init__(
        self,
        store: Store | str,
        broker: Broker | str,
        settings: RelaySettings | None = None,
        *,
        observers: Iterable[Observer] = (),
        clock: Clock | None = None,
        owner: str | None = None,
        **options: Any,
    ) -> None:
        self.settings = _merge(settings or RelaySettings(), options)
        self.store = load_store(store) if isinstance(store, str) else store
        self.broker = load_broker(broker) if isinstance(broker, str) else broker
        self._observers = tuple(observers)
        self._clock = clock or SystemClock()
        self._owner = owner
        self._context: RelayContext | None = None
        self._services: list[Service] = []
        self._workers: list[Worker] = []
        self._opened: list[Any] = []
        self._endings: set[asyncio.Task[None]] = set()
        self._unsubscribe: Callable[[], None] = _nothing
        self._stopped = asyncio.Event()
        self._lifecycle_lock = asyncio.Lock()
        self._counts = Counts()
        self._error: BaseException | None = None
        self._breakdown: asyncio.Task[None] | None = None

    # -- life (S4.3) --------------------------------------------------------------------------
    @property
    def is_running(self) -> bool:
        return self._context is not None

    @property
    def counts(self) -> Counts:
        """What this relay has done since it was started."""
        if self._context is not None:
            self._context.recount()
            return self._context.counts
        return self._counts

    @property
    def vitals(self) -> Vitals | None:
        """How it is at this moment; None if it does not run."""
        return self._context.vitals if self._context is not None else None

    @property
    def owner(self) -> str | None:
        """The id under which the running relay holds its lanes: a new one at each start."""
        return self._context.owner if self._context else None

    async def start(self) -> None:
        """Open store and destination and begin; returns at once. A second call does nothing.

        Raises SchemaError if the tables are not there. A destination that is away is waited for.
        """
        async with self._lifecycle_lock:
            if self._context is not None:
                if not self._context.stopping:
                    return
                await self._finish(self._context)  # a stop that was cancelled half-way
            try:
                context = await self._open()
            except BaseException:
                self._context = None
                await asyncio.shield(self._close_opened())
                raise
            if self._context is not context:  # killed meanwhile
                await self._close_opened()
                return
            if self._stopped.is_set():
                self._stopped = asyncio.Event()  # the last life may have had another event loop
            self._error = None
            self._subscribe(context)
            for service in self._services:
                service.start(self._broke_down)

    async def stop(self) -> None:
        """Finish what is in flight within `stop_seconds`, settle it, give the lanes back.

        If the call is cancelled the stop goes on; another call waits for it.
        """
        await self._to_the_end(self._stop())

    async def kill(self) -> None:
        """Stop at once. What is in flight may be sent again by whoever takes the lanes next."""
        if self._context is not None:
            await self._to_the_end(self._tear_down(self._context, polite=False))

    async def wait(self) -> None:
        """Wait until the relay has stopped; raises the error if one of its parts broke down."""
        await self._stopped.wait()
        if self._error is not None:
            raise self._error

    async def run(self) -> bool:
        """Run until SIGTERM or SIGINT; a second signal stops at once.

        Returns True if it stopped in peace, False if at once. Raises what broke it down.
        """
        return await run_all((self,))

    async def drain(self) -> Counts:
        """Send what is due now, stop, return the counts; ends early if the destination is away.

        What lies in the lanes of another relay is left to it, also if it died within its lease.
        Raises what broke the relay down, and StoreError if the store is away for a whole lease.
        """
        await self.start()
        context = self._context
        assert context is not None
        heartbeat = next(s for s in self._services if isinstance(s, Heartbeat))
        patience = Patience(self._clock, self.settings.lease_seconds)
        try:
            while not await patience.ask(lambda: self._nothing_due(context, heartbeat)):
                if not context.breaker.is_closed or self._context is not context or self._error:
                    break
                silent = self._clock.monotonic() - context.beat_at
                if heartbeat.error is not None and silent > self.settings.lease_seconds:
                    raise heartbeat.error
                context.wake()
                await asyncio.sleep(_TICK / 4)
        finally:
            await self.stop()
            counts = context.counts
        if self._error is not None:
            raise self._error
        return counts

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    # -- inside -------------------------------------------------------------------------------
    async def _open(self) -> RelayContext:
        self._opened = [self.store]
        await open_shared(self.store)
        # Handlers run in the store's transactions, unless they were given others.
        bound = self.broker.bind(
            self.store, self.settings.lease_seconds, stream=self.settings.stream
        )
        outbox_id = await self.store.identity()
        context = self._build(bound)
        context.outbox_id = outbox_id
        self._opened.append(bound)
        try:
            await open_shared(bound)
        except Exception as error:
            context.outage(short_error(error))
        return context

    def _subscribe(self, context: RelayContext) -> None:
        loop = asyncio.get_running_loop()

        def kicked() -> None:
            context.tell(Woken(context.stream, "kick"))
            context.wake()

        def kicked_from_anywhere() -> None:
            if not loop.is_closed():  # the relay went down with its loop, without a stop
                loop.call_soon_threadsafe(kicked)

        self._unsubscribe = notifier.subscribe(context.stream, kicked_from_anywhere)

    def _build(self, broker: Broker) -> RelayContext:
        settings = self.settings
        owner = self._owner or str(uuid4())
        context = RelayContext(
            self.store,
            broker,
            settings,
            LaneKeeper(owner, settings.lease_seconds),
            Breaker(settings.outage_seconds, settings.max_outage_seconds),
            self._clock,
            self._observers,
        )
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
            Heartbeat(context), BlockRepair(context), *self._workers, suspects, Stager(context)
        ]  # fmt: skip
        if self.store.capabilities.notify:
            self._services.append(Watcher(context))
        if settings.keep_done_seconds > 0:
            self._services.append(Pruner(context))
        if broker.capabilities.keeps_inbox:
            self._services.append(InboxPruner(context, broker.forget_accepted))
        self._context = context
        return context

    def _broke_down(self, error: BaseException) -> None:
        """A part has ended by an error it should not have met: stop, rather than work in part."""
        if self._context is not None and self._error is None:
            self._error = error
            self._context.tell(
                Alarm(self._context.stream, "the relay broke down", short_error(error))
            )
            _log.error("a part of the relay ended by an error: the relay stops", exc_info=error)
            self._breakdown = asyncio.create_task(self.kill())

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
        # What was set aside is ready in the store, but cannot be sent or settled for now.
        aside = any(worker.settler.has_aside for worker in self._workers)
        done = aside and all(worker.found_nothing for worker in self._workers)
        return (not staged.ready or done) and all(flight.is_empty for flight in context.flights)

    async def _start_patiently(self, asked: asyncio.Event) -> None:
        """Start; while the store is away, say so once and go on trying (S1.8)."""
        pause, told = 0.1, False
        while not asked.is_set():
            try:
                await self.start()
            except SchemaError:
                raise
            except StoreError as error:
                if not told:
                    context, self._context, told = self._build(self.broker), None, True
                    context.trouble("opening the store (will go on trying)", error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await asked.wait()
                pause = min(pause * 2, 10.0)
            else:
                return

    async def _to_the_end(self, ending: Coroutine[Any, Any, None]) -> None:
        """Run it in a task of its own: whoever asks may be a handler, which ends with the relay."""
        task = asyncio.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        await asyncio.shield(task)

    async def _stop(self) -> None:
        async with self._lifecycle_lock:  # not in the middle of a start, and once
            if self._context is not None:
                await self._finish(self._context)

    async def _finish(self, context: RelayContext) -> None:
        context.stopping = True
        context.beat_now.set()
        context.wake()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.stop_seconds):
                while not all(f.is_empty for f in context.flights):
                    await asyncio.sleep(_TICK)  # rare, and no hurry: no event is worth it
                    if self._context is not context:
                        return  # killed meanwhile
        await self._tear_down(context, polite=True)

    async def _tear_down(self, context: RelayContext, *, polite: bool) -> None:
        """End the life of an office; a call that comes too late, or beside another, is harmless."""
        if self._context is not context:
            return
        self._unsubscribe()
        for service in reversed(self._services):
            await service.stop()
        if polite:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(5.0):
                    await context.store.leave(context.stream, context.owner)
        if self._context is not context:
            return
        context.recount()
        self._counts = context.counts
        self._context = None
        self._services, self._workers = [], []
        try:
            await asyncio.shield(self._close_opened())
        finally:
            self._stopped.set()

    async def _close_opened(self) -> None:
        opened, self._opened = self._opened, []
        for thing in reversed(opened):
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_CLOSE_SECONDS):  # a driver may hang on a dead server
                    await close_shared(thing)


def _nothing() -> None:
    pass


def _merge(settings: RelaySettings, options: dict[str, Any]) -> RelaySettings:
    known = set(RelaySettings.__dataclass_fields__)
    for name in options:
        if name not in known:
            raise ConfigError(unknown("relay setting", name, known))
    return replace(settings, **options) if options else settings
