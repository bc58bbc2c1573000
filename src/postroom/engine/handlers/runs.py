"""One handler, one event: open a transaction, `accept`, run the handler, check, commit.

The phase of a failure decides the outcome. Before the handler starts it is not the event's fault
(OUTAGE, or MISCONFIGURED if the transaction is of the wrong kind). While the handler runs it is
(FAILED, REJECTED). At the commit the outcome is UNKNOWN: if the effect happened, `accept` keeps the
next attempt from repeating it. An `accept` that does not return waits for the lock of another run
of the same event, here or in another process: MISCONFIGURED, which spends no attempt, raises an
alarm and does not hold up other events.

When the handler has returned, and before the commit, postroom checks that the row of `accept` is
still in the transaction (see `commit_check`).

A transaction that lost against another one (a deadlock, a write conflict, a serialization failure)
is repeated a few times, without an attempt (I2).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, assert_never

from postroom import transactions
from postroom.broker import CONFIRMED, REPEAT, Outcome, Verdict
from postroom.engine.handlers.commit_check import (
    AFTERWARDS,
    OutsideTransactionError,
    is_outside_transaction,
    may_commit,
    outside_transaction_error,
)
from postroom.engine.handlers.high_water import Gate, admit
from postroom.engine.handlers.inbox_proofs import proof_of
from postroom.engine.handlers.undecodable import undecodable
from postroom.errors import (
    CausationError,
    Reject,
    Retry,
    TransactionEndedError,
    TransactionError,
)
from postroom.model.history import last_frames
from postroom.record import Record, short_error
from postroom.transaction import Acceptance, AsyncTransaction, Proof
from postroom.transactions import steps
from postroom.transactions.conflicts import has_no_room, is_conflict, refuses_values

AsyncFactory = Callable[[], AbstractAsyncContextManager[Any]]
SyncFactory = Callable[[], AbstractContextManager[Any]]
MAX_CONFLICTS = 5  # consecutive runs that may be lost to conflicts

# An event with several handlers gets the worst of their outcomes. Outcomes that spend no attempt
# come first: an event is not charged, and never buried, while one of its handlers could not run.
_WORST_FIRST = (
    Verdict.OUTAGE,
    Verdict.MISCONFIGURED,
    Verdict.UNKNOWN,
    Verdict.FAILED,
    Verdict.REJECTED,
)


_WITH_TRACEBACK = (Verdict.FAILED, Verdict.REJECTED, Verdict.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered function `(event, tx)`, and its name in the inbox."""

    name: str
    call: Callable[..., Any]
    is_async: bool
    takes_context: bool = False


class Phase(Enum):
    """The progress of a run."""

    OPENING = "opening the transaction"
    ACCEPTING = "accepting the event"
    RUNNING = "running the handler"
    COMMITTING = "committing"


class LateError(Exception):
    """The time limit expired before the commit: roll back."""


class Run:
    """The facts of one run, updated while it goes on."""

    __slots__ = (
        "adapter",
        "committed_itself",
        "failure",
        "is_repeat",
        "lost_to_another",
        "names",
        "phase",
        "proofs",
    )

    def __init__(self) -> None:
        self.phase = Phase.OPENING
        self.failure: BaseException | None = None
        self.is_repeat = False
        self.lost_to_another = False
        self.committed_itself = False
        self.adapter: Any = None  # of the transaction, while it is open
        self.proofs: list[Proof] = []  # inbox rows written for new events
        self.names: list[str] = []  # their handlers

    def outcome(self, raised: BaseException | None = None) -> Outcome:
        """Derive the outcome from what happened first, and where."""
        error = self.failure or raised
        outcome = self._outcome(error)
        if error is None or outcome.verdict not in _WITH_TRACEBACK:
            return outcome
        if isinstance(error, (Retry, Reject)) and error.__cause__ is None:
            return outcome  # raised on purpose
        return outcome._replace(traceback=last_frames(error))

    def _outcome(self, error: BaseException | None) -> Outcome:
        if error is None:
            return REPEAT if self.is_repeat else CONFIRMED
        if self.committed_itself and self.phase is Phase.COMMITTING:
            if isinstance(error, TransactionEndedError):  # there was nothing left to commit
                return CONFIRMED
            return Outcome(Verdict.REJECTED, AFTERWARDS.format(error=short_error(error)))
        if self.phase is not Phase.OPENING and not isinstance(
            error, (Retry, Reject, OutsideTransactionError)
        ):
            self.lost_to_another = is_conflict(error)
            if has_no_room(error):
                return Outcome(Verdict.MISCONFIGURED, f"the database: {short_error(error)}")
            if refuses_values(error):  # never an outage: a refused COMMIT is a known outcome
                return Outcome(Verdict.FAILED, short_error(error))
        if self.phase is Phase.COMMITTING:
            return Outcome(Verdict.UNKNOWN, short_error(error))
        if self.phase is Phase.RUNNING:
            return _verdict_of(error)
        if isinstance(error, TransactionError):  # not a transaction, or one in autocommit mode
            return Outcome(Verdict.MISCONFIGURED, short_error(error))
        return Outcome(Verdict.OUTAGE, f"{self.phase.value}: {short_error(error)}")


def _verdict_of(error: BaseException) -> Outcome:
    match error:
        case Retry():
            said = _said(error, "asked for a retry")
            return Outcome(Verdict.FAILED, said, _wish(error.after_seconds))
        case Reject():
            return Outcome(Verdict.REJECTED, _said(error, "rejected by its handler"))
        case OutsideTransactionError():
            return Outcome(Verdict.REJECTED, str(error))
        case CausationError():  # the causation loop would occur again
            return Outcome(Verdict.REJECTED, short_error(error))
        case _:
            return Outcome(Verdict.FAILED, short_error(error))


def _said(signal: Exception, otherwise: str) -> str:
    try:
        return short_error(str(signal) or otherwise)
    except Exception:  # it is the user's class
        return short_error(signal)


def _wish(after: Any) -> float | None:
    """Return the delay that a handler asked for, if it is valid; otherwise the policy decides."""
    try:
        seconds = float(after)
    except (TypeError, ValueError, OverflowError):
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def worst_of(outcomes: Sequence[tuple[Handler, Outcome]]) -> Outcome:
    """Return the outcome of an event with several handlers."""
    if len(outcomes) == 1:
        return outcomes[0][1]
    for verdict in _WORST_FIRST:
        bad = [(h, o) for h, o in outcomes if o.verdict is verdict]
        if bad:
            error = short_error("; ".join(f"{h.name}: {o.error}" for h, o in bad))
            wishes = [o.after_seconds for _, o in bad if o.after_seconds is not None]
            found = "\n\n".join(o.traceback for _, o in bad if o.traceback)
            return Outcome(verdict, error, max(wishes) if wishes else None, traceback=found)
    return CONFIRMED


async def run_async(
    handler: Handler,
    record: Record,
    acceptance: Acceptance | Gate,
    factory: AsyncFactory | None,
    *,
    limit_seconds: float,
    prefix: str,
) -> Outcome:
    """Run an async handler; without a factory it gets no transaction, and nothing is accepted."""
    asked = None if factory is None else acceptance
    for lost in range(MAX_CONFLICTS):
        run = Run()

        async def work(tx: Any, run: Run = run) -> None:
            await effect(run, handler, record, asked, tx, prefix)
            await look_back(run)

        outcome = await run_once(run, work, factory, limit_seconds)
        if factory is None or not run.lost_to_another:
            break
        await asyncio.sleep(pause(lost))
    return outcome


async def run_once(
    run: Run,
    work: Callable[[Any], Awaitable[None]],
    factory: AsyncFactory | None,
    limit_seconds: float,
) -> Outcome:
    """Run in a transaction and commit it, within the time limit; returns the outcome."""
    try:
        async with (
            asyncio.timeout(limit_seconds * 3) as last,  # for a rollback that does not return
            asyncio.timeout(limit_seconds) as deadline,
        ):
            if factory is None:
                await work(None)
                return CONFIRMED
            async with factory() as tx:
                try:
                    await work(tx)
                    if deadline.expired():  # the handler swallowed its cancellation
                        raise LateError
                except BaseException as error:
                    run.failure = error
                    raise
                run.phase = Phase.COMMITTING
                deadline.reschedule(asyncio.get_running_loop().time() + limit_seconds)
        return run.outcome()
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise  # the relay is killed
        return run.outcome(error)  # the handler awaited something that was cancelled
    except (KeyboardInterrupt, GeneratorExit):
        raise  # the process is ending, or the coroutine was closed
    except BaseException as error:  # also a panic of a Rust extension
        if deadline.expired() or last.expired():
            return expired(run.phase, limit_seconds)
        return run.outcome(error)


async def effect(
    run: Run,
    handler: Handler,
    record: Record,
    acceptance: Acceptance | Gate | None,
    tx: Any,
    prefix: str,
) -> None:
    """Accept an event and, if it is new, run its handler; without a mark, only run the handler."""
    run.is_repeat = False
    if acceptance is not None:
        run.phase = Phase.ACCEPTING
        if run.adapter is None:
            run.adapter = transactions.resolve(tx, prefix=prefix)
        adapter: AsyncTransaction = run.adapter
        if isinstance(acceptance, Gate):
            run.is_repeat = not await steps.run_async(admit(adapter, acceptance))
        else:
            run.is_repeat = not await adapter.accept(acceptance)
        if not run.is_repeat:
            if not await adapter.hold(run.proofs):
                await look_back(run)  # before this handler runs: an earlier one has ended it
            note(run, handler, acceptance)
    if not run.is_repeat:
        run.phase = Phase.RUNNING
        try:
            await handler.call(record, tx)
        except Exception as error:
            if acceptance is not None and is_outside_transaction(run.adapter, error):
                found = await run.adapter.standing(run.proofs)
                raise outside_transaction_error(found, run.names, error) from error
            if rejection := undecodable(record, error):
                raise rejection from error
            raise


async def look_back(run: Run) -> None:
    """Check with the database, before the commit, that it may be committed; raises if not."""
    if run.proofs:
        run.committed_itself = not may_commit(await run.adapter.standing(run.proofs), run.names)


def note(run: Run, handler: Handler, acceptance: Acceptance | Gate) -> None:
    """Record that the run has accepted an event for a handler."""
    run.proofs.append(proof_of(acceptance))
    run.names.append(handler.name)


def pause(lost: int) -> float:
    """Return the seconds to wait after this many lost runs; random, so that two runs do not collide
    again.
    """
    return random.uniform(0.001, 0.01 * 2**lost)


def expired(phase: Phase, limit_seconds: float) -> Outcome:
    """Return the outcome of a run that reached its time limit."""
    match phase:
        case Phase.OPENING:
            verdict = Verdict.OUTAGE
        case Phase.ACCEPTING:  # it waits for a lock: of an earlier stuck run, or of another process
            verdict = Verdict.MISCONFIGURED
        case Phase.COMMITTING:
            verdict = Verdict.UNKNOWN
        case Phase.RUNNING:
            verdict = Verdict.FAILED
        case _:
            assert_never(phase)
    return Outcome(verdict, f"{phase.value} took longer than {limit_seconds:g} s")
