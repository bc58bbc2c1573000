"""Several events in one transaction: each accepted, then handled, one commit for all of them.

Every event is accepted right before its own handler, never all of them at the start: a handler that
commits, against all advice, then commits no row of a message whose effect has not happened.

If anything goes wrong the whole transaction is rolled back and nobody is to blame: which of them
failed shows when each is handled by itself. Deadlocks and other conflicts end that way too, so that
the next try holds the locks of one event only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from postroom import transactions
from postroom.broker import Outcome, Verdict
from postroom.brokers.handling import (
    AsyncFactory,
    Handler,
    Phase,
    Run,
    SyncFactory,
    effect,
    effect_sync,
    run_in_thread,
    run_once,
)
from postroom.brokers.threads import Threads
from postroom.record import Record
from postroom.transaction import Mark


class Job(NamedTuple):
    """An event and its only handler."""

    handler: Handler
    record: Record
    mark: Mark


class _PartedError(Exception):
    """A handler has ended the transaction that others share: their effects may be gone."""

    def __init__(self) -> None:
        super().__init__("a handler rolled back the transaction of the batch")


async def run_together(
    jobs: Sequence[Job], factory: AsyncFactory, limit_seconds: float, prefix: str
) -> list[Outcome] | None:
    """Run async handlers in one transaction, in this order; the limit is for all of them.

    None: it was rolled back, or its end is unknown; handle each event by itself. If the transaction
    could not be opened, nothing has run, and each event has that outcome.
    """
    run, ends = Run(), list[Outcome]()

    async def work(tx: Any) -> None:
        for handler, record, mark in jobs:
            await effect(run, handler, record, mark, tx, prefix)
            ends.append(run.outcome())
        done = await transactions.resolve(tx, prefix=prefix).count_done(_marks(jobs))
        if done != len(jobs):
            raise _PartedError

    return _ends(run, await run_once(run, work, factory, limit_seconds), jobs, ends)


async def run_together_in_thread(
    jobs: Sequence[Job],
    factory: SyncFactory,
    limit_seconds: float,
    prefix: str,
    threads: Threads,
) -> list[Outcome] | None:
    """Do in a thread what `run_together` does."""
    run, ends = Run(), list[Outcome]()

    def work(tx: Any) -> None:
        for handler, record, mark in jobs:
            effect_sync(run, handler, record, mark, tx, prefix)
            ends.append(run.outcome())
        done = transactions.resolve_sync(tx, prefix=prefix).count_done(_marks(jobs))
        if done != len(jobs):
            raise _PartedError

    return _ends(run, await run_in_thread(run, work, factory, limit_seconds, threads), jobs, ends)


def _marks(jobs: Sequence[Job]) -> list[Mark]:
    return [job.mark for job in jobs]


def _ends(
    run: Run, outcome: Outcome, jobs: Sequence[Job], ends: list[Outcome]
) -> list[Outcome] | None:
    if outcome.verdict is Verdict.CONFIRMED:
        return ends
    return [outcome] * len(jobs) if run.phase is Phase.OPENING else None
