"""Handles one message until it is done, dead, or another consumer's.

A failed message is retried in place: later messages of its key wait, and a message is never put
back behind a later one (I3). It is acknowledged only when its outcome is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from postroom.broker import Outcome, Verdict
from postroom.engine.breaker import Breaker
from postroom.engine.consumer.attempts import Attempts
from postroom.engine.consumer.batches import Batches
from postroom.engine.consumer.context import ConsumerContext, Received
from postroom.engine.failure_policy import Action, Decision, FailurePolicy
from postroom.model.history import Entry, append, attempt
from postroom.observer import Alarm, Attempt, BreakerChanged, Handled
from postroom.record import Record
from postroom.source import Delivery

_LONG_SECONDS = 1.0  # a wait this long is worth storing the key …
_MANY = 3  # … as is one after this many attempts
_LOOK_SECONDS = 1.0  # how often a waiting message checks that it still belongs to this consumer


class MessageProcessor:
    """Runs the consumer's handlers for messages."""

    def __init__(self, context: ConsumerContext) -> None:
        settings = context.settings
        self._context = context
        self._policy = FailurePolicy(
            settings.retry,
            counts_at_start=False,
            suspect_limit=settings.suspect_limit,
            misconfigured_seconds=settings.misconfigured_seconds,
        )
        self._breaker = Breaker(settings.outage_seconds, settings.max_outage_seconds)
        self._answered = asyncio.Event()
        self._attempts = Attempts(context.clock)
        self._batches = Batches(
            context.handlers, self._try, settings.batch, context.stopping, context.counts
        )

    async def close(self) -> None:
        """Roll back runs that are still in progress when their caller is gone."""
        await self._batches.close()

    async def finish(self, received: Received) -> bool:
        """Handle a message to its end and acknowledge it; False: it was left as it was."""
        context, delivery = self._context, received.delivery
        if received.problem:
            return await self._bury(received, received.problem)
        record, waiting = self._attempts.recall(received.record)
        alone, together = False, context.settings.batch > 1
        history: str | None = None
        waiting = await self._rest(received, waiting, record.attempts)
        while not delivery.is_lost and not context.stopping.is_set():
            if not await self._wait_for_database(delivery):
                break
            began = context.clock.monotonic()
            outcome = await self._batches.handle(delivery, record) if together else None
            if outcome is None:
                together = False  # for good: it must not fail another batch
                if delivery.is_lost or context.stopping.is_set():
                    break
                outcome = await (self._try_alone if alone else self._try)(record)
            self._inform_breaker(outcome)
            took = context.clock.monotonic() - began
            context.tell(Handled(context.stream, record.type, outcome.verdict.value, took))
            if outcome.verdict is Verdict.CONFIRMED:
                context.counts.done += 1
                context.counts.repeats += bool(outcome.error)
                self._policy.forget((record,))
                delivery.ack()
                return True
            # Strict handlers, which wait for every number, need durable mode.
            action = self._policy.decide(record._replace(kseq=None), outcome, alone=alone)
            record, alone = record._replace(attempts=action.attempts), False
            context.tell(_attempt(context.stream, record, outcome))
            if action.action in (Action.BURY, Action.RETRY):
                history = append(history, self._entry(outcome, action))
            match action.action:
                case Action.BURY:
                    if await self._bury(
                        received, action.error, history, action.attempts, outcome.traceback
                    ):
                        return True
                case Action.ISOLATE:
                    alone = True
                case Action.RETRY:
                    context.counts.failed += 1
                    if action.alarm:
                        about = f"message {record.id} blocks its key"
                        context.tell(Alarm(context.stream, about, action.error, record.id))
                    waiting = await self._rest(received, action.delay, action.attempts)
                    if context.detours is not None and context.detours.is_asked(record.key_hash):
                        self._policy.forget((record,))
                        return False  # to be stored, together with the messages behind it
                case Action.RELEASE:
                    pass  # the breaker makes it wait
        self._policy.forget((record,))
        if delivery.is_lost:
            context.counts.lost += 1
            self._attempts.keep(record, waiting)
        return False

    async def _rest(self, received: Received, seconds: float, attempts: int) -> float:
        """Wait, but only while the message belongs to this consumer; returns the remaining time."""
        context, key = self._context, received.record.key_hash
        detours = context.detours
        if detours is not None and (seconds >= _LONG_SECONDS or attempts >= _MANY):
            detours.rests(key)
        while seconds > 0 and not received.delivery.is_lost and not context.stopping.is_set():
            if detours is not None and detours.is_asked(key):
                break
            await context.pause(min(seconds, _LOOK_SECONDS))
            seconds -= _LOOK_SECONDS
        if detours is not None:
            detours.goes_on(key)
        return max(0.0, seconds)

    def _entry(self, outcome: Outcome, decision: Decision) -> Entry:
        name, verdict = self._context.durable_inbox.consumer, outcome.verdict.value
        return attempt(name, verdict, decision.attempts, decision.error, outcome.traceback)

    async def _bury(
        self,
        received: Received,
        reason: str,
        history: str | None = None,
        attempts: int = 0,
        traceback: str = "",
    ) -> bool:
        """Make a dead letter of it, retrying until it succeeds; False: the consumer stops, or lost
        it.

        Its key waits: later messages must not overtake it.
        """
        context = self._context
        while not received.delivery.is_lost and not context.stopping.is_set():
            if await context.bury(
                received, reason, history, attempts=attempts, traceback=traceback
            ):
                received.delivery.ack()
                return True
            await context.pause(context.settings.misconfigured_seconds)
        return False

    async def _try(self, record: Record) -> Outcome:
        return await self._context.handlers.handle(record, _REPORTER)

    async def _try_alone(self, record: Record) -> Outcome:
        reporter = _Reporter()
        await self._context.handlers.publish_alone(record, reporter)
        return reporter.outcome

    def _inform_breaker(self, outcome: Outcome) -> None:
        """Report to the breaker whether the database is reachable."""
        if outcome.verdict is Verdict.OUTAGE:
            if self._breaker.outage(outcome.error, self._context.clock.monotonic()):
                self._context.tell(BreakerChanged(self._context.stream, "open", outcome.error))
        elif self._breaker.answered():
            self._context.tell(BreakerChanged(self._context.stream, "closed", ""))
            self._answered.set()

    async def _wait_for_database(self, delivery: Delivery) -> bool:
        """Wait while the database is unreachable; False: the message no longer needs handling."""
        breaker, clock = self._breaker, self._context.clock
        while not breaker.room(1, clock.monotonic(), 0):
            if delivery.is_lost or self._context.stopping.is_set():
                return False
            self._answered.clear()
            wait = max(0.01, breaker.retry_at - clock.monotonic())
            with suppress(TimeoutError):
                async with asyncio.timeout(min(wait, 1.0)):
                    await self._answered.wait()
        return True


class _Reporter:
    """Receives the outcome of one record."""

    outbox_id = ""
    keeps_receipts = False

    def __init__(self) -> None:
        self.outcome = Outcome(Verdict.UNKNOWN, "the handlers returned no outcome")

    def confirm(self, records: Sequence[Record], receipts: Sequence[str] = ()) -> None:
        raise NotImplementedError  # handlers report one by one

    def report(self, record: Record, outcome: Outcome) -> None:  # noqa: ARG002
        self.outcome = outcome

    async def begin(self, record: Record) -> bool:  # noqa: ARG002
        return True

    def may_go_on(self, record: Record) -> bool:  # noqa: ARG002
        return True


_REPORTER = _Reporter()


def _attempt(stream: str, record: Record, outcome: Outcome) -> Attempt:
    return Attempt(
        stream,
        record.id,
        record.type,
        record.topic,
        outcome.verdict.value,
        record.attempts,
        outcome.error,
        outcome.traceback,
    )
