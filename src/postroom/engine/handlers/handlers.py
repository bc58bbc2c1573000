"""Functions in this process as a destination."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import chain
from typing import Any, Literal

from postroom.broker import (
    CONFIRMED,
    UNSENT,
    Broker,
    BrokerCapabilities,
    Outcome,
    Reporter,
    Verdict,
)
from postroom.engine.handlers.batch_runs import HELD, Job, run_together, run_together_in_thread
from postroom.engine.handlers.context import Context, SyncContext
from postroom.engine.handlers.high_water import Gate, Start, gate_of
from postroom.engine.handlers.inbox_proofs import NOT_THERE, Home, proof_of
from postroom.engine.handlers.key_batches import Key, KeyBatches, TransactionKind
from postroom.engine.handlers.limiter import SharedLimiter
from postroom.engine.handlers.names import UNNAMED, check_name, handler_of, name_in_relay, unbound
from postroom.engine.handlers.runs import (
    AsyncFactory,
    Handler,
    SyncFactory,
    hanging,
    run_async,
    run_sync,
    worst_of,
)
from postroom.engine.handlers.runtime import HandlerRuntime
from postroom.engine.handlers.signatures import Function
from postroom.engine.handlers.tables import Given, refuse_other_names, tables_for
from postroom.errors import ConfigError
from postroom.model.durations import Seconds, to_seconds
from postroom.outbox import Outbox, SyncOutbox
from postroom.record import Record, inbox_name, short_error
from postroom.store import Store, Tables
from postroom.transaction import Acceptance, Proof
from postroom.transactions.acceptances import Acceptances, forget_old

SKIPPED_TYPE = "postroom.skipped"


class Handlers(Broker):
    """Async and sync functions `(event, tx)`, by event type, as a destination for a relay.

    One with a third parameter is given a Context, through which the events it adds inherit the
    correlation id and the causation path.

    Each handler of an event runs in a transaction of its own, whose first statement is `accept`
    for (`name`/handler, event id): its effects in that database happen once, however often the
    event is tried (G6, H2). The inbox remembers a handler by its name; one that is renamed counts
    as new.

    name                of the service, or of this part of it: distinct among all that share the
                        inbox' table, and the same after each deployment. Left out, a consumer
                        gives them its own name and a relay `relay.<stream>`; with transactions of
                        your own a relay cannot tell, and asks for one
    transaction         a factory of async context managers that yield an open transaction, commit
                        on a clean exit and roll back on an exception; None: the store's own;
                        False: none at all, `tx` is None, nothing is accepted, and the handler
                        itself must bear repeats (S2.5)
    sync_transaction    the same for sync handlers, entered in their thread
    concurrency         so many events at a time, each key in its order. Where the store's own
                        transactions exclude each other (SQLite) it is one at a time
    batch               so many events of different keys share a transaction, if each has but one
                        handler and has not failed before; the time limit is for all. If anything
                        goes wrong it is rolled back, and each is handled by itself the next time:
                        what a handler does outside of its database may happen more than once. If
                        the process dies, each has spent an attempt. They are shared out among
                        `concurrency` handlers. Of a relay; a consumer has a `batch` of its own
    time_limit_seconds  after it the transaction is rolled back and the event has failed. A thread
                        cannot be stopped: it keeps its place until it ends, but cannot commit.
                        In SQLite's own transactions at most a third of the relay's lease
    prefix, schema      of the inbox' table and of the outbox that `context.add` writes to; those of
                        the store if left out. For transactions of your own that belong to
                        another database: the store's own have no others
    strict              for events that a strict outbox has numbered: the last number of each key is
                        kept instead of every id, so that a repeat is known however old it is.
                        "current": a key starts with the first event that arrives; "first": with
                        number 1. A gap blocks its key. One function for each type
    outbox              what `context.add` adds with; its tables are those of the inbox, unless it
                        names others
    sync_outbox         the same for sync handlers

    Async handlers share the relay's event loop: one that blocks it (a sync driver, time.sleep)
    stops everything, renewals included. Make it a sync function instead; those run in threads.
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
            raise ConfigError(f"handlers: strict is 'current', 'first' or None, not {strict!r}")
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
        """Register the function for all types that have none of their own."""
        if self._default:
            raise ConfigError(f"there is already a default handler: {self._default[0].name!r}")
        self._default.append(handler_of(function, None, self.name))
        return function

    def handles(self, type: str) -> bool:  # noqa: A002
        """Say whether an event of this type has a handler, or needs none."""
        return bool(self._by_type.get(type) or self._default) or type == SKIPPED_TYPE

    @property
    def own_name(self) -> str | None:
        """The name that they were given, if any."""
        return self._named

    @property
    def places(self) -> int:
        """How many events can be handled at a time."""
        return self.concurrency if self._turn is None else 1

    @property
    def types(self) -> frozenset[str]:
        """The event types that have handlers of their own."""
        return frozenset(self._by_type)

    def bind(
        self,
        store: Store,
        lease_seconds: float = math.inf,
        *,
        name: str | None = None,
        stream: str | None = None,
    ) -> Handlers:
        """Return these handlers with the store's transactions, and a name, where none were given.

        The first store is bound to this object itself; for a second one, while the first is in
        use, it is a twin that shares functions, threads and limits. Where a handler's open
        transaction keeps everybody else from writing, the relay's renewals included, its time
        limit is cut to a third of the lease (H4). `name` is the consumer's, `stream` the relay's.
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
        bound._store, bound.name, bound._kept_by = store, chosen, name or chosen
        bound._set_scopes(store.tables)
        bound._home = Home()
        one_writer = not store.capabilities.concurrent_writers
        uses_it = self._transaction is None or self._sync_transaction is None
        alone = one_writer and uses_it
        bound._turn = SharedLimiter(1) if alone else None
        bound._limit = min(self.time_limit_seconds, lease_seconds / 3 if alone else math.inf)
        return bound

    # -- the broker port ----------------------------------------------------------------------
    @property
    def capabilities(self) -> BrokerCapabilities:
        return BrokerCapabilities(marks_start=True, keeps_inbox=True)

    async def open(self) -> None:
        self._runtime.enter()
        self._closed = False

    async def close(self) -> None:
        """Let go of the threads; waits for no handler."""
        self._runtime.close()
        self._closed = True

    async def health(self) -> None:
        """Return: functions in this process are always there."""

    async def publish(self, batch: Sequence[Record], reporter: Reporter) -> None:
        """Run the handlers of a batch. After an outage nothing further of it is begun."""
        self._runtime.enter()
        key_batches = KeyBatches(batch, self._kind_of, self.batch, self.places)

        async def work() -> None:
            while keys := key_batches.take():
                await self._publish_heads(keys, key_batches, reporter)

        async with asyncio.TaskGroup() as group:
            for _ in range(key_batches.workers):
                group.create_task(work())

    async def publish_alone(self, record: Record, reporter: Reporter) -> None:
        """Handle one suspect while no other handler of this object runs."""
        self._runtime.enter()
        if record.id in self._runtime.threads.hanging:  # it is not run: nobody has to stop for it
            reporter.report(record, await self._handle(record, reporter))
            return
        async with self._runtime.limiter.alone():
            reporter.report(
                record, await self._proved(record, await self._handle(record, reporter))
            )

    async def handle(self, record: Record, reporter: Reporter) -> Outcome:
        """Handle one event by itself, beside others; the caller keeps the order of its key."""
        self._runtime.enter()
        async with self._runtime.limiter.shared():
            return await self._handle(record, reporter)

    def transaction_kind(self, type: str) -> TransactionKind | None:  # noqa: A002
        """Return with whom an event can share a transaction; None: it needs its own.

        An event has company if it has one handler and that one has transactions.
        """
        handlers = self._by_type.get(type) or (() if type == SKIPPED_TYPE else self._default)
        if len(handlers) != 1 or self.strict or not self.name:
            return None
        is_async = handlers[0].is_async
        if not (self._factory() if is_async else self._sync_factory()):
            return None
        return "async" if is_async else "sync"

    async def handle_together(self, records: Sequence[Record]) -> Sequence[Outcome] | None:
        """Handle messages of different keys in one transaction, all of them of one company.

        None: it was rolled back, at no cost to anybody; each is to be handled by itself.
        """
        self._runtime.enter()
        async with self._runtime.limiter.shared(), self._turn_of_store():
            return await self._run_together(records, lambda _: True)

    async def _publish_heads(
        self, keys: Sequence[Key], key_batches: KeyBatches, reporter: Reporter
    ) -> None:
        """Handle the first event of each key; those that are confirmed go on."""
        records = [key.popleft() for key in keys]
        async with self._runtime.limiter.shared():
            if key_batches.outage:
                outcomes = [UNSENT] * len(records)
            elif len(records) > 1:
                outcomes = await self._handle_several(records, reporter)
            else:
                self._runtime.run_alone.pop(records[0].id, None)
                outcomes = [await self._handle(records[0], reporter)]
            pairs = zip(records, outcomes, strict=True)
            outcomes = [await self._proved(record, outcome) for record, outcome in pairs]
            for record, outcome in zip(records, outcomes, strict=True):
                reporter.report(record, outcome)
        for key, outcome in zip(keys, outcomes, strict=True):
            if outcome.verdict is Verdict.OUTAGE:
                key_batches.outage = True
            if outcome.verdict is not Verdict.CONFIRMED:
                for follower in key:
                    reporter.report(follower, UNSENT)
            elif key:
                key_batches.put_back(key)

    # -- several events -----------------------------------------------------------------------
    def _kind_of(self, record: Record) -> TransactionKind | None:
        """What has failed before, or was in company that failed, is handled by itself."""
        if self.batch == 1 or record.attempts or record.id in self._runtime.run_alone:
            return None
        return self.transaction_kind(record.type)

    async def _handle_several(self, records: Sequence[Record], reporter: Reporter) -> list[Outcome]:
        """Handle events of one company together; if that goes wrong, give all of them back.

        They are read again, and handled by themselves then, each with an attempt of its own.
        """
        async with self._turn_of_store():
            refusals = await asyncio.gather(*(self._begin(record, reporter) for record in records))
            begun = [r for r, refusal in zip(records, refusals, strict=True) if refusal is None]
            outcomes = await self._run_together(begun, reporter.may_go_on) if begun else []
        if outcomes is None:
            self._runtime.part(record.id for record in begun)
            outcomes = [UNSENT] * len(begun)
        told = iter(outcomes)
        return [refusal or next(told) for refusal in refusals]

    async def _run_together(
        self, records: Sequence[Record], may_go_on: Callable[[Record], bool]
    ) -> Sequence[Outcome] | None:
        transaction_kind = self.transaction_kind(records[0].type)
        if transaction_kind is None or any(
            self.transaction_kind(record.type) != transaction_kind for record in records
        ):
            return None  # another handler was registered meanwhile
        jobs = [self._job(record) for record in records]
        limit = self._limit
        if transaction_kind == "async" and (factory := self._factory()):
            prefix, refused = self._scope.prefix, self._runtime.refused
            return await run_together(jobs, factory, limit, prefix, may_go_on, refused)
        if transaction_kind == "sync" and (sync_factory := self._sync_factory()):
            runtime, prefix = self._runtime, self._sync_scope.prefix
            return await run_together_in_thread(
                jobs,
                sync_factory,
                limit,
                prefix,
                may_go_on,
                runtime.threads,
                runtime.held,
                runtime.refused,
            )
        return None

    # -- one event ----------------------------------------------------------------------------
    async def _handle(self, record: Record, reporter: Reporter) -> Outcome:
        handlers = self._handlers_of(record)
        if not handlers and record.type == SKIPPED_TYPE:
            return CONFIRMED  # the marker of a skipped strict event: nobody wants to know
        if not handlers:
            return Outcome(
                Verdict.MISCONFIGURED,
                f"no handler for type {record.type!r}; "
                f"register one with @handlers.on({record.type!r})",
            )
        if record.id in self._runtime.held:
            return HELD
        if refused := self._runtime.refused.pop(record.id, None):
            return refused
        async with self._turn_of_store():
            if refusal := await self._begin(record, reporter):
                return refusal
            if hang := self._runtime.threads.hanging.get(record.id):
                return hanging(hang)
            outcomes = [(handler, await self._run(handler, record)) for handler in handlers]
        for handler, outcome in outcomes:
            self._runtime.witness(handler.name, record.id, outcome)
        return worst_of(outcomes)

    async def _proved(self, record: Record, outcome: Outcome) -> Outcome:
        """Add to a confirmed outcome what its transactions have written, if a settle can see it."""
        if outcome.verdict is not Verdict.CONFIRMED or not self.name:
            return outcome
        proofs: list[Proof] = []
        for handler in self._handlers_of(record):
            own = self._transaction if handler.is_async else self._sync_transaction
            if own is False:
                continue
            proof = proof_of(self._acceptance_or_gate(handler, record))
            if own is None or await self._home.knows(handler.is_async, proof, self._store):
                proofs.append(proof)
            elif not self._home.is_known(handler.is_async) and await self._is_gone(handler, proof):
                return NOT_THERE
        return outcome._replace(proofs=tuple(proofs)) if proofs else outcome

    async def _is_gone(self, handler: Handler, proof: Proof) -> bool:
        """Say whether the transactions of a handler do not find what one of them has committed."""
        if self._store is None or not isinstance(proof, Acceptance):
            return False
        factory, sync_factory = self._factory(), self._sync_factory()
        try:
            if handler.is_async and factory:
                rows = Acceptances.in_transactions(factory, self._scope.prefix)
            elif not handler.is_async and sync_factory:
                rows = Acceptances.in_threads(sync_factory, self._sync_scope.prefix)
            else:
                return False
            return not await rows.count_done([proof])
        except Exception:  # it is the user's, and cannot be asked now
            return False

    async def _begin(self, record: Record, reporter: Reporter) -> Outcome | None:
        """Have the attempt counted (H1); returns why the handler must not run, if it must not."""
        try:
            return None if await reporter.begin(record) else UNSENT
        except Exception as error:  # whether it was counted or not: nothing has run
            return Outcome(Verdict.UNSENT, short_error(error))

    def _turn_of_store(self) -> AbstractAsyncContextManager[None]:
        return self._turn.shared() if self._turn is not None else nullcontext()

    async def _run(self, handler: Handler, record: Record) -> Outcome:
        handler = self._ready(handler)
        acceptance = self._acceptance_or_gate(handler, record)
        if handler.is_async:
            factory = self._factory()
            if factory is None:
                return unbound("transaction")
            if factory and not self.name:
                return UNNAMED
            return await run_async(
                handler,
                record,
                acceptance,
                factory or None,
                limit_seconds=self._limit,
                prefix=self._scope.prefix,
            )
        sync_factory = self._sync_factory()
        if sync_factory is None:
            return unbound("sync_transaction")
        if sync_factory and not self.name:
            return UNNAMED
        return await run_sync(
            handler,
            record,
            acceptance,
            sync_factory or None,
            limit_seconds=self._limit,
            prefix=self._sync_scope.prefix,
            threads=self._runtime.threads,
        )

    async def forget_accepted(self, older_than_seconds: float) -> int:
        """Forget what these handlers did longer ago than that; returns how many rows went.

        Rows of events that are unfinished or dead in the store stay. An error with one handler's
        rows is raised after the others have had their turn.
        """
        forgotten, failed = 0, None
        if self._store is None or not self.name:
            return forgotten
        for handler in chain(self._default, *self._by_type.values()):
            try:
                async with self._turn_of_store():
                    forgotten += await self._forget(handler, older_than_seconds, self._store)
            except Exception as error:  # also the driver's own
                failed = failed or error
        if failed is not None:
            raise failed
        return forgotten

    async def _forget(self, handler: Handler, older_than_seconds: float, store: Store) -> int:
        """Forget in the database that the handler's transactions are in."""
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

    def _factory(self) -> AsyncFactory | Literal[False] | None:
        if self._transaction is None and self._store is not None:
            return self._store.transaction
        return self._transaction

    def _sync_factory(self) -> SyncFactory | Literal[False] | None:
        if self._sync_transaction is None and self._store is not None:
            return self._store.sync_transaction
        return self._sync_transaction

    def _job(self, record: Record) -> Job:
        (handler,) = self._by_type.get(record.type) or self._default
        return Job(self._ready(handler), record, self._acceptance(handler, record))

    def _handlers_of(self, record: Record) -> Sequence[Handler]:
        if record.type == SKIPPED_TYPE and record.type not in self._by_type:
            return (_STEP_OVER,) if self.strict else ()
        return self._by_type.get(record.type) or self._default

    def _acceptance_or_gate(self, handler: Handler, record: Record) -> Acceptance | Gate:
        gate = gate_of(self.name, record, self.strict) if self.strict else None
        return gate or self._acceptance(handler, record)

    def _acceptance(self, handler: Handler, record: Record) -> Acceptance:
        name = inbox_name(self.name, handler.name)
        return Acceptance(name, record.id, record.type, record.correlation_id)

    def _set_scopes(self, tables: Tables) -> None:
        own, own_sync = self._transaction is not None, self._sync_transaction is not None
        self._scope = tables_for(self._given, self._outbox, tables, own_factory=own)
        self._sync_scope = tables_for(self._given, self._sync_outbox, tables, own_factory=own_sync)

    def _ready(self, handler: Handler) -> Handler:
        """Return what is called: with a context, if it takes one, that adds to these tables."""
        if not handler.takes_context:
            return handler
        call, outbox, sync_outbox = handler.call, self._scope.outbox, self._sync_scope.outbox
        module = self.name or "handlers"

        def with_context(record: Record, tx: Any) -> Any:
            if handler.is_async:
                return call(record, tx, Context(module, record, tx, outbox))
            return call(record, tx, SyncContext(module, record, tx, sync_outbox))

        return Handler(handler.name, with_context, handler.is_async)


async def _nothing(event: Record, tx: Any) -> None:
    pass


_STEP_OVER = Handler("skipped", _nothing, is_async=True)
