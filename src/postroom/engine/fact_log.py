"""Facts as log lines of key=value pairs, without payloads and secrets.

Relays, consumers and buses log through the standard `logging`, unless they are made with
`log=False`. Lines about one cause are limited (`log_limits`): an outage or a missing topic has a
few lines, whatever the number of events.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import assert_never

from postroom.broker import Verdict
from postroom.engine.log_limits import QUIET_SECONDS, Cause, Causes
from postroom.model import dead_letters
from postroom.model.controls import limits_text
from postroom.model.durations import Seconds, to_seconds
from postroom.model.secrets import mask
from postroom.observer import (
    Alarm,
    Attempt,
    BreakerChanged,
    Buried,
    ControlChanged,
    Delivered,
    EffectsLost,
    Fact,
    Freed,
    Handled,
    LanesChanged,
    LanesHeld,
    LimitChanged,
    OtherHandlers,
    Sent,
    Settled,
    StoreRecovered,
    StoreTrouble,
    Summary,
    Vanished,
    Woken,
)

LOGGER = "postroom.relay"
MAX_VALUE_CHARS = 500
SHOWN_IDS = 10
_BURST = 3  # failed attempts, and dead letters, of one cause that are logged at once
_DEBUG_VERDICTS = (Verdict.OUTAGE.value, Verdict.MISCONFIGURED.value)  # a breaker or alarm tells it
_VANISHED = (
    "events that were read are no longer in the database: their transactions were lost (fail-over "
    "to a lagging replica, restored backup, crash). Compare them with your business tables"
)

_EFFECTS_LOST = (
    "handlers committed the effects of these events, but the database lost the transactions "
    "(fail-over to a lagging replica, restored backup, crash). The events are handled again"
)

_MOST_PATTERNS = 1_000
_MOST_TRACEBACKS = 100
_BARE = re.compile(r"[^\s=\"'\\]+")


@lru_cache(_MOST_PATTERNS)
def pattern(text: str) -> str:
    """Return the cause of an error, as dead letters are grouped by it."""
    return dead_letters.pattern(text)


class LogObserver:
    """Logs the activity of relays and consumers to the logger `postroom.relay`.

    DEBUG    settled batches, wake-ups, events delayed by an outage
    INFO     a summary a minute while there is traffic; lanes taken and released, or held by
             another relay; a destination that is reachable again, calls to the store that work
             again, events that a corrected configuration has freed, pauses that have ended
    WARNING  failed attempts and dead letters, with the traceback of a handler at the first attempt
             and at the last; outcomes discarded with a lost lane, a destination that became
             unreachable, failed calls to the store, pauses, a relay of the stream with other
             handlers
    ERROR    alarms, lost events, lost effects

    Many failures with one cause have few lines: the first ones, one after `quiet_seconds`, and then
    after pauses that are six times as long, up to ten minutes. A line has the number of lines left
    out before it. An outage, and a store error that repeats, have one more line when they are over.
    """

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        quiet_seconds: Seconds = QUIET_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger or logging.getLogger(LOGGER)
        self._quiet_seconds = to_seconds(quiet_seconds)
        self._monotonic = monotonic
        self._breakers: dict[str, str] = {}
        self._lost_lanes: dict[str, set[int]] = {}
        self._troubles: dict[tuple[str, str], Cause] = {}
        self._alarms = Causes(self._quiet_seconds)
        self._attempts = Causes(self._quiet_seconds, _BURST)
        self._graves = Causes(self._quiet_seconds, _BURST)
        self._tracebacks: dict[tuple[str, str], str] = {}  # of first attempts, in the log already
        self._left_out = 0  # lines, since the last summary

    def observe(self, fact: Fact) -> None:
        match fact:
            case Settled():
                level = logging.WARNING if fact.fenced else logging.DEBUG
                if self._logger.isEnabledFor(level):
                    self._log(level, "settled", fact._asdict())
            case Attempt():
                self._attempt(fact)
            case Buried():
                in_log = self._tracebacks.pop((fact.stream, fact.id), None) == fact.traceback
                again = in_log and fact.attempts <= 1  # the first attempt was the last one
                self._limited(self._graves, fact, "dead-letter", with_traceback=not again)
            case LanesChanged():
                self._lanes(fact)
            case LanesHeld():
                self._log(logging.INFO, "waiting", fact._asdict())
            case BreakerChanged():
                self._breaker(fact)
            case ControlChanged():
                self._control(fact)
            case LimitChanged():
                limits = limits_text(fact.max_per_second, fact.max_in_flight)
                facts = {"stream": fact.stream, "kind": fact.kind, "name": fact.name}
                self._log(logging.INFO, "limited", facts | {"limits": limits})
            case Alarm():
                self._alarm(fact)
            case OtherHandlers():
                self._log(logging.WARNING, "other-handlers", fact._asdict())
            case Freed():
                self._log(logging.INFO, "freed", fact._asdict())
            case StoreTrouble():
                self._trouble(fact)
            case StoreRecovered():
                self._recovered(fact)
            case Vanished():
                self._lost("vanished", fact, _VANISHED)
            case EffectsLost():
                self._lost("effects-lost", fact, _EFFECTS_LOST)
            case Summary():
                self._summary(fact)
            case Woken():
                self._log(logging.DEBUG, "woke", fact._asdict())
            case Handled() if self._logger.isEnabledFor(logging.DEBUG):  # one for each message
                facts = fact._asdict() | {"seconds": round(fact.seconds, 6)}
                self._log(logging.DEBUG, "handled", facts)
            case Sent() | Delivered() | Handled():
                pass  # covered by `settled`, and by `attempt` for failures
            case _ as never:
                assert_never(never)

    def _attempt(self, fact: Attempt) -> None:
        if fact.verdict not in _DEBUG_VERDICTS:
            is_first = fact.attempts <= 1
            is_told = self._limited(self._attempts, fact, "attempt", with_traceback=is_first)
            if is_told and is_first and fact.traceback:
                self._tracebacks[fact.stream, fact.id] = fact.traceback
                if len(self._tracebacks) > _MOST_TRACEBACKS:
                    del self._tracebacks[next(iter(self._tracebacks))]
        elif self._logger.isEnabledFor(logging.DEBUG):
            self._log(logging.DEBUG, "attempt", _without_traceback(fact))

    def _limited(
        self, causes: Causes, fact: Attempt | Buried, name: str, *, with_traceback: bool
    ) -> bool:
        """Log an attempt or a dead letter; False if the line is left out."""
        cause = (fact.stream, fact.type, pattern(fact.error))
        left_out = causes.happened(cause, pattern(fact.error), self._monotonic())
        if left_out is None:
            self._left_out += 1
            return False
        facts = _without_traceback(fact) | ({"left_out": left_out} if left_out else {})
        self._log(logging.WARNING, name, facts, fact.traceback if with_traceback else "")
        return True

    def _alarm(self, fact: Alarm) -> None:
        about = fact.about.replace(fact.id, "<id>") if fact.id else fact.about
        cause = (fact.stream, pattern(about), pattern(fact.error))
        left_out = self._alarms.happened(cause, fact.error, self._monotonic())
        if left_out is None:
            self._left_out += 1
        elif not fact.is_logged:
            facts: dict[str, object] = {"stream": fact.stream, "about": fact.about}
            facts |= {"error": fact.error} | ({"left_out": left_out} if left_out else {})
            self._log(logging.ERROR, "alarm", facts)

    def _lanes(self, fact: LanesChanged) -> None:
        """Log lanes. One that an operator's command has recalled is re-taken at once: DEBUG."""
        facts = fact._asdict() | {"lanes": ranges(fact.lanes), "count": len(fact.lanes)}
        facts["owner"] = fact.owner.partition("/")[0]  # without what it tells about handlers
        if not fact.before:
            del facts["before"]
        lost = self._lost_lanes.setdefault(fact.stream, set())
        level = logging.INFO
        if fact.change == "recalled":
            lost.update(fact.lanes)
            level = logging.DEBUG
        elif fact.change == "taken":
            level = logging.DEBUG if lost.issuperset(fact.lanes) else logging.INFO
            lost.difference_update(fact.lanes)
        self._log(level, "lanes", facts)

    def _summary(self, fact: Summary) -> None:
        facts: dict[str, object] = {"stream": fact.stream, "seconds": round(fact.seconds)}
        facts |= fact.counts
        facts["rate"] = f"{fact.counts.get('done', 0) / max(fact.seconds, 0.001):.1f}/s"
        if fact.lag_seconds is not None:
            facts["lag"] = f"{fact.lag_seconds:.1f}s"
        if self._left_out:
            facts["left_out"], self._left_out = self._left_out, 0
        self._log(logging.INFO, "summary", facts)

    def _lost(self, line: str, fact: Vanished | EffectsLost, error: str) -> None:
        facts = {"stream": fact.stream, "count": len(fact.ids)}
        shown = ", ".join(fact.ids[:SHOWN_IDS])
        self._log(logging.ERROR, line, facts | {"ids": shown, "error": error})

    def _breaker(self, fact: BreakerChanged) -> None:
        if self._breakers.get(fact.stream, "closed") == fact.state:
            return
        self._breakers[fact.stream] = fact.state
        facts = {name: value for name, value in fact._asdict().items() if value != ""}
        self._log(logging.INFO if fact.state == "closed" else logging.WARNING, "breaker", facts)

    def _control(self, fact: ControlChanged) -> None:
        facts: dict[str, object] = {"stream": fact.stream, "kind": fact.kind, "name": fact.name}
        if not fact.paused:
            self._log(logging.INFO, "resumed", facts)
            return
        if fact.until_us is not None:
            until = datetime.fromtimestamp(fact.until_us / 1_000_000, UTC)
            facts["until"] = until.isoformat(timespec="seconds").replace("+00:00", "Z")
        facts |= {"who": fact.who} | ({"reason": fact.reason} if fact.reason else {})
        self._log(logging.WARNING, "paused", facts)

    def _trouble(self, fact: StoreTrouble) -> None:
        now, what = self._monotonic(), fact[:2]
        found = self._troubles.get(what)
        if found is None or found.is_over(now):
            found = self._troubles[what] = Cause(now, self._quiet_seconds)
        left_out = found.happened(fact.error, now)
        if left_out is not None:
            facts = fact._asdict() | ({"left_out": left_out} if left_out else {})
            self._log(logging.WARNING, "trouble", facts)

    def _recovered(self, fact: StoreRecovered) -> None:
        found = self._troubles.get(fact[:2])
        if found is not None and found.is_told:  # one that comes and goes is told of now and then
            found.is_told = False
            seconds = round(self._monotonic() - found.began_at, 1)
            facts = fact._asdict() | {"failures": found.failures, "seconds": seconds}
            self._log(logging.INFO, "recovered", facts)

    def _log(self, level: int, name: str, facts: Mapping[str, object], traceback: str = "") -> None:
        if self._logger.isEnabledFor(level):
            say(self._logger, level, name, facts, traceback)


def _without_traceback(fact: Attempt | Buried) -> dict[str, object]:
    facts = fact._asdict()
    del facts["traceback"]
    return facts


def say(
    logger: logging.Logger,
    level: int,
    name: str,
    facts: Mapping[str, object],
    traceback: str = "",
) -> None:
    """Log a line; JsonFormatter reads name and facts from the record's attribute `postroom`.

    traceback    a masked traceback, which every formatter prints below the line
    """
    if not traceback:
        logger.log(level, "%s", line(name, facts), extra={"postroom": (name, facts)})
        return
    if not logger.isEnabledFor(level):
        return
    place, number, function, _ = logger.findCaller(stacklevel=2)
    record = logger.makeRecord(
        logger.name, level, place, number, "%s", (line(name, facts),), None, function,
        {"postroom": (name, facts)},
    )  # fmt: skip
    record.exc_text = traceback  # its exception is gone, and may hold secrets
    logger.handle(record)


def cut(text: str) -> str:
    """Return text truncated to MAX_VALUE_CHARS."""
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 1] + "…"


def line(name: str, facts: Mapping[str, object]) -> str:
    """Return `name key=value key="a value"` as one printable line."""
    return " ".join([name, *(f"{key}={_value(value)}" for key, value in facts.items())])


def ranges(numbers: Sequence[int]) -> str:
    """Return `0-3,7` for 0, 1, 2, 3, 7."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(str(end) for end in part) for part in parts)


def _value(value: object) -> str:
    text = cut(mask(str(value)))
    if text.isprintable() and _BARE.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else escape(c) for c in escaped) + '"'


def escape(character: str) -> str:
    """Return a control character as text."""
    return character.encode("unicode_escape").decode("ascii")
