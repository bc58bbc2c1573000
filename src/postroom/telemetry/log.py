"""Facts as log lines of key=value pairs, without payloads and secrets."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import assert_never

from postroom.broker import Verdict
from postroom.model.durations import Seconds, to_seconds
from postroom.model.secrets import mask
from postroom.observer import (
    Alarm,
    Attempt,
    BreakerChanged,
    ControlChanged,
    Delivered,
    EffectsLost,
    Fact,
    Handled,
    LanesChanged,
    Sent,
    Settled,
    StoreRecovered,
    StoreTrouble,
    Vanished,
    Woken,
)

LOGGER = "postroom.relay"
MAX_VALUE_CHARS = 500
QUIET_SECONDS = 10.0
_QUIET_FACTOR, _LONGEST_QUIET = 6, 600.0
_STEADY_SECONDS = 60.0  # a call that has worked as long can begin to fail anew
_MOST_ERRORS = 5  # different errors of one call that are logged at once
SHOWN_IDS = 10
_VANISHED = (
    "events that were read are no longer in the database: their transactions were lost (fail-over "
    "to a lagging replica, restored backup, crash). Compare them with your business tables"
)

_EFFECTS_LOST = (
    "handlers committed the effects of these events, but the database lost the transactions "
    "(fail-over to a lagging replica, restored backup, crash). The events are handled again"
)

_BARE = re.compile(r"[^\s=\"'\\]+")


class _Trouble:
    """A call to the store that fails; which lines tell of it."""

    def __init__(self, now: float, quiet_seconds: float) -> None:
        self.began_at = self.seen_at = self.tell_at = now
        self.errors: set[str] = set()
        self.failures = self.left_out = 0
        self.is_told = False  # since it was over the last time
        self._quiet = quiet_seconds

    def is_over(self, now: float) -> bool:
        """Return whether another failure, now, begins a new trouble."""
        return now - self.seen_at > (_LONGEST_QUIET if self.is_told else _STEADY_SECONDS)

    def told(self, error: str, now: float) -> int:
        """A line is logged: return how many were left out before it."""
        if now >= self.tell_at:
            self.tell_at = now + self._quiet
            self._quiet = min(self._quiet * _QUIET_FACTOR, _LONGEST_QUIET)
        if len(self.errors) < _MOST_ERRORS:
            self.errors.add(error)
        left_out, self.left_out, self.is_told = self.left_out, 0, True
        return left_out


class LogObserver:
    """Logs the activity of relays and consumers to the logger `postroom.relay`.

    DEBUG    settled batches, wake-ups, events delayed by an outage
    INFO     lanes taken, released or lost; a destination that is reachable again, calls to the
             store that work again, pauses that have ended
    WARNING  failed attempts, dead letters, outcomes discarded with a lost lane, a destination that
             became unreachable, failed calls to the store, pauses
    ERROR    alarms, lost events, lost effects

    An outage is logged once, not once per event. A store error that repeats is logged when it
    begins, again after `quiet_seconds` and then after pauses that are six times as long, up to ten
    minutes, with the number of lines left out, and once when it is over.
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
        self._troubles: dict[tuple[str, str], _Trouble] = {}

    def observe(self, fact: Fact) -> None:
        match fact:
            case Settled():
                bad = fact.dead or fact.fenced
                self._log(logging.WARNING if bad else logging.DEBUG, "settled", fact._asdict())
            case Attempt():
                away = fact.verdict == Verdict.OUTAGE.value
                self._log(logging.DEBUG if away else logging.WARNING, "attempt", fact._asdict())
            case LanesChanged():
                facts = fact._asdict() | {"lanes": ranges(fact.lanes), "count": len(fact.lanes)}
                self._log(logging.INFO, "lanes", facts)
            case BreakerChanged():
                self._breaker(fact)
            case ControlChanged():
                self._control(fact)
            case Alarm():
                self._log(logging.ERROR, "alarm", fact._asdict())
            case StoreTrouble():
                self._trouble(fact)
            case StoreRecovered():
                self._recovered(fact)
            case Vanished():
                self._lost("vanished", fact, _VANISHED)
            case EffectsLost():
                self._lost("effects-lost", fact, _EFFECTS_LOST)
            case Woken():
                self._log(logging.DEBUG, "woke", fact._asdict())
            case Handled() if self._logger.isEnabledFor(logging.DEBUG):  # one for each message
                facts = fact._asdict() | {"seconds": round(fact.seconds, 6)}
                self._log(logging.DEBUG, "handled", facts)
            case Sent() | Delivered() | Handled():
                pass  # covered by `settled`, and by `attempt` for failures
            case _ as never:
                assert_never(never)

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
            found = self._troubles[what] = _Trouble(now, self._quiet_seconds)
        found.failures += 1
        found.seen_at = now
        is_new = fact.error not in found.errors and len(found.errors) < _MOST_ERRORS
        if not is_new and now < found.tell_at:
            found.left_out += 1
            return
        left_out = found.told(fact.error, now)
        facts = fact._asdict() | ({"left_out": left_out} if left_out else {})
        self._log(logging.WARNING, "trouble", facts)

    def _recovered(self, fact: StoreRecovered) -> None:
        found = self._troubles.get(fact[:2])
        if found is not None and found.is_told:  # one that comes and goes is told of now and then
            found.is_told = False
            seconds = round(self._monotonic() - found.began_at, 1)
            facts = fact._asdict() | {"failures": found.failures, "seconds": seconds}
            self._log(logging.INFO, "recovered", facts)

    def _log(self, level: int, name: str, facts: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            say(self._logger, level, name, facts)


def say(logger: logging.Logger, level: int, name: str, facts: Mapping[str, object]) -> None:
    """Log a line; JsonFormatter reads name and facts from the record's attribute `postroom`."""
    logger.log(level, "%s", line(name, facts), extra={"postroom": (name, facts)})


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object: at, level, logger, event and facts; masks secrets."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told: dict[str, object] = {
            "at": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        name, facts = getattr(record, "postroom", ("log", None))
        told["event"] = name
        if facts is None:
            told["message"] = cut(mask(record.getMessage()))
        else:
            told |= {key: _plain(value) for key, value in facts.items()}
        if record.exc_info:
            told["traceback"] = mask(self.formatException(record.exc_info))
        return json.dumps(told)


def _plain(value: object) -> object:
    return value if isinstance(value, (int, float, bool)) else cut(mask(str(value)))


def cut(text: str) -> str:
    """Return text truncated to MAX_VALUE_CHARS."""
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 1] + "…"


class TextFormatter(logging.Formatter):
    """Formats a record as text: time in UTC, control characters escaped, secrets masked."""

    def __init__(self) -> None:
        super().__init__(
            "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S"
        )
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        text = mask(super().format(record))  # a traceback keeps its lines
        return "".join(c if c.isprintable() or c == "\n" else _escape(c) for c in text)


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
    return '"' + "".join(c if c.isprintable() else _escape(c) for c in escaped) + '"'


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
