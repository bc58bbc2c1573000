"""From an event to its handlers: which handlers run, in which transaction, with which outcome.

`Handlers` holds the functions and settings; here a relay's batch or a consumer's message is handled
by them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Literal

from postroom.broker import CONFIRMED, UNSENT, Broker, Outcome, Reporter, Verdict
from postroom.engine.handlers.batch_runs import HELD, Job, run_together, run_together_in_thread
from postroom.engine.handlers.context import Context, SyncContext
from postroom.engine.handlers.high_water import Gate, Start, gate_of
from postroom.engine.handlers.inbox_proofs import NOT_THERE, Home, proof_of
from postroom.engine.handlers.key_batches import Key, KeyBatches, TransactionKind
from postroom.engine.handlers.limiter import SharedLimiter
from postroom.engine.handlers.runs import (
    AsyncFactory,
    Handler,
    SyncFactory,
    run_async,
    worst_of,
)
from postroom.engine.handlers.runtime import HandlerRuntime
from postroom.engine.handlers.tables import HandlerTables
from postroom.engine.handlers.thread_runs import hanging, run_sync
from postroom.model import receipts
from postroom.outbox import Outbox, SyncOutbox
from postroom.record import Record, inbox_name, short_error
from postroom.store import Store
from postroom.transaction import Acceptance, Proof
from postroom.transactions.acceptances import Acceptances

SKIPPED_TYPE = "postroom.skipped"
_UNNAMED = Outcome(
    Verdict.MISCONFIGURED,
    "handlers need a name, which identifies their inbox rows: Handlers(name='payments', …)",
    local=True,
)


class Dispatch(Broker):
    """Runs the handlers of a relay's batch, of one event, or of several in one transaction."""

    name: str
    strict: Start | None
    concurrency: int
    batch: int
    _by_type: dict[str, list[Handler]]
    _default: list[Handler]
    _transaction: AsyncFactory | Literal[False] | None
    _sync_transaction: SyncFactory | Literal[False] | None
    _store: Store | None
    _turn: SharedLimiter | None
    _limit: float
    _home: Home
    _runtime: HandlerRuntime
    _scope: HandlerTables[Outbox]
    _sync_scope: HandlerTables[SyncOutbox]

    @property
    def places(self) -> int:
        """The number of events that can be handled at a time."""
        return self.concurrency if self._turn is None else 1

    async def publish(self, batch: Sequence[Record], reporter: Reporter) -> None:
        """Run the handlers of a batch. After an outage no further handler starts."""
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
        if record.id in self._runtime.threads.hanging:  # it does not run again: no need to wait
            reporter.report(record, await self._handle(record, reporter))
            return
        async with self._runtime.limiter.alone():
            outcome = await self._proved(record, await self._handle(record, reporter))
            reporter.report(record, self._receipted(record, outcome, reporter))

    async def handle(self, record: Record, reporter: Reporter) -> Outcome:
        """Handle one event individually; the caller keeps the order of its key."""
        self._runtime.enter()
        async with self._runtime.limiter.shared():
            return await self._handle(record, reporter)

    def transaction_kind(self, type: str) -> TransactionKind | None:  # noqa: A002
        """Return the kind of transaction that an event of this type can share; None: it cannot.

        It can if it has exactly one handler, and that handler has transactions.
        """
        handlers = self._by_type.get(type) or (() if type == SKIPPED_TYPE else self._default)
        if len(handlers) != 1 or self.strict or not self.name:
            return None
        is_async = handlers[0].is_async
        if not (self._factory() if is_async else self._sync_factory()):
            return None
        return "async" if is_async else "sync"

    async def handle_together(self, records: Sequence[Record]) -> Sequence[Outcome] | None:
        """Handle messages of different keys, of one kind, in one transaction.

        None: it was rolled back, no attempt was used, and each is to be handled individually.
        """
        self._runtime.enter()
        async with self._runtime.limiter.shared(), self._turn_of_store():
            return await self._run_together(records, lambda _: True)

    async def _publish_heads(
        self, keys: Sequence[Key], key_batches: KeyBatches, reporter: Reporter
    ) -> None:
        """Handle the first event of each key; keys whose event is confirmed continue."""
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
                reporter.report(record, self._receipted(record, outcome, reporter))
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
        """Events that failed before, or whose batch failed, are handled individually."""
        if self.batch == 1 or record.attempts or record.id in self._runtime.run_alone:
            return None
        return self.transaction_kind(record.type)

    async def _handle_several(self, records: Sequence[Record], reporter: Reporter) -> list[Outcome]:
        """Handle events in one transaction; if it fails, give all of them back.

        They are read again, and each is handled individually, with its own attempt.
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
            return CONFIRMED  # the marker of a skipped strict event, without a handler
        if not handlers:
            return Outcome(
                Verdict.MISCONFIGURED,
                f"no handler for type {record.type!r}; "
                f"register one with @handlers.on({record.type!r})",
                local=True,
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
        """Add to a confirmed outcome the inbox rows that its settle can check."""
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

    def _receipted(self, record: Record, outcome: Outcome, reporter: Reporter) -> Outcome:
        """Add to a confirmed outcome the names of the handlers, as in their inbox rows."""
        if outcome.verdict is not Verdict.CONFIRMED or not reporter.keeps_receipts:
            return outcome
        names = [
            self._acceptance(handler, record).consumer for handler in self._handlers_of(record)
        ]
        return outcome._replace(receipt=receipts.make("handlers", handlers=names))

    async def _is_gone(self, handler: Handler, proof: Proof) -> bool:
        """Say whether the inbox row that a handler committed is missing in its database."""
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
        except Exception:  # the user's factory failed: unknown
            return False

    async def _begin(self, record: Record, reporter: Reporter) -> Outcome | None:
        """Count the attempt (H1); returns an outcome if the handler must not run."""
        try:
            return None if await reporter.begin(record) else UNSENT
        except Exception as error:  # counted or not: nothing has run
            return Outcome(Verdict.UNSENT, short_error(error))

    def _turn_of_store(self) -> AbstractAsyncContextManager[None]:
        return self._turn.shared() if self._turn is not None else nullcontext()

    async def _run(self, handler: Handler, record: Record) -> Outcome:
        handler = self._ready(handler)
        acceptance = self._acceptance_or_gate(handler, record)
        if handler.is_async:
            factory = self._factory()
            if factory is None:
                return _unbound("transaction")
            if factory and not self.name:
                return _UNNAMED
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
            return _unbound("sync_transaction")
        if sync_factory and not self.name:
            return _UNNAMED
        return await run_sync(
            handler,
            record,
            acceptance,
            sync_factory or None,
            limit_seconds=self._limit,
            prefix=self._sync_scope.prefix,
            threads=self._runtime.threads,
        )

    # -- handlers and transactions of an event --------------------------------------------------
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

    def _ready(self, handler: Handler) -> Handler:
        """Return the handler, called with a context if it takes one."""
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


def _unbound(option: str) -> Outcome:
    """Return the outcome for handlers without transactions."""
    return Outcome(
        Verdict.MISCONFIGURED,
        f"handlers have no transactions to run in: pass {option}=… (or False for none), "
        "or let a relay bind its store",
        local=True,
    )
