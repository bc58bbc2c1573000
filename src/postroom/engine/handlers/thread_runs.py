"""Runs of sync handlers, in threads: the same steps as in `runs`.

A thread cannot be stopped: one past its time limit goes on, but can no longer commit.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

from postroom import transactions
from postroom.broker import CONFIRMED, Outcome, Verdict
from postroom.engine.handlers.commit_check import (
    is_outside_transaction,
    may_commit,
    outside_transaction_error,
)
from postroom.engine.handlers.high_water import Gate, admit
from postroom.engine.handlers.runs import (
    MAX_CONFLICTS,
    Handler,
    LateError,
    Phase,
    Run,
    SyncFactory,
    expired,
    note,
    pause,
)
from postroom.engine.handlers.threads import Hang, NoThreadError, Threads
from postroom.engine.handlers.undecodable import undecodable
from postroom.record import Record
from postroom.transaction import Acceptance, SyncTransaction
from postroom.transactions import steps


class Race:
    """A race between a handler's commit and its time limit: exactly one of them wins (H3)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._winner: str | None = None

    def claim_commit(self) -> bool:
        """Ask for permission to commit; from then on the limit can only wait for the result."""
        return self._win("commit")

    def call_time(self) -> bool:
        """End the run; from then on it can only roll back."""
        return self._win("limit")

    def _win(self, who: str) -> bool:
        with self._lock:
            if self._winner is None:
                self._winner = who
            return self._winner == who


async def run_sync(
    handler: Handler,
    record: Record,
    acceptance: Acceptance | Gate,
    factory: SyncFactory | None,
    *,
    limit_seconds: float,
    prefix: str,
    threads: Threads,
) -> Outcome:
    """Run a sync handler in a thread.

    A thread cannot be stopped: one past its time limit goes on, but can no longer commit.
    """
    asked = None if factory is None else acceptance
    for lost in range(MAX_CONFLICTS):
        run = Run()

        def work(tx: Any, run: Run = run) -> None:
            effect_sync(run, handler, record, asked, tx, prefix)
            look_back_sync(run)

        outcome = await run_in_thread(run, work, factory, limit_seconds, threads, lambda: record.id)
        if factory is None or not run.lost_to_another:
            break
        await asyncio.sleep(pause(lost))
    return outcome


async def run_in_thread(
    run: Run,
    work: Callable[[Any], None],
    factory: SyncFactory | None,
    limit_seconds: float,
    threads: Threads,
    in_hand: Callable[[], str],
) -> Outcome:
    """The same as `run_once`, in a thread; `in_hand` returns the event being handled."""
    race = Race()
    try:
        future = await threads.start(lambda: _work(run, work, factory, race), limit_seconds)
    except NoThreadError as error:
        return Outcome(Verdict.MISCONFIGURED, str(error))
    try:
        if not await _ended(future, limit_seconds):
            if race.call_time():
                _watch(run.phase, in_hand(), future, threads)
                return expired(run.phase, limit_seconds)
            if not await _ended(future, limit_seconds):
                _watch(Phase.COMMITTING, in_hand(), future, threads)
                return expired(Phase.COMMITTING, limit_seconds)
        return future.result()
    finally:
        race.call_time()  # if this task was cancelled; otherwise it has no effect


def _watch(phase: Phase, event: str, future: asyncio.Future[Outcome], threads: Threads) -> None:
    """Keep an event from being run again while its run is stuck; a connection has its own limit."""
    if phase is not Phase.OPENING:
        threads.watch(event, future, phase.value, is_running=phase is Phase.RUNNING)


def hanging(hang: Hang) -> Outcome:
    """Return the outcome of an event whose last run has not ended: it is not started again.

    If its handler is stuck, an attempt is spent, so that the event is eventually buried. If a
    statement of postroom's own is stuck, the outcome depends on the database.
    """
    verdict = Verdict.FAILED if hang.is_running else Verdict.MISCONFIGURED
    return Outcome(
        verdict,
        f"its last run has been stuck in its thread since {hang.since:%Y-%m-%d %H:%M:%S} UTC "
        f"({hang.doing}), so it is not started again; set a timeout for its calls",
    )


async def _ended(future: asyncio.Future[Outcome], limit_seconds: float) -> bool:
    done, _ = await asyncio.wait({future}, timeout=limit_seconds)
    return bool(done)


def _work(
    run: Run, work: Callable[[Any], None], factory: SyncFactory | None, race: Race
) -> Outcome:
    try:
        if factory is None:
            work(None)
            return CONFIRMED
        with factory() as tx:
            try:
                work(tx)
                if not race.claim_commit():
                    raise LateError
            except BaseException as error:
                run.failure = error
                raise
            run.phase = Phase.COMMITTING
        return run.outcome()
    except BaseException as error:  # nothing may escape into the thread's loop
        return run.outcome(error)


def effect_sync(
    run: Run,
    handler: Handler,
    record: Record,
    acceptance: Acceptance | Gate | None,
    tx: Any,
    prefix: str,
) -> None:
    """The same as `effect`, in a thread."""
    run.is_repeat = False
    if acceptance is not None:
        run.phase = Phase.ACCEPTING
        if run.adapter is None:
            run.adapter = transactions.resolve_sync(tx, prefix=prefix)
        adapter: SyncTransaction = run.adapter
        if isinstance(acceptance, Gate):
            run.is_repeat = not steps.run(admit(adapter, acceptance))
        else:
            run.is_repeat = not adapter.accept(acceptance)
        if not run.is_repeat:
            if not adapter.hold(run.proofs):
                look_back_sync(run)
            note(run, handler, acceptance)
    if not run.is_repeat:
        run.phase = Phase.RUNNING
        try:
            _refuse_awaitable(handler.call(record, tx))
        except Exception as error:
            if acceptance is not None and is_outside_transaction(run.adapter, error):
                found = run.adapter.standing(run.proofs)
                raise outside_transaction_error(found, run.names, error) from error
            if rejection := undecodable(record, error):
                raise rejection from error
            raise


def look_back_sync(run: Run) -> None:
    """The same as `look_back`, in a thread."""
    if run.proofs:
        run.committed_itself = not may_commit(run.adapter.standing(run.proofs), run.names)


def _refuse_awaitable(result: object) -> None:
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError("the handler returned an awaitable; declare it with `async def`")
