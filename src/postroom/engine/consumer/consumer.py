"""The consumer: from a broker, through the inbox, to handlers; effects happen once (G6)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import Unpack

from postroom.engine.consumer.context import ConsumerContext, ConsumerCounts, Received
from postroom.engine.consumer.dedup_window import warn_of_a_short_memory
from postroom.engine.consumer.detours import Detours
from postroom.engine.consumer.durable_inbox import DurableInbox, StoredMessages, stream_of
from postroom.engine.consumer.hashed_ids import HashedIds
from postroom.engine.consumer.key_queues import KeyQueues
from postroom.engine.consumer.messages import read, to_record
from postroom.engine.consumer.processor import MessageProcessor
from postroom.engine.consumer.size_limit import limited
from postroom.engine.handler_sets import HandlerSets
from postroom.engine.handlers.dispatch import SKIPPED_TYPE
from postroom.engine.handlers.handlers import Handlers
from postroom.engine.lifecycle import Lifecycle
from postroom.engine.relay.relay import Relay
from postroom.engine.service import Loop, is_cancelled
from postroom.engine.summaries import Summaries
from postroom.errors import ConfigError, EventError
from postroom.model.clock import Clock, SystemClock
from postroom.model.option_reader import with_options
from postroom.observer import Alarm, Observer
from postroom.options import ConsumerOptions
from postroom.registry import load_broker, load_source, load_store
from postroom.settings import ConsumerSettings
from postroom.source import Delivery, Source, SourceConnection
from postroom.store import Store
from postroom.transactions.conflicts import is_passing

_LOOK_SECONDS = 0.1
_SUMMARISED = ("received", "done", "repeats", "stored", "failed", "dead", "ignored")


class Consumer(Lifecycle[ConsumerContext]):
    """Passes the messages of a source to handlers: at least once, with effects once.

    Each handler runs in its own transaction whose first statement is `accept`; the message is
    acknowledged after the commit. With `batch` several messages share a transaction. Messages of
    one key are handled in order, keys concurrently. A message that cannot be handled becomes a dead
    letter in the store, where it can be listed and replayed; the consumer handles the replay
    itself.

    Settings are those of ConsumerSettings, given whole or by name. The store's tables must
    exist; handlers get their transactions from it, unless they were given others.

    A stop returns unstarted messages to the broker, in their place. A kill rolls back running ones.
    Warnings and errors are logged, unless log=False.
    """

    _noun = "consumer"

    def __init__(
        self,
        source: Source | str,
        store: Store | str,
        handlers: Handlers | str,
        settings: ConsumerSettings | None = None,
        *,
        observers: Iterable[Observer] = (),
        log: bool = True,
        clock: Clock | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self.settings = with_options(settings or ConsumerSettings(), options, "consumer setting")
        self.source = load_source(source) if isinstance(source, str) else source
        self.store = load_store(store) if isinstance(store, str) else store
        found = load_broker(handlers) if isinstance(handlers, str) else handlers
        if not isinstance(found, Handlers):
            raise ConfigError(f"a consumer needs Handlers, not {type(found).__name__}")
        self.handlers = found
        self.name = _name_of(self.settings, found, self.source)
        if self.settings.missing_id == "offset" and not self.source.capabilities.offsets:
            raise ConfigError("missing_id='offset' needs a source that is a log, such as Kafka")
        if found.strict and self.settings.mode != "durable":
            raise ConfigError(
                "strict handlers need mode='durable', where a key with a gap can wait"
            )
        super().__init__(observers, log=log)
        self._clock = clock or SystemClock()
        self._room = asyncio.Event()
        self._in_flight = 0
        self._numbers = count(1)
        self._relay: Relay | None = None
        self._keys: KeyQueues | None = None
        self._trials: MessageProcessor | None = None
        self._hashes = HashedIds(self.name)
        self._held: dict[bytes, Delivery] = {}  # keys behind a message that no row can hold
        self._receiver: Loop | None = None
        self._summaries: Summaries | None = None
        self._counts = ConsumerCounts()

    @property
    def counts(self) -> ConsumerCounts:
        """Counters since the consumer was started."""
        return self._counts

    @property
    def stream(self) -> str:
        """The stream of its stored messages and dead letters."""
        return stream_of(self.name)

    @property
    def in_flight(self) -> int:
        """Messages in flight: received, not finished and not stored."""
        return self._in_flight

    @property
    def connection(self) -> SourceConnection:
        """Whether the source is connected to its broker, and how often it lost the connection."""
        return self.source.connection

    @property
    def backlog_relay(self) -> Relay | None:
        """The relay that handles stored and replayed messages, while the consumer runs."""
        return self._relay

    async def health(self) -> None:
        """Return if the broker answers; otherwise raise the error."""
        await self.source.health()

    # -- life ---------------------------------------------------------------------------------
    @property
    def _title(self) -> str:
        return f"the consumer {self.name}"

    @property
    def _fact_stream(self) -> str:
        return self.stream

    async def _open(self) -> ConsumerContext:
        settings = self.settings
        self._counts, self._in_flight, self._held = ConsumerCounts(), 0, {}
        self._room = asyncio.Event()
        self._room.set()
        await self._open_shared(self.store)
        if settings.batch > 1 and not self.store.capabilities.transactions:
            raise ConfigError(
                "consumer: a batch needs transactions, which this store does not have"
            )
        handlers = self.handlers.bind(self.store, settings.lease_seconds, name=self.name)
        await self._open_shared(handlers)
        durable_inbox = DurableInbox(self.store, self.name, strict=handlers.strict is not None)
        sets = HandlerSets(
            self.stream,
            handlers.functions(),
            self._tell,
            self._clock,
            consumer=self.name,
            source=self.source.name or self.name,
        )
        self._relay = Relay(
            self.store,
            StoredMessages(handlers),
            stream=durable_inbox.stream,
            retry=settings.retry,
            lease_seconds=settings.lease_seconds,
            dedup_seconds=settings.dedup_seconds,
            keep_dead_seconds=settings.keep_dead_seconds,
            stop_seconds=settings.stop_seconds,
            misconfigured_seconds=settings.misconfigured_seconds,
            outage_seconds=settings.outage_seconds,
            max_outage_seconds=settings.max_outage_seconds,
            name=self.name,
            observers=self._observers,
            log=False,  # its facts go to the consumer's observers
            clock=self._clock,
            owner=sets.owner,
        )
        self._relay.on_members = sets.compare
        self._relay.is_impaired = lambda: bool(self.source.connection.trouble)
        self._relay.on_crash = self._part_broke_down
        self._relay.consumer = self.name
        await self._relay.start()
        await self._open_shared(self.source)
        return ConsumerContext(
            settings, handlers, durable_inbox, self._clock, self._observers, counts=self._counts
        )

    def _begin(self, context: ConsumerContext) -> None:
        settings, capabilities = self.settings, self.source.capabilities
        self._trials = MessageProcessor(context)
        self._keys = KeyQueues(self._trials.finish, self._left, self._broke_down)
        if settings.mode == "direct":
            most = capabilities.max_unacked or settings.max_in_flight
            room = min(settings.max_in_flight, most)
            self._keys.detours = context.detours = Detours(context, room, self._keys.count)
        warn_of_a_short_memory(self.name, settings.dedup_seconds, capabilities.redelivers_seconds)
        self._receiver = Loop(lambda: self._receive(context), "the receiver")
        self._receiver.start(self._broke_down)
        self._summaries = Summaries(
            self.stream,
            lambda: {name: getattr(self._counts, name) for name in _SUMMARISED},
            self._tell,
            self._clock,
        )
        self._summaries.start(self._broke_down)

    async def _finish(self, context: ConsumerContext) -> None:
        context.stopping.set()
        if self._receiver is not None:
            await self._receiver.stop()
        if self._summaries is not None:
            await self._summaries.stop()
        with contextlib.suppress(Exception):
            await self.source.pause()
        if self._keys is not None:
            await self._unless_killed(self._keys.wait(), self.settings.stop_seconds)
            await self._keys.stop()
        if self._trials is not None:
            await self._trials.close()
        self._receiver = self._keys = self._trials = None

    async def _close_opened(self) -> None:
        if self._relay is not None:
            await self._unless_killed(self._relay.stop())
            if self._killed.is_set():
                await self._relay.kill()
            self._relay = None
        await super()._close_opened()

    # -- receiving ----------------------------------------------------------------------------
    async def _receive(self, context: ConsumerContext) -> None:
        while not is_cancelled():
            while self._in_flight >= self.settings.max_in_flight:
                self._room.clear()
                await self._room.wait()
            await self._while_paused()
            deliveries = await self.source.receive()
            await self._while_paused()  # a pause that began meanwhile
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

    @property
    def is_paused(self) -> bool:
        """Whether an operator has paused it: it receives nothing and handles no stored message."""
        return self._relay is not None and bool(self._relay.pauses)

    async def _while_paused(self) -> None:
        """Wait for the end of a pause; the connection and the place in the group stay."""
        while self.is_paused:  # noqa: ASYNC110 - the relay reads the controls, once a second
            await asyncio.sleep(_LOOK_SECONDS)

    def _put(self, messages: Iterable[Received]) -> None:
        assert self._keys is not None
        for received in messages:
            self._in_flight += 1
            self._keys.put(received)

    def _sort(self, context: ConsumerContext, deliveries: Sequence[Delivery]) -> list[Received]:
        """Return the messages to handle or bury; acknowledge those to ignore."""
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
                # A number unique in this process, which identifies a suspect.
                record = record._replace(seq=next(self._numbers))
                messages.append(Received(delivery, record))
                continue
            strict = context.handlers.strict is not None and record.kseq is not None
            if not problem and self.settings.unhandled == "ignore":
                context.counts.ignored += 1
                if strict:  # its number must not be missing: it is skipped in its turn
                    messages.append(Received(delivery, record._replace(type=SKIPPED_TYPE)))
                else:
                    delivery.ack()
                continue
            # its key waits for a handler, with an alarm, until there is one
            if not problem and strict:
                messages.append(Received(delivery, record))
                continue
            problem = problem or (
                f"no handler for type {record.type!r}; register one and replay this message, "
                "or set unhandled='ignore'"
            )
            context.tell(Alarm(context.stream, f"message {record.id}", problem, record.id))
            messages.append(Received(delivery, record, problem))
        return messages

    async def _keep(self, context: ConsumerContext, messages: Sequence[Received]) -> None:
        """Store messages, in order, then acknowledge them."""
        pauses = context.pauses()
        while messages := [received for received in messages if self._may_be_kept(received)]:
            try:
                await context.durable_inbox.keep(
                    [(le.delivery.message, le.record) for le in messages]
                )
            except Exception as error:
                if is_passing(error):
                    context.trouble("keeping messages", error)
                    await context.pause(pauses.grow())
                elif len(messages) == 1:
                    self._held[messages[0].record.key_hash] = messages[0].delivery
                    context.cannot_be_kept(messages[0], error)
                else:  # one of them can never be stored: those of other keys must not wait
                    for received in messages:
                        await self._keep(context, [received])
                    return
            else:
                context.recovered("keeping messages")
                context.counts.stored += len(messages)
                for received in messages:
                    received.delivery.ack()
                return

    def _may_be_kept(self, received: Received) -> bool:
        """Return whether it is still ours, and not behind one of its key that cannot be stored."""
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
    """Return the consumer's name: the given one, its handlers', or its queue's or group's."""
    name = settings.name or handlers.own_name or source.name
    if not name:
        raise ConfigError(
            "a consumer needs a name, which identifies its inbox rows and stored messages: "
            "Consumer(…, name='payments'). No other service that uses these tables may use "
            "the same name, and it must stay the same in every deployment"
        )
    replace(settings, name=name)  # a queue's name may be too long for a stream
    return name
