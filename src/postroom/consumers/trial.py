"""One message, from its turn to its end: done, dead, or another consumer's.

It is tried in place: whatever comes behind it in its key waits, and nothing is ever put back behind
a later message (I3). The broker hears of it only when its end is durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from postroom.broker import Outcome, Verdict
from postroom.brokers.handlers import Handlers
from postroom.clock import Clock
from postroom.consumers.attempts import Attempts
from postroom.consumers.backlog import Backlog
from postroom.consumers.batches import Batches
from postroom.consumers.settings import ConsumerSettings
from postroom.engine.blocks import Judge, Sentence
from postroom.engine.breaker import Breaker
from postroom.observer import Alarm, Attempt, BreakerChanged, Fact, Handled, Observer, Trouble
from postroom.record import Record, short_error
from postroom.source import Delivery
from postroom.transactions.conflicts import is_passing

if TYPE_CHECKING:
    from postroom.consumers.detours import Detours

_log = logging.getLogger(__name__)
_FIRST_PAUSE = 0.1
_LONG_SECONDS = 1.0  # a wait that is worth a place in the backlog …
_MANY = 3  # … as is one after so many attempts
_LOOK_SECONDS = 1.0  # how often a waiting message looks whether it is still ours
_GRAVES = 4  # dead letters that are written at a time


class Letter(NamedTuple):
    """A message in hand, and the event that it carries.

    problem     why it cannot be handled: it becomes a dead letter
    keep        it is to be kept in the backlog: others of its key are there
    """

    delivery: Delivery
    record: Record
    problem: str = ""
    keep: bool = False


@dataclass(slots=True)
class ConsumerCounts:
    """What a consumer has done since it was started.

    done        messages whose handlers have committed, repeats among them
    repeats     … that were done before: nothing happened a second time
    kept        messages that were stored, to be handled later
    hashed_ids  messages that were known by their body alone (S5.5)
    lost        messages that became another consumer's before their end
    batched     messages that were done in a transaction with others
    split       messages whose batch was rolled back: each was then handled by itself
    """

    received: int = 0
    done: int = 0
    repeats: int = 0
    kept: int = 0
    failed: int = 0
    dead: int = 0
    ignored: int = 0
    hashed_ids: int = 0
    lost: int = 0
    batched: int = 0
    split: int = 0


@dataclass(slots=True)
class Bench:
    """What the parts of one running consumer share."""

    settings: ConsumerSettings
    handlers: Handlers
    backlog: Backlog
    clock: Clock
    observers: tuple[Observer, ...] = ()
    counts: ConsumerCounts = field(default_factory=ConsumerCounts)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    detours: Detours | None = None
    graves: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_GRAVES))

    @property
    def stream(self) -> str:
        return self.backlog.stream

    def tell(self, fact: Fact) -> None:
        """Tell the observers; one that raises must not stop a message half-way."""
        for observer in self.observers:
            try:
                observer.observe(fact)
            except Exception:
                _log.exception("an observer failed at %s", type(fact).__name__)

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until the consumer stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self.stopping.wait()

    async def bury(self, letter: Letter, reason: str) -> bool:
        """Make a dead letter of a message, durably.

        False if it is another's, or we stop, or no row can hold it, which is an alarm.
        """
        pause = _FIRST_PAUSE
        while not letter.delivery.is_lost:
            try:
                async with self.graves:
                    await self.backlog.bury(letter.delivery.message, letter.record, reason)
            except Exception as error:
                if not is_passing(error):
                    self.cannot_be_kept(letter, error)
                    return False
                self.tell(Trouble(self.stream, "writing a dead letter", short_error(error)))
                if self.stopping.is_set():
                    return False
                await self.pause(pause)
                pause = min(pause * 2, self.settings.max_outage_seconds)
            else:
                self.counts.dead += 1
                return True
        return False

    def cannot_be_kept(self, letter: Letter, error: Exception) -> None:
        """A message that no row can hold stays with the broker: it is never acknowledged."""
        about = f"message {letter.record.id} can be neither handled nor stored"
        self.tell(Alarm(self.stream, about, short_error(error)))
        _log.error("%s; it stays with the broker: %s", about, short_error(error))


class Trials:
    """Tries messages by the consumer's handlers."""

    def __init__(self, bench: Bench) -> None:
        settings = bench.settings
        self._bench = bench
        self._judge = Judge(
            settings.retry,
            counts_at_start=False,
            suspect_limit=settings.suspect_limit,
            misconfigured_seconds=settings.misconfigured_seconds,
        )
        self._breaker = Breaker(settings.outage_seconds, settings.max_outage_seconds)
        self._answered = asyncio.Event()
        self._attempts = Attempts(bench.clock)
        self._batches = Batches(
            bench.handlers, self._try, settings.batch, bench.stopping, bench.counts
        )

    async def close(self) -> None:
        """Roll back what still runs when nobody waits for it any more."""
        await self._batches.close()

    async def finish(self, letter: Letter) -> bool:
        """Bring a message to its end and acknowledge it; False: it was left as it was."""
        bench, delivery = self._bench, letter.delivery
        if letter.problem:
            return await self._bury(letter, letter.problem)
        record, waiting = self._attempts.recall(letter.record)
        alone, together = False, bench.settings.batch > 1
        waiting = await self._rest(letter, waiting, record.attempts)
        while not delivery.is_lost and not bench.stopping.is_set():
            if not await self._way_is_free(delivery):
                break
            began = bench.clock.monotonic()
            outcome = await self._batches.handle(delivery, record) if together else None
            if outcome is None:
                together = False  # for good: it must not trouble others a second time
                if delivery.is_lost or bench.stopping.is_set():
                    break
                outcome = await (self._try_alone if alone else self._try)(record)
            self._heard(outcome)
            took = bench.clock.monotonic() - began
            bench.tell(Handled(bench.stream, record.type, outcome.verdict.value, took))
            if outcome.verdict is Verdict.CONFIRMED:
                bench.counts.done += 1
                bench.counts.repeats += bool(outcome.error)
                self._judge.forget((record,))
                delivery.ack()
                return True
            bench.tell(_attempt(bench.stream, record, outcome))
            # Strict handlers, who wait for every number, are for durable mode only.
            sentence = self._judge.judge(record._replace(kseq=None), outcome, alone=alone)
            record, alone = record._replace(attempts=sentence.attempts), False
            match sentence.sentence:
                case Sentence.BURY:
                    if await self._bury(letter, _reason(sentence.attempts, sentence.error)):
                        return True
                case Sentence.TRY_ALONE:
                    alone = True
                case Sentence.TRY_LATER:
                    bench.counts.failed += 1
                    if sentence.alarm:
                        bench.tell(Alarm(bench.stream, f"message {record.id}", sentence.error))
                    waiting = await self._rest(letter, sentence.delay, sentence.attempts)
                    if bench.detours is not None and bench.detours.is_asked(record.key_hash):
                        self._judge.forget((record,))
                        return False  # to be kept in the backlog, with what waits behind it
                case Sentence.GIVE_BACK:
                    pass  # the breaker makes it wait
        self._judge.forget((record,))
        if delivery.is_lost:
            bench.counts.lost += 1
            self._attempts.keep(record, waiting)
        return False

    async def _rest(self, letter: Letter, seconds: float, attempts: int) -> float:
        """Wait, but no longer than the message is ours; returns what is left of the time."""
        bench, key = self._bench, letter.record.key_hash
        detours = bench.detours
        if detours is not None and (seconds >= _LONG_SECONDS or attempts >= _MANY):
            detours.rests(key)
        while seconds > 0 and not letter.delivery.is_lost and not bench.stopping.is_set():
            if detours is not None and detours.is_asked(key):
                break
            await bench.pause(min(seconds, _LOOK_SECONDS))
            seconds -= _LOOK_SECONDS
        if detours is not None:
            detours.goes_on(key)
        return max(0.0, seconds)

    async def _bury(self, letter: Letter, reason: str) -> bool:
        """Make a dead letter of it, however often that must be tried; False: we stop, or lost it.

        Its key waits: what is behind must not pass it.
        """
        bench = self._bench
        while not letter.delivery.is_lost and not bench.stopping.is_set():
            if await bench.bury(letter, reason):
                letter.delivery.ack()
                return True
            await bench.pause(bench.settings.misconfigured_seconds)
        return False

    async def _try(self, record: Record) -> Outcome:
        return await self._bench.handlers.handle(record, _DESK)

    async def _try_alone(self, record: Record) -> Outcome:
        desk = _Desk()
        await self._bench.handlers.publish_alone(record, desk)
        return desk.outcome

    def _heard(self, outcome: Outcome) -> None:
        """Tell the breaker whether the database is there."""
        if outcome.verdict is Verdict.OUTAGE:
            if self._breaker.outage(outcome.error, self._bench.clock.monotonic()):
                self._bench.tell(BreakerChanged(self._bench.stream, "open", outcome.error))
        elif self._breaker.answered():
            self._bench.tell(BreakerChanged(self._bench.stream, "closed", ""))
            self._answered.set()

    async def _way_is_free(self, delivery: Delivery) -> bool:
        """Wait while the database is away; False: there is no need for this message any more."""
        breaker, clock = self._breaker, self._bench.clock
        while not breaker.room(1, clock.monotonic(), 0):
            if delivery.is_lost or self._bench.stopping.is_set():
                return False
            self._answered.clear()
            wait = max(0.01, breaker.retry_at - clock.monotonic())
            with suppress(TimeoutError):
                async with asyncio.timeout(min(wait, 1.0)):
                    await self._answered.wait()
        return True


class _Desk:
    """Hears what became of one record."""

    outbox_id = ""

    def __init__(self) -> None:
        self.outcome = Outcome(Verdict.UNKNOWN, "the handlers said nothing")

    def confirm(self, records: Sequence[Record]) -> None:
        raise NotImplementedError  # handlers report one by one

    def report(self, record: Record, outcome: Outcome) -> None:  # noqa: ARG002
        self.outcome = outcome

    async def begin(self, record: Record) -> bool:  # noqa: ARG002
        return True

    def may_go_on(self, record: Record) -> bool:  # noqa: ARG002
        return True


_DESK = _Desk()


def _attempt(stream: str, record: Record, outcome: Outcome) -> Attempt:
    return Attempt(
        stream,
        record.id,
        record.type,
        record.topic,
        outcome.verdict.value,
        record.attempts,
        outcome.error,
    )


def _reason(attempts: int, error: str) -> str:
    return short_error(f"{error} (attempts: {attempts})" if attempts > 1 else error)
