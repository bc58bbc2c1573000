"""Handlers: functions of this process as a destination."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import chain
from typing import Literal

from postroom.broker import (
    BrokerCapabilities,
)
from postroom.engine.handlers.dispatch import SKIPPED_TYPE, Dispatch
from postroom.engine.handlers.high_water import Start
from postroom.engine.handlers.inbox_proofs import Home
from postroom.engine.handlers.limiter import SharedLimiter
from postroom.engine.handlers.names import check_name, name_in_relay
from postroom.engine.handlers.runs import (
    AsyncFactory,
    Handler,
    SyncFactory,
)
from postroom.engine.handlers.runtime import HandlerRuntime
from postroom.engine.handlers.signatures import Function, handler_of
from postroom.engine.handlers.tables import Given, refuse_other_names, tables_for
from postroom.errors import ConfigError
from postroom.model.durations import Seconds, to_seconds
from postroom.outbox import Outbox, SyncOutbox
from postroom.record import inbox_name
from postroom.store import Store, Tables
from postroom.transactions.acceptances import Acceptances, forget_old


class Handlers(Dispatch):
    """Async and sync functions `(event, tx)`, by event type, as a destination for a relay.

    A function with a third parameter gets a Context; events that are added through it inherit the
    correlation id and the causation path.

    Each handler of an event runs in its own transaction, whose first statement is `accept` for
    (`name`/handler, event id): its effects in that database happen once, however often the event
    is handled (G6, H2). The inbox identifies a handler by its name; a renamed handler counts as
    new.

    name                of the service, or of this part of it: unique among all that share the
                        inbox table, and the same after each deployment. Default: the name of the
                        consumer, or `relay.<stream>` in a relay. A relay with your own
                        transactions needs a name
    transaction         a factory of async context managers that yield an open transaction, commit
                        on a clean exit and roll back on an exception. None: the store's own.
                        False: no transaction; `tx` is None, nothing is accepted, and the handler
                        must be idempotent
    sync_transaction    the same for sync handlers; used in their thread
    concurrency         maximum number of events handled at a time, each key in its order; 1 where
                        the store's own transactions exclude each other (SQLite)
    batch               maximum number of events of different keys that share a transaction. An
                        event takes part if it has one handler and has not failed before. The time
                        limit is for the whole batch. If one fails, the batch is rolled back and
                        each event is handled individually: effects outside of the database may
                        happen more than once. If the process dies, each event has used an attempt.
                        For relays; a consumer has its own `batch` setting
    time_limit_seconds  after it the transaction is rolled back and the event has failed. A thread
                        cannot be stopped: it occupies its place until it ends, but cannot commit.
                        In SQLite's own transactions at most a third of the relay's lease
    prefix, schema      of the inbox table and of the outbox that `context.add` writes to. Default:
                        the store's. Only for your own transactions in another database
    strict              for events that a strict outbox has numbered: the inbox keeps the last
                        number of each key instead of every id, and recognizes a repeat at any age.
                        "current": a key starts with the first event that arrives; "first": with
                        number 1. A gap blocks its key. One function for each type
    outbox              used by `context.add`. Its tables are beside the inbox, unless it names
                        others
    sync_outbox         the same for sync handlers

    Async handlers share the relay's event loop: a handler that blocks it (a sync driver,
    time.sleep) stops everything, lease renewals included. Use a sync function for such code; it
    runs in a thread.
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        transaction: AsyncFactory | Literal[False] | None = None,
        sync_transaction: SyncFactory | Literal[False] | None = None,
        concurrency: int = 10,
        batch: int = 1,
        time_limit_seconds: Seconds = 30.0,
        prefix: str | None = None,
        schema: str | None = None,
        strict: Start | None = None,
        outbox: Outbox | None = None,
        sync_outbox: SyncOutbox | None = None,
    ) -> None:
        if concurrency < 1:
            raise ConfigError(f"handlers: concurrency must be 1 or more, not {concurrency}")
        if batch < 1:
            raise ConfigError(f"handlers: batch must be 1 or more, not {batch}")
        time_limit_seconds = to_seconds(time_limit_seconds)
        if not 0 < time_limit_seconds < float("inf"):
            raise ConfigError(
                f"handlers: time_limit_seconds must be more than 0, not {time_limit_seconds}"
            )
        if name is not None:
            check_name("the name of handlers", name)
        self._named = name
        self.name = self._kept_by = name or ""
        self.concurrency = concurrency
        self.batch = batch
        self.time_limit_seconds = time_limit_seconds
        self._transaction = transaction
        self._sync_transaction = sync_transaction
        if strict not in (None, "current", "first"):
            raise ConfigError(
                f"handlers: strict must be 'current', 'first' or None, not {strict!r}"
            )
        self.strict = strict
        self._given = Given(prefix, schema)
        self._outbox = outbox or Outbox()
        self._sync_outbox = sync_outbox or SyncOutbox()
        self._set_scopes(self._given.over(Tables()))
        self._by_type: dict[str, list[Handler]] = {}
        self._default: list[Handler] = []
        self._runtime = HandlerRuntime(concurrency, f"postroom-{name or 'handlers'}")
        self._store: Store | None = None
        self._turn: SharedLimiter | None = None
        self._limit = time_limit_seconds
        self._home = Home()
        self._closed = False

    # -- registration -------------------------------------------------------------------------
    def on(self, type: str, *, name: str | None = None) -> Callable[[Function], Function]:  # noqa: A002
        """Register a function for an event type; several may share a type under distinct names."""
        if callable(type):
            raise ConfigError('use it with the event type: @handlers.on("order.created")')
        check_name("a handler's event type", type)

        def register(function: Function) -> Function:
            handler = handler_of(function, name, self.name)
            others = self._by_type.setdefault(type, [])
            if others and self.strict:
                raise ConfigError(
                    f"{type!r} already has a handler, and strict handlers allow one per type"
                )
            if any(other.name == handler.name for other in others):
                raise ConfigError(
                    f"{type!r} already has a handler named {handler.name!r}; its inbox rows use "
                    "that name, so give this one another: @handlers.on(…, name=…)"
                )
            others.append(handler)
            return function

        return register

    def default(self, function: Function) -> Function:
        """Register the function for all types without a handler."""
        if self._default:
            raise ConfigError(f"there is already a default handler: {self._default[0].name!r}")
        self._default.append(handler_of(function, None, self.name))
        return function

    def handles(self, type: str) -> bool:  # noqa: A002
        """Return whether an event of this type has a handler, or needs none."""
        return bool(self._by_type.get(type) or self._default) or type == SKIPPED_TYPE

    def functions(self) -> list[str]:
        """Return a line for each function: event type, name in the inbox, and where it is."""
        by_type = {"": self._default, **self._by_type}
        return [
            f"{kind} {each.name} {getattr(each.call, '__module__', '')} "
            f"{getattr(each.call, '__qualname__', '')}"
            for kind in by_type
            for each in by_type[kind]
        ]

    @property
    def own_name(self) -> str | None:
        """The name that was given, if any."""
        return self._named

    @property
    def types(self) -> frozenset[str]:
        """The event types with a handler, the default handler aside."""
        return frozenset(self._by_type)

    def bind(
        self,
        store: Store,
        lease_seconds: float = math.inf,
        *,
        name: str | None = None,
        stream: str | None = None,
    ) -> Handlers:
        """Return these handlers with the store's transactions, and a name, unless they were given.

        The first store is bound to this object; a second one, while the first is in use, to a copy
        that shares functions, threads and limits. Where a handler's open transaction blocks all
        other writers, lease renewals included, its time limit is cut to a third of the lease (H4).
        `name` is the consumer's, `stream` the relay's.
        """
        own = bool(self._transaction or self._sync_transaction)
        chosen = self._named or name or name_in_relay(stream, own_factory=own) or self.name
        if self._store is store and (self.name, self._kept_by) == (chosen, name or chosen):
            return self
        for handler in chain(self._default, *self._by_type.values()):
            check_name("a handler's name", inbox_name(chosen, handler.name))
        bound = self if self._store is None or self._closed else copy.copy(self)
        if self._transaction is None and self._sync_transaction is None:
            refuse_other_names(self._given, store.tables)
        bound.name = chosen
        Handlers._attach(bound, store, lease_seconds, kept_by=name or chosen)
        return bound

    def _attach(self, store: Store, lease_seconds: float, *, kept_by: str) -> None:
        self._store, self._kept_by = store, kept_by
        self._set_scopes(store.tables)
        self._home = Home()
        one_writer = not store.capabilities.concurrent_writers
        uses_it = self._transaction is None or self._sync_transaction is None
        alone = one_writer and uses_it
        self._turn = SharedLimiter(1) if alone else None
        self._limit = min(self.time_limit_seconds, lease_seconds / 3 if alone else math.inf)

    # -- the broker port ----------------------------------------------------------------------
    @property
    def capabilities(self) -> BrokerCapabilities:
        return BrokerCapabilities(marks_start=True, keeps_inbox=True)

    async def open(self) -> None:
        self._runtime.enter()
        self._closed = False

    async def close(self) -> None:
        """Release the threads, without waiting for handlers."""
        self._runtime.close()
        self._closed = True

    async def health(self) -> None:
        """Return: functions in this process are always available."""

    async def forget_accepted(self, older_than_seconds: float) -> int:
        """Delete inbox rows of these handlers that are older than that; returns their number.

        Rows of events that are unfinished or dead in the store stay. An error with the rows of one
        handler is raised after those of the others were deleted.
        """
        forgotten, failed = 0, None
        if self._store is None or not self.name:
            return forgotten
        for handler in chain(self._default, *self._by_type.values()):
            try:
                async with self._turn_of_store():
                    forgotten += await self._forget(handler, older_than_seconds, self._store)
            except Exception as error:  # also the driver's own errors
                failed = failed or error
        if failed is not None:
            raise failed
        return forgotten

    async def _forget(self, handler: Handler, older_than_seconds: float, store: Store) -> int:
        """Delete inbox rows in the database of the handler's transactions."""
        name, kept_by = inbox_name(self.name, handler.name), [self._kept_by]
        if handler.is_async and self._transaction:
            own = Acceptances.in_transactions(self._transaction, self._scope.prefix)
        elif not handler.is_async and self._sync_transaction:
            own = Acceptances.in_threads(self._sync_transaction, self._sync_scope.prefix)
        elif (self._transaction if handler.is_async else self._sync_transaction) is False:
            return 0
        else:
            return await store.forget_accepted(name, older_than_seconds, kept_by)
        return await forget_old(own, name, older_than_seconds, store, kept_by)

    def _set_scopes(self, tables: Tables) -> None:
        own, own_sync = self._transaction is not None, self._sync_transaction is not None
        self._scope = tables_for(self._given, self._outbox, tables, own_factory=own)
        self._sync_scope = tables_for(self._given, self._sync_outbox, tables, own_factory=own_sync)
