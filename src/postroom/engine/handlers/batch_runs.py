"""Several events in one transaction: each is accepted, then handled; one commit for all of them.

Each event is accepted right before its own handler, never all at the start: a handler that commits,
against the rules, then commits no inbox row of an event whose effect has not happened.

If anything fails, the whole transaction is rolled back and no event is charged: handling each
individually shows which one fails. Deadlocks and other conflicts end the same way, so that the next
attempt holds the locks of one event only. A handler whose transaction was rolled back and that went
on is not run again, because its later effects may be committed (`refused`). It is found before the
next handler runs.

A thread cannot be stopped. One that is stuck past the limit keeps its transaction open, including
the inbox rows of events that it accepted before: `held` are their ids while that lasts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from postroom.broker import REPEAT, Outcome, Verdict
from postroom.engine.handlers.commit_check import OutsideTransactionError
from postroom.engine.handlers.runs import (
    AsyncFactory,
    Handler,
    Phase,
    Run,
    SyncFactory,
    effect,
    look_back,
    run_once,
)
from postroom.engine.handlers.thread_runs import effect_sync, look_back_sync, run_in_thread
from postroom.engine.handlers.threads import Threads
from postroom.errors import AutocommitError
from postroom.record import Record
from postroom.transaction import Acceptance

HELD = Outcome(
    Verdict.MISCONFIGURED,
    "a handler is stuck in its thread past its time limit, and holds the transaction that this "
    "event shares with it; set a timeout for its calls, or restart the process",
)


class Job(NamedTuple):
    """An event and its only handler."""

    handler: Handler
    record: Record
    acceptance: Acceptance


class _PartedError(Exception):
    """Events that were started together cannot finish together."""


async def run_together(
    jobs: Sequence[Job],
    factory: AsyncFactory,
    limit_seconds: float,
    prefix: str,
    may_go_on: Callable[[Record], bool],
    refused: dict[str, Outcome],
) -> list[Outcome] | None:
    """Run async handlers in one transaction, in this order; the time limit covers all of them.

    `may_go_on` is called before each of them, since the lane may be lost by then. None: the
    transaction was rolled back, or its outcome is unknown; handle each event individually. If the
    transaction could not be opened, nothing has run, and every event gets that outcome.
    """
    run, ends = Run(), list[Outcome]()

    async def work(tx: Any) -> None:
        run.phase = Phase.ACCEPTING
        for handler, record, acceptance in jobs:
            _check(may_go_on(record), "what was begun may not go on")
            try:
                await effect(run, handler, record, acceptance, tx, prefix)
            except AutocommitError:  # the previous handler has left the transaction
                await look_back(run)
                raise
            if not run.is_repeat and not await run.adapter.is_open():
                await look_back(run)  # now, while it is known which handler ended it
            ends.append(run.outcome())
        await look_back(run)

    outcome = await run_once(run, work, factory, limit_seconds)
    _refuse(run, jobs, ends, refused)
    return _ends(run, outcome, jobs, ends)


async def run_together_in_thread(
    jobs: Sequence[Job],
    factory: SyncFactory,
    limit_seconds: float,
    prefix: str,
    may_go_on: Callable[[Record], bool],
    threads: Threads,
    held: set[str],
    refused: dict[str, Outcome],
) -> list[Outcome] | None:
    """The same as `run_together`, in a thread."""
    run, ends, over = Run(), list[Outcome](), threading.Event()

    def work(tx: Any) -> None:
        run.phase = Phase.ACCEPTING
        for handler, record, acceptance in jobs:
            _check(may_go_on(record), "what was begun may not go on")
            try:
                effect_sync(run, handler, record, acceptance, tx, prefix)
            except AutocommitError:
                look_back_sync(run)
                raise
            if not run.is_repeat and not run.adapter.is_open():
                look_back_sync(run)
            ends.append(run.outcome())
        look_back_sync(run)

    @contextmanager
    def watched() -> Iterator[Any]:
        try:
            with factory() as tx:
                yield tx
        finally:
            over.set()
            held.difference_update(ids)

    ids = frozenset[str]()

    def in_hand() -> str:
        return jobs[min(len(ends), len(jobs) - 1)].record.id

    outcome = await run_in_thread(run, work, watched, limit_seconds, threads, in_hand)
    if outcome.verdict is not Verdict.CONFIRMED and run.phase is not Phase.OPENING:
        ids = frozenset(job.record.id for job in jobs[: len(ends)])  # all but the stuck one
        held |= ids
        if over.is_set():
            held -= ids
    _refuse(run, jobs, ends, refused)
    return _ends(run, outcome, jobs, ends)


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _PartedError(otherwise)


def _refuse(
    run: Run, jobs: Sequence[Job], ends: Sequence[Outcome], refused: dict[str, Outcome]
) -> None:
    """Remember the event whose handler left the transaction: the last one that ran."""
    if isinstance(run.failure, OutsideTransactionError):
        is_over = run.phase is Phase.RUNNING and len(ends) < len(jobs)  # it raised
        ran = [place for place, end in enumerate(ends) if end is not REPEAT]
        culprit = jobs[len(ends) if is_over else ran[-1]]
        refused[culprit.record.id] = Outcome(Verdict.REJECTED, str(run.failure))


def _ends(
    run: Run, outcome: Outcome, jobs: Sequence[Job], ends: list[Outcome]
) -> list[Outcome] | None:
    if outcome.verdict is Verdict.CONFIRMED:
        return ends
    return [outcome] * len(jobs) if run.phase is Phase.OPENING else None
