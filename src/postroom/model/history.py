"""The history of an event: its failed attempts and what operators did with it, as JSON text.

    {"entries": [{"at": …, "by": …, "what": …, "attempt": …, "error": …, "traceback": …}, …],
     "dropped": 12}

The first 3 and the last 5 entries are kept; `dropped` counts those that were between them. The text
is ASCII, so that a database of any encoding can store it, and at most MAX_BYTES long.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from traceback import TracebackException
from typing import Any, NamedTuple

from postroom.model.clock import host_microseconds, instant_text
from postroom.model.secrets import mask
from postroom.record import short_error

FIRST, LAST = 3, 5
MAX_BYTES = 8_000
MAX_BY_BYTES = 255
MAX_ERROR_BYTES = 500
MAX_TRACEBACK_BYTES = 1_500
_FRAMES = 10
_BOTH_ENDS = 2
_LOOKED_AT_CHARS = 20_000  # of a traceback


class Entry(NamedTuple):
    """A failed attempt, or an operator's command.

    at_us       when, in microseconds, by the clock of the process that made the entry
    by          the name of the relay, consumer or operator
    what        the verdict of an attempt; expired; or a command, such as bury, skip or replay
    attempt     its number; None for an operator's command, and for an expiry
    """

    at_us: int
    by: str
    what: str
    attempt: int | None = None
    error: str = ""
    traceback: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the entry as it is stored: masked, shortened, without empty fields."""
        error = _head(mask(short_error(self.error)), MAX_ERROR_BYTES)
        by = _head(short_error(self.by), MAX_BY_BYTES)
        traceback = _tail(self.traceback, MAX_TRACEBACK_BYTES)
        fields = {
            "at": self.at_us, "by": by, "what": self.what, "attempt": self.attempt,
            "error": error, "traceback": traceback,
        }  # fmt: skip
        return {name: value for name, value in fields.items() if value not in (None, "")}


class History(NamedTuple):
    """The kept entries, oldest first, and how many were dropped after the first ones."""

    entries: tuple[dict[str, Any], ...] = ()
    dropped: int = 0


def command(by: str | None, what: str, reason: str = "") -> Entry:
    """Return the entry of an operator's command, made now."""
    return Entry(host_microseconds(), by or "", what, error=reason)


def attempt(by: str, verdict: str, number: int, error: str, traceback: str = "") -> Entry:
    """Return the entry of a failed attempt that ends now."""
    return Entry(host_microseconds(), by, verdict, number, error, traceback)


def expiry(by: str, expires_us: int | None) -> Entry:
    """Return the entry of an event that expires now."""
    error = "" if expires_us is None else f"not sent before {instant_text(expires_us)}"
    return Entry(host_microseconds(), by, "expired", error=error)


def append(history: object, entry: Entry) -> str:
    """Return a stored history with one more entry. A repeated entry is not added again.

    A history that cannot be read is replaced: it must not stop an event.
    """
    old = read(history)
    new = entry.to_json()
    entries, dropped = list(old.entries), old.dropped
    if not any(_name(each) == _name(new) for each in entries):
        entries.append(new)
    if len(entries) > FIRST + LAST:
        dropped += len(entries) - FIRST - LAST
        entries = [*entries[:FIRST], *entries[-LAST:]]
    return _fitting(entries, dropped)


def read(history: object) -> History:
    """Return a stored history; empty if there is none, or if it cannot be read."""
    try:
        found = json.loads(short_text(history)) if isinstance(history, str) else None
    except (ValueError, RecursionError):
        return History()
    if not isinstance(found, dict) or not isinstance(found.get("entries"), list):
        return History()
    entries = [each for each in found["entries"] if _is_sound(each)]
    dropped = found.get("dropped", 0)
    is_count = type(dropped) is int and 0 <= dropped < 1 << 53
    return History(tuple(entries), dropped if is_count else 0)


def last_frames(error: BaseException) -> str:
    """Return the end of an exception's traceback, masked and shortened."""
    try:
        told = TracebackException.from_exception(error, limit=-_FRAMES, compact=True)
        text = "".join(told.format())
    except Exception:  # it is the user's class
        return ""
    return _tail(mask(short_text(text[-_LOOKED_AT_CHARS:]).strip()), MAX_TRACEBACK_BYTES)


def short_text(text: str) -> str:
    """Return a text that every database can store: no lone surrogates, no NUL."""
    return text.encode(errors="replace").decode().replace("\x00", "\\0")


def _is_sound(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and type(entry.get("at")) is int
        and isinstance(entry.get("what"), str)
        and isinstance(entry.get("by", ""), str)
        and isinstance(entry.get("error", ""), str)
        and isinstance(entry.get("traceback", ""), str)
        and type(entry.get("attempt")) in (int, type(None))
    )


def _name(entry: dict[str, Any]) -> tuple[Any, ...]:
    return entry["at"], entry.get("attempt"), entry["what"], entry.get("by")


def _fitting(entries: Sequence[dict[str, Any]], dropped: int) -> str:
    """Return the text; tracebacks are left out until it fits, first those in the middle."""
    while len(text := _text(entries, dropped)) > MAX_BYTES:
        places = [n for n, entry in enumerate(entries) if "traceback" in entry]
        if not places:  # edited by hand
            entries, dropped = entries[1:], dropped + 1
            continue
        place = places[1] if len(places) > _BOTH_ENDS else places[0]
        entries = [
            {k: v for k, v in entry.items() if n != place or k != "traceback"}
            for n, entry in enumerate(entries)
        ]
    return text


def _text(entries: Sequence[dict[str, Any]], dropped: int) -> str:
    return json.dumps({"entries": list(entries), "dropped": dropped}, separators=(",", ":"))


def _head(text: str, limit: int) -> str:
    while (size := len(json.dumps(text))) > limit:
        text = text[: min(len(text) - 2, len(text) * limit // size - 2)] + "…"
    return text


def _tail(text: str, limit: int) -> str:
    while (size := len(json.dumps(text))) > limit:
        text = "…" + text[-min(len(text) - 2, max(1, len(text) * limit // size - 2)) :]
    return text
