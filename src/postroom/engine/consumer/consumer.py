"""The consumer: from a broker, through the inbox, to handlers; effects happen once (G6)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from itertools import count
from types import TracebackType
from typing import Any, Self

from postroom.engine.consumer.context import ConsumerContext, ConsumerCounts, Received
from postroom.engine.consumer.dedup_window import warn_of_a_short_memory
from postroom.engine.consumer.detours import Detours
from postroom.engine.consumer.durable_inbox import DurableInbox, StoredMessages, stream_of
from postroom.engine.consumer.hashed_ids import HashedIds
from postroom.engine.consumer.key_queues import KeyQueues
from postroom.engine.consumer.messages import read, to_record
from postroom.engine.consumer.processor import MessageProcessor
from postroom.engine.consumer.size_limit import limited
from postroom.engine.handlers.handlers import SKIPPED_TYPE, Handlers
from postroom.engine.relay.relay import Relay
from postroom.engine.runner import run_all
from postroom.engine.service import end
from postroom.engine.sharing import close_shared, open_shared
from postroom.errors import ConfigError, EventError, SchemaError, StoreError
from postroom.model.clock import Clock, SystemClock
from postroom.observer import Alarm, Observer, StoreTrouble
from postroom.record import short_error
from postroom.registry import load_broker, load_source, load_store
from postroom.settings import ConsumerSettings, merge
from postroom.source import Connection, Delivery, Source
from postroom.store import Store
from postroom.transactions.conflicts import is_passing

_log = logging.getLogger(__name__)
_FIRST_PAUSE = 0.1
_CLOSE_SECONDS = 10.0


class Consumer:
    """Hands the messages of a source to handlers: at least once, with effects once.

    Each handler runs in a transaction of its own whose first statement is `accept`; the message is
    acknowledged after the commit. With `batch` several messages share a transaction. Messages of
    one key are handled in their order, keys side by side. What cannot be handled becomes a dead
    letter in the store, where it can be listed and replayed; the consumer handles the replay
    itself.

    Settings are those of ConsumerSettings, given whole or by name. The store's tables must be
    there; it is also where handlers get their transactions, unless they were given others.
    """

    def __init__(
        self,
        source: Source | str,
        store: Store | str,
        handlers: Handlers | str,
        settings: ConsumerSettings | None = None,
        *,
        observers: Iterable[Observer] = (),
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        self.settings = merge(settings, options)
        self.source = load_source(source) if isinstance(source, str) else source
        self.store = load_store(store) if isinstance(store, str) else store
        found = load_broker(handlers) if isinstance(handlers, str) else handlers
        if not isinstance(found, Handlers):
            raise ConfigError(f"a consumer needs Handlers, not {type(found).__name__}")
        self.handlers = found
        self.name = _name_of(self.settings, found, self.source)
        if self.settings.missing_id == "offset" and not self.source.capabilities.offsets:
            raise ConfigError("missing_id='offset' needs a source with a log, such as Kafka")
        if found.strict and self.settings.mode != "durable":
            raise ConfigError("strict handlers need mode='durable': a gap makes its key wait there")
        self._observers = tuple(observers)
        self._clock = clock or SystemClock()
        self._lifecycle_lock = asyncio.Lock()
        self._stopped = asyncio.Event()
        self._room = asyncio.Event()
        self._in_flight = 0
        self._numbers = count(1)
        self._context: ConsumerContext | None = None
        self._relay: Relay | None = None
        self._keys: KeyQueues | None = None
        self._trials: MessageProcessor | None = None
        self._hashes = HashedIds(self.name)
        self._held: dict[bytes, Delivery] = {}  # keys behind a message that no row can hold
        self._receiving: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._breakdown: asyncio.Task[None] | None = None
        self._opened: list[Any] = []
        self._counts = ConsumerCounts()
        self._error: BaseException | None = None

    # -- life ---------------------------------------------------------------------------------
    @property
    def is_running(self) -> bool:
        return self._context is not None

    @property
    def counts(self) -> ConsumerCounts:
        """What this consumer has done since it was started."""
        return self._counts

    @property
    def stream(self) -> str:
        """The stream of its kept messages and dead letters."""
        return stream_of(self.name)

    @property
    def in_flight(self) -> int:
        """Messages in hand: received, not yet at their end and not kept."""
        return self._in_flight

    @property
    def connection(self) -> Connection:
        """Whether the source reaches its broker, and how often it lost it."""
        return self.source.connection

    @property
    def backlog_relay(self) -> Relay | None:
        """The relay that works through kept and replayed messages, while the consumer runs."""
        return self._relay

    async def start(self) -> None:
        """Open store and source and begin; returns at once. A second call does nothing.

        Raises SchemaError if the tables are not there, StoreError if the store is away, ConfigError
        for a queue or topic that is not there. A broker that is away is waited for.
        """
        async with self._lifecycle_lock:
            if self._context is not None:
                return
            try:
                await self._open()
            except BaseException:
                await asyncio.shield(self._close())
                raise

    async def stop(self) -> None:
        """Take no more, finish what runs within `stop_seconds`, acknowledge it, let go.

        What has not begun goes back to the broker, in its place.
        """
        async with self._lifecycle_lock:
            if self._context is not None:
                await self._finish(self.settings.stop_seconds)

    async def kill(self) -> None:
        """Stop at once; what runs is rolled back, and its messages come again."""
        async with self._lifecycle_lock:
            if self._context is not None:
                await self._finish(0.0)

    async def wait(self) -> None:
        """Wait until the consumer has stopped; raises the error if one of its parts broke down."""
        await self._stopped.wait()
        if self._error is not None:
            raise self._error

    async def run(self) -> bool:
        """Run until SIGTERM or SIGINT; a second signal stops at once.

        While the store is away at the start it is waited for. Returns True if it stopped in peace.
        """
        return await run_all((self,))

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

    async def health(self) -> None:
        """Return if the broker answers; raise what is wrong otherwise."""
        await self.source.health()

    # -- coming and going ---------------------------------------------------------------------
    async def _open(self) -> None:
        settings = self.settings
        self._counts, self._error, self._in_flight = ConsumerCounts(), None, 0
        self._stopped, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._opened.append(self.store)
        await open_shared(self.store)
        if settings.batch > 1 and not self.store.capabilities.transactions:
            raise ConfigError("consumer: a batch needs transactions, and this store has none")
        handlers = self.handlers.bind(self.store, settings.lease_seconds, name=self.name)
        self._opened.append(handlers)
        await open_shared(handlers)
        durable_inbox = DurableInbox(self.store, self.name, strict=handlers.strict is not None)
        context = ConsumerContext(
            settings, handlers, durable_inbox, self._clock, self._observers, counts=self._counts
        )
        self._relay = Relay(
            self.store,
            StoredMessages(handlers),
            stream=durable_inbox.stream,
            retry=settings.retry,
            lease_seconds=settings.lease_seconds,
            dedup_seconds=settings.dedup_seconds,
            stop_seconds=settings.stop_seconds,
            misconfigured_seconds=settings.misconfigured_seconds,
            outage_seconds=settings.outage_seconds,
            max_outage_seconds=settings.max_outage_seconds,
            name=self.name,
            observers=self._observers,
            clock=self._clock,
        )
        await self._relay.start()
        self._watching = asyncio.create_task(self._watch(self._relay), name="watching")
        self._opened.append(self.source)
        await self._open_source()
        self._trials, self._held = MessageProcessor(context), {}
        self._keys = KeyQueues(self._trials.finish, self._left, self._broke_down)
        if settings.mode == "direct":
            most = self.source.capabilities.max_unacked or settings.max_in_flight
            room = min(settings.max_in_flight, most)
            self._keys.detours = context.detours = Detours(context, room, self._keys.count)
        self._context = context
        redelivers = self.source.capabilities.redelivers_seconds
        warn_of_a_short_memory(self.name, settings.dedup_seconds, redelivers)
        self._receiving = asyncio.create_task(self._receive(context), name="receiving")
        self._receiving.add_done_callback(self._receiving_ended)

    async def _open_source(self) -> None:
        """Open the source, which may wait; raises if the relay of the backlog breaks down first."""
        assert self._watching is not None
        opening = asyncio.create_task(open_shared(self.source), name="opening")
        try:
            await asyncio.wait({opening, self._watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not opening.done():
                await end(opening)
        if self._error is not None:
            raise self._error
        await opening

    async def _finish(self, seconds: float) -> None:
        context, keys, receiving = self._context, self._keys, self._receiving
        assert context is not None
        assert keys is not None
        assert receiving is not None
        context.stopping.set()
        await end(receiving)
        with contextlib.suppress(Exception):
            await self.source.pause()
        await keys.settle(seconds)
        if self._trials is not None:
            await self._trials.close()
        await asyncio.shield(self._close(at_once=seconds == 0.0))

    async def _close(self, *, at_once: bool = False) -> None:
        relay, self._relay = self._relay, None
        if relay is not None:
            await (relay.kill() if at_once else relay.stop())
        if self._watching is not None:
            await asyncio.wait({self._watching})
        opened, self._opened = self._opened, []
        for thing in reversed(opened):
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_CLOSE_SECONDS):  # a driver may hang on a dead server
                    await close_shared(thing)
        self._context = self._keys = self._trials = self._receiving = None
        self._stopped.set()

    async def _start_patiently(self, asked: asyncio.Event) -> None:
        pause, told = _FIRST_PAUSE, False
        while not asked.is_set():
            try:
                await self.start()
            except SchemaError:
                raise
            except StoreError as error:
                if not told:
                    _log.warning("the store is away (will go on trying): %s", error)
                    told = True
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await asked.wait()
                pause = min(pause * 2, 10.0)
            else:
                return

    async def _watch(self, relay: Relay) -> None:
        """Learn of it when the relay of the backlog breaks down: it stops by itself then."""
        try:
            await relay.wait()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._broke_down(error)

    def _receiving_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broke_down(error)

    def _broke_down(self, error: BaseException) -> None:
        """A part has ended by an error it should not have met: stop, rather than work in part."""
        if self._error is not None:
            return
        self._error = error
        if self._context is not None:  # else it has only begun to start, and raises it
            self._context.tell(Alarm(self._context.stream, "the consumer broke down", str(error)))
            _log.error("a part of the consumer ended by an error: it stops", exc_info=error)
            self._breakdown = asyncio.create_task(self.kill())

    # -- receiving ----------------------------------------------------------------------------
    async def _receive(self, context: ConsumerContext) -> None:
        while True:
            while self._in_flight >= self.settings.max_in_flight:
                self._room.clear()
                await self._room.wait()
            deliveries = await self.source.receive()
            context.counts.received += len(deliveries)
            messages = self._sort(context, deliveries)
            assert self._keys is not None
            if context.detours is None:  # durable
                self._put(received for received in messages if received.problem)
                await self._keep(
                    context, [received for received in messages if not received.problem]
                )
            else:
                busy = await context.detours.look() if messages else set()
                self._put(le._replace(keep=le.record.key_hash in busy) for le in messages)
                context.detours.relieve()

    def _put(self, messages: Iterable[Received]) -> None:
        assert self._keys is not None
        for received in messages:
            self._in_flight += 1
            self._keys.put(received)

    def _sort(self, context: ConsumerContext, deliveries: Sequence[Delivery]) -> list[Received]:
        """Return what is to be handled or buried; what is to be ignored is acknowledged."""
        messages: list[Received] = []
        for given in deliveries:
            delivery = limited(given, self.settings.max_bytes)
            message = delivery.message
            problem = message.problem
            try:
                record, from_body = read(message, self.settings.missing_id)
            except EventError as error:
                record, problem = to_record(message), problem or str(error)
            else:
                context.counts.hashed_ids += from_body
                if from_body:
                    self._hashes.note(message.topic)
            if not problem and context.handlers.handles(record.type):
                # A number of its own in this process, by which a suspect is known again.
                record = record._replace(seq=next(self._numbers))
                messages.append(Received(delivery, record))
                continue
            strict = context.handlers.strict is not None and record.kseq is not None
            if not problem and self.settings.unhandled == "ignore":
                context.counts.ignored += 1
                if strict:  # its number must not be missed: it is stepped over in its turn
                    messages.append(Received(delivery, record._replace(type=SKIPPED_TYPE)))
                else:
                    delivery.ack()
                continue
            if not problem and strict:  # its key waits for a handler, with an alarm, not for ever
                messages.append(Received(delivery, record))
                continue
            problem = problem or (
                f"no handler for type {record.type!r}; register one and replay this message, "
                "or set unhandled='ignore'"
            )
            context.tell(Alarm(context.stream, f"message {record.id}", problem))
            messages.append(Received(delivery, record, problem))
        return messages

    async def _keep(self, context: ConsumerContext, messages: Sequence[Received]) -> None:
        """Store messages, in order, then acknowledge them."""
        pause = _FIRST_PAUSE
        while messages := [received for received in messages if self._may_be_kept(received)]:
            try:
                await context.durable_inbox.keep(
                    [(le.delivery.message, le.record) for le in messages]
                )
            except Exception as error:
                if is_passing(error):
                    context.tell(
                        StoreTrouble(context.stream, "keeping messages", short_error(error))
                    )
                    await context.pause(pause)
                    pause = min(pause * 2, self.settings.max_outage_seconds)
                elif len(messages) == 1:
                    self._held[messages[0].record.key_hash] = messages[0].delivery
                    context.cannot_be_kept(messages[0], error)
                else:  # one of them can never be stored: those of other keys must not wait
                    for received in messages:
                        await self._keep(context, [received])
                    return
            else:
                context.counts.kept += len(messages)
                for received in messages:
                    received.delivery.ack()
                return

    def _may_be_kept(self, received: Received) -> bool:
        """Say whether it is still ours, and not behind one of its key that cannot be stored."""
        head = self._held.get(received.record.key_hash)
        if head is not None and head.is_lost:
            del self._held[received.record.key_hash]
            head = None
        return head is None and not received.delivery.is_lost

    def _left(self, count: int) -> None:
        self._in_flight -= count
        if self._in_flight < self.settings.max_in_flight:
            self._room.set()


def _name_of(settings: ConsumerSettings, handlers: Handlers, source: Source) -> str:
    """Return the consumer's name: the one given, its handlers', or its queue's or group's."""
    name = settings.name or handlers.own_name or source.name
    if not name:
        raise ConfigError(
            "a consumer needs a name, by which its inbox rows and kept messages are known: "
            "Consumer(…, name='payments'). No other service that uses these tables may have it, "
            "and it must not change from one deployment to the next"
        )
    merge(settings, {"name": name})  # what is long enough for a queue may be too long for a stream
    return name
