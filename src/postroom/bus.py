"""Bus: events between the modules of one process, each module with its own tables.

A module publishes through its outbox. An event is stored in the tables of every module that has a
handler for its type, and only then counts as sent; each module handles its stored events
independently, with its own retries and dead letters. Delivery is at least once and in order per
key; effects are applied once. A failing module does not delay the others; a module whose database
is unreachable delays the modules that publish to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Unpack

from postroom.broker import (
    CONFIRMED,
    UNSENT,
    Broker,
    BrokerCapabilities,
    Outcome,
    Reporter,
    Verdict,
)
from postroom.delivery import Watch, until_done
from postroom.engine.consumer.durable_inbox import DurableInbox, StoredMessages
from postroom.engine.consumer.messages import to_message, to_record
from postroom.engine.handlers.dispatch import SKIPPED_TYPE
from postroom.engine.handlers.handlers import Handlers
from postroom.engine.handlers.options import ModuleOptions
from postroom.engine.handlers.signatures import Function
from postroom.engine.lifecycle import Lifecycle
from postroom.engine.relay.relay import Relay
from postroom.engine.sharing import close_shared, open_shared
from postroom.errors import ConfigError
from postroom.event import DEFAULT_STREAM, INBOX_STREAM_PREFIX, MAX_STREAM_BYTES
from postroom.lookup import Standing
from postroom.model import receipts
from postroom.model.durations import Seconds, to_seconds
from postroom.model.incoming import Incoming
from postroom.model.option_reader import refuse_unknown, with_options
from postroom.model.text import check_setting
from postroom.observer import Observer
from postroom.options import BusOptions
from postroom.outbox import Outbox, SyncOutbox
from postroom.record import Record, row_id, short_error
from postroom.registry import load_store
from postroom.settings import RelaySettings
from postroom.store import Store
from postroom.transactions.conflicts import is_passing
from postroom.transactions.queries import check_prefix


class Module:
    """A module: its tables, its outbox, and its handlers.

    outbox, sync_outbox   for the module's own transactions, in its own database
    handlers              the functions registered with `@module.on(type)`
    """

    def __init__(self, name: str, store: Store, **options: Unpack[ModuleOptions]) -> None:
        self.name = name
        self.store = store
        self.outbox = Outbox().within(store.tables)
        self.sync_outbox = SyncOutbox().within(store.tables)
        self.handlers = Handlers(name=name, **options)

    def on(self, type: str, *, name: str | None = None) -> Callable[[Function], Function]:  # noqa: A002
        """Register a function `(event, tx)` or `(event, tx, context)` for an event type."""
        return self.handlers.on(type, name=name)

    def __repr__(self) -> str:
        return f"Module({self.name!r})"


class Bus(Lifecycle[tuple[Relay, ...]]):
    """Modules, and the relays that deliver events between them.

    store       default URL for modules without a store: they share the database, each with its own
                tables
    settings    settings of the relays: `retry`, `lease_seconds`, `poll_seconds` …
    log         log warnings and errors

    A relay that crashes stops the bus: the other relays finish their events in flight, `is_running`
    becomes False, `on_crash` is called and `wait` raises the error. `start` restarts the bus.
    """

    _noun = "bus"

    def __init__(
        self,
        store: str | None = None,
        *,
        observers: Iterable[Observer] = (),
        log: bool = True,
        **settings: Unpack[BusOptions],
    ) -> None:
        refuse_unknown("bus setting", settings, BusOptions.__annotations__)
        with_options(RelaySettings(), settings, "bus setting")  # refused now, not at the start
        super().__init__(observers, log=log)
        self._store = store
        self._settings = settings
        self._modules: dict[str, Module] = {}
        self._relays: list[Relay] = []

    @property
    def modules(self) -> tuple[Module, ...]:
        return tuple(self._modules.values())

    def module(
        self,
        name: str,
        store: Store | str | None = None,
        *,
        prefix: str | None = None,
        **options: Unpack[ModuleOptions],
    ) -> Module:
        """Add a module; a later call with the name alone returns the same module.

        Its tables have the prefix `prefix`, by default `<name>_`. Options are those of Handlers.
        """
        if name in self._modules and store is None and prefix is None and not options:
            return self._modules[name]
        if name in self._modules:
            raise ConfigError(f"module {name!r} already exists; use another name")
        if self._relays:
            raise ConfigError("add modules before the bus is started")
        check_setting("module", name, MAX_STREAM_BYTES - len(INBOX_STREAM_PREFIX))
        where = store if store is not None else self._store
        if where is None:
            raise ConfigError(f"module {name!r} needs a store: Bus(url), or bus.module(…, store=…)")
        if isinstance(where, str):
            where = load_store(where, prefix=check_prefix(prefix or f"{name}_"))
        elif prefix is not None:
            raise ConfigError("prefix: set it on the store object, not on the module")
        made = self._modules[name] = Module(name, where, **options)
        return made

    # -- life ---------------------------------------------------------------------------------
    async def migrate(self) -> None:
        """Create or update the tables of all modules."""
        for module in self.modules:
            await module.store.migrate()

    async def drain(self) -> int:
        """Deliver and handle due events, and events that they cause, until none is left.

        For tests and scripts, while the bus does not run. Returns the number of handled events.
        """
        if self._relays:
            raise ConfigError("drain() cannot be called while the bus runs; stop it first")
        handled = 0
        # A relay opens the store that it serves; what it sends is looked up in the others.
        async with AsyncExitStack() as stack:
            for module in self.modules:
                stack.push_async_callback(close_shared, module.store)
                await open_shared(module.store)
            while True:
                moved = 0
                for relay in self._build():
                    done = (await relay.drain()).done
                    moved += done
                    handled += done if relay.settings.stream.startswith(INBOX_STREAM_PREFIX) else 0
                if not moved:
                    return handled

    async def delivered(
        self,
        ids: Iterable[str],
        *,
        timeout: Seconds | None = 30.0,  # noqa: ASYNC109 - see NotDeliveredError
        committed: bool = False,
    ) -> None:
        """Return when all modules have handled these events of any module's outbox.

        Events that their handlers add are not waited for. Otherwise like `Relay.delivered`; call it
        while the bus runs.
        """
        names = [ids] if isinstance(ids, str) else list(ids)
        loop = asyncio.get_running_loop()
        ends = None if timeout is None else loop.time() + to_seconds(timeout)
        stores = list({id(module.store): module.store for module in self.modules}.values())
        await until_done(_Together(stores), Watch(names), timeout, committed=committed)
        stored = [(m.store, row_id(m.name, name)) for m in self.modules for name in names]
        for store in stores:
            rest = None if ends is None else max(0.0, ends - loop.time())
            mine = Watch(row for where, row in stored if where is store)
            # A module stored the events before they were confirmed, or has no handler for them.
            await until_done(store, mine, rest, committed=True)

    @property
    def _title(self) -> str:
        return f"the bus of {', '.join(self._modules)}"

    @property
    def _fact_stream(self) -> str:
        return DEFAULT_STREAM

    async def _open(self) -> tuple[Relay, ...]:
        for relay in self._build():
            relay.on_crash = self._part_broke_down
            self._relays.append(relay)
            await relay.start()
        return tuple(self._relays)

    def _begin(self, context: tuple[Relay, ...]) -> None:
        """The relays have begun already."""

    async def _finish(self, context: tuple[Relay, ...]) -> None:
        await self._stop_relays(context)

    async def _close_opened(self) -> None:
        await self._stop_relays(self._relays)
        self._relays = []

    async def _stop_relays(self, relays: Sequence[Relay]) -> None:
        await self._unless_killed(_all(relay.stop() for relay in relays))
        if self._killed.is_set():
            await _all(relay.kill() for relay in relays)

    async def _stop_broken(self) -> None:
        await self._stop(self._killed)  # gracefully: the other relays are healthy

    def _build(self) -> list[Relay]:
        if not self._modules:
            raise ConfigError("the bus has no modules; add one with bus.module('orders')")
        outboxes = {id(module.store): module.store for module in self.modules}
        post = _Post(self.modules)
        relays = [self._relay(store, post) for store in outboxes.values()]
        for module in self.modules:
            stream = INBOX_STREAM_PREFIX + module.name
            relays.append(self._relay(module.store, StoredMessages(module.handlers), stream=stream))
        return relays

    def _relay(self, store: Store, broker: Any, **more: Any) -> Relay:
        return Relay(store, broker, observers=self._observers, log=False, **self._settings, **more)


class _Together:
    """The outboxes of several stores, to look up events by id."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self._stores = stores

    async def look_up(self, ids: Sequence[str]) -> dict[str, Standing]:
        found: dict[str, Standing] = {}
        for store in self._stores:
            found |= await store.look_up(ids)
        return found


class _Post(Broker):
    """The destination of every module's outbox: the backlogs of the modules with a handler."""

    capabilities = BrokerCapabilities()

    def __init__(self, modules: Sequence[Module]) -> None:
        self._boxes = [
            (
                one.handlers,
                DurableInbox(one.store, one.name, strict=one.handlers.strict is not None),
            )
            for one in modules
        ]

    async def open(self) -> None:
        """Nothing to open: the relays open the stores they serve."""

    async def close(self) -> None: ...

    async def health(self) -> None: ...

    async def publish(self, batch: Sequence[Record], reporter: Reporter) -> None:
        messages = [(record, _stored_message(record, reporter.outbox_id)) for record in batch]
        stops = _Stops()
        for handlers, backlog in self._boxes:
            wanted = [
                (record, stored)
                for record, kept in messages
                if stops.passes(record) and (stored := _wanted(kept, handlers))
            ]
            try:
                await _keep(backlog, wanted, stops)
            except Exception as error:  # stored by some modules: the batch is retried for the rest
                if not is_passing(error):
                    raise
                problem = f"module {backlog.consumer}: {short_error(error)}"
                for record in batch:
                    reporter.report(record, Outcome(Verdict.OUTAGE, problem))
                return
        texts: dict[str, str] = {}
        for record in batch:
            outcome = stops.outcome(record)
            if outcome is CONFIRMED and reporter.keeps_receipts:
                if (text := texts.get(record.type)) is None:
                    text = texts[record.type] = self._receipt(record.type)
                outcome = CONFIRMED._replace(receipt=text)
            reporter.report(record, outcome)

    def _receipt(self, type: str) -> str:  # noqa: A002
        names = [backlog.consumer for handlers, backlog in self._boxes if handlers.handles(type)]
        return receipts.make("modules", modules=names)

    async def publish_alone(self, record: Record, reporter: Reporter) -> None:
        await self.publish((record,), reporter)


_Kept = tuple[Incoming, Record]


class _Stops:
    """Keys stopped at an event that a module cannot store; later events of the key wait."""

    def __init__(self) -> None:
        self._at: dict[bytes, tuple[int, Outcome]] = {}

    def add(self, record: Record, outcome: Outcome) -> None:
        self._at[record.key_hash] = record.seq, outcome

    def passes(self, record: Record) -> bool:
        """Return whether the record precedes the event that stopped its key."""
        at = self._at.get(record.key_hash)
        return at is None or record.seq < at[0]

    def outcome(self, record: Record) -> Outcome:
        if self.passes(record):
            return CONFIRMED
        seq, outcome = self._at[record.key_hash]
        return outcome if record.seq == seq else UNSENT


def _wanted(stored: _Kept, handlers: Handlers) -> _Kept | None:
    """Return the form of an event that a module stores; None: not stored.

    Strict handlers wait for every number of a key: for an event without a handler they get a
    marker with its number, to be skipped.
    """
    message, record = stored
    if handlers.handles(record.type):
        return stored
    if handlers.strict is None or record.kseq is None:
        return None
    return message, record._replace(type=SKIPPED_TYPE)


async def _keep(
    backlog: DurableInbox, wanted: Sequence[tuple[Record, _Kept]], stops: _Stops
) -> None:
    """Store events for a module; an event that cannot be stored stops only its key."""
    if not wanted:
        return
    try:
        await backlog.keep([stored for _, stored in wanted])
    except Exception as error:
        if is_passing(error):
            raise
        if len(wanted) > 1:
            for one in wanted:
                if stops.passes(one[0]):
                    await _keep(backlog, [one], stops)
        else:
            problem = f"module {backlog.consumer} cannot store the event: {short_error(error)}"
            stops.add(wanted[0][0], Outcome(Verdict.FAILED, problem))


def _stored_message(record: Record, outbox_id: str) -> tuple[Incoming, Record]:
    message = to_message(record, outbox_id)
    return message, to_record(message)


async def _all(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*calls)
