"""The failure policy: decides about unconfirmed events, without input or output (P2, P3, B6)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple, assert_never

from postroom.broker import Outcome, Verdict
from postroom.record import MAX_ATTEMPTS, Record
from postroom.retry import MAX_WAIT_SECONDS, RetryPolicy

_UNSENT_AT_ONCE = 3  # consecutive times; after that with a pause, and an alarm
_UNSENT_SECONDS, _LONGEST_UNSENT = 0.1, 30.0
_REMEMBERED = 10_000


class Action(Enum):
    """The action for an event that was not confirmed."""

    RETRY = auto()  # failed: it waits, and so does its key
    BURY = auto()  # becomes a dead letter; its key goes on
    ISOLATE = auto()  # unknown outcome: sent again, alone
    RELEASE = auto()  # not sent; it is read again


class Decision(NamedTuple):
    """The action, and what is recorded with it."""

    action: Action
    attempts: int
    delay: float = 0.0
    error: str = ""
    alarm: bool = False


class FailurePolicy:
    """Decides by the retry policy. `counts_at_start`: the attempt was counted when it started."""

    def __init__(
        self,
        policy: RetryPolicy,
        *,
        counts_at_start: bool,
        suspect_limit: int,
        misconfigured_seconds: float,
    ) -> None:
        self.policy = policy
        self.counts_at_start = counts_at_start
        self.suspect_limit = suspect_limit
        self.misconfigured_seconds = misconfigured_seconds
        self._unknown_alone: dict[str, int] = {}
        self._unsent_times: dict[str, int] = {}

    def decide(self, record: Record, outcome: Outcome, *, alone: bool) -> Decision:
        """Decide about one event that was not confirmed."""
        verdict = outcome.verdict
        if verdict is not Verdict.UNSENT and self._unsent_times:
            self._unsent_times.pop(record.id, None)
        match verdict:
            case Verdict.UNSENT:
                return self._unsent(record, outcome)
            case Verdict.OUTAGE:  # the breaker makes it wait
                return Decision(Action.RELEASE, record.attempts, error=outcome.error)
            case Verdict.MISCONFIGURED:
                return Decision(
                    Action.RETRY, record.attempts, self.misconfigured_seconds,
                    outcome.error, alarm=True,
                )  # fmt: skip
            case Verdict.UNKNOWN:
                return self._unknown(record, outcome, alone=alone)
            case Verdict.REJECTED:
                return self._charge(record, outcome, hopeless=True)
            case Verdict.FAILED:
                return self._charge(record, outcome)
            case Verdict.CONFIRMED:
                raise ValueError(f"event {record.id} is confirmed; there is nothing to decide")
            case _:
                assert_never(verdict)

    def orphan(self, record: Record) -> Decision:
        """Decide about an event that a relay started and never finished (H1)."""
        if self.policy.gives_up(record.attempts, strict=record.kseq is not None):
            error = (
                f"started {record.attempts} times without finishing: the process died or lost its "
                "lease each time"
            )
            return Decision(Action.BURY, record.attempts, error=error)
        return Decision(Action.ISOLATE, record.attempts)

    def forget(self, records: Iterable[Record]) -> None:
        """Drop the state of events that have finished."""
        if self._unknown_alone:
            for record in records:
                self._unknown_alone.pop(record.id, None)

    def _unknown(self, record: Record, outcome: Outcome, *, alone: bool) -> Decision:
        if not alone:
            return Decision(Action.ISOLATE, record.attempts, error=outcome.error)
        times = self._unknown_alone.get(record.id, 0) + 1
        if times < self.suspect_limit and not self.counts_at_start:
            self._unknown_alone[record.id] = times
            return Decision(Action.ISOLATE, record.attempts, error=outcome.error)
        return self._charge(record, outcome)

    def _unsent(self, record: Record, outcome: Outcome) -> Decision:
        """Decide about an event that was not sent although no earlier event of its key held it
        back.

        This can happen when a connection or a lane changes. If it repeats, retries need a pause,
        since nothing else would stop them.
        """
        times = self._unsent_times.pop(record.id, 0) + 1
        self._unsent_times[record.id] = times
        while len(self._unsent_times) > _REMEMBERED:
            del self._unsent_times[next(iter(self._unsent_times))]
        if times < _UNSENT_AT_ONCE:
            return Decision(Action.RELEASE, record.attempts, error=outcome.error)
        delay = min(_UNSENT_SECONDS * 2 ** min(times - _UNSENT_AT_ONCE, 20), _LONGEST_UNSENT)
        error = outcome.error or "the destination did not send it and gave no reason"
        return Decision(Action.RETRY, record.attempts, delay, error, alarm=True)

    def _charge(self, record: Record, outcome: Outcome, *, hopeless: bool = False) -> Decision:
        attempts = min(record.attempts + 1, MAX_ATTEMPTS)
        self._unknown_alone.pop(record.id, None)
        strict = record.kseq is not None
        exhausted = hopeless or attempts >= self.policy.max_attempts
        if exhausted and not strict and self.policy.on_exhausted == "bury":
            return Decision(Action.BURY, attempts, error=outcome.error)
        delay = self._delay(attempts, outcome.after_seconds)
        return Decision(Action.RETRY, attempts, delay, outcome.error, alarm=exhausted)

    def _delay(self, attempts: int, wish: float | None) -> float:
        if wish is None:
            return self.policy.delay(attempts)
        return max(0.0, wish) if wish <= MAX_WAIT_SECONDS else MAX_WAIT_SECONDS  # also excludes NaN
