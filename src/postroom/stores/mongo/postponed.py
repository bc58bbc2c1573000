"""Documents whose embedded events cannot be collected now: skipped, and retried later."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import bson
from bson.errors import BSONError

from postroom.model.pauses import Pauses
from postroom.record import short_error

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 300.0
_MOST = 1_000
_SHOWN_CHARS = 100
_TOLD_AT_ONCE = 5
_AGAIN_AT_ONCE = 10
_log = logging.getLogger(__name__)

Complaint = tuple[str, str]


@dataclass(slots=True)
class _Aside:
    ident: Any
    pauses: Pauses
    until: float
    error: str


class Postponed:
    """The documents that are set aside, each with a growing pause.

    Kept in memory: another process, or a restarted one, finds out again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._documents: dict[tuple[str, bytes], _Aside] = {}
        self._complaints: list[Complaint] = []
        self.times = 0  # how often a document was set aside

    def __len__(self) -> int:
        return len(self._documents)

    @property
    def is_full(self) -> bool:
        """This many at once are not bad documents: the collection, or the outbox, refuses
        all of them.
        """
        return len(self._documents) >= _MOST

    def put(self, collection: str, ident: Any, error: BaseException) -> None:
        """Skip a document for a while; report it, unless it was reported before."""
        said = short_error(error)
        known = self._documents.get(name := _name(collection, ident))
        pauses = known.pauses if known else Pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._documents[name] = _Aside(ident, pauses, self._clock() + pauses.grow(), said)
        self.times += 1
        if known is None or known.error != said:
            about = f"the embedded events of {collection} {shown(ident)} cannot be collected"
            if len(self._complaints) < _TOLD_AT_ONCE:
                self._complaints.append((about, said))  # an alarm of the relay, which is logged

    def collected(self, collection: str, ident: Any) -> None:
        """A document can be collected again."""
        if self._documents and self._documents.pop(_name(collection, ident), None) is not None:
            _log.info("the embedded events of %s %s are collected again", collection, shown(ident))

    def of(self, collection: str) -> list[Any]:
        """Return the `_id`s of all documents that are set aside."""
        there = self._documents.items()
        return [aside.ident for (name, known), aside in there if name == collection and known]

    def due(self, collection: str) -> list[Any]:
        """Return some `_id`s that are to be retried now."""
        now, there = self._clock(), self._documents.items()
        due = (aside.ident for (n, _), aside in there if n == collection and aside.until <= now)
        return list(islice(due, _AGAIN_AT_ONCE))

    def complaints(self) -> list[Complaint]:
        """Return new reports: what each is about, and why."""
        told, self._complaints = self._complaints, []
        return told


def shown(ident: Any) -> str:
    """Return an `_id` for display; it is the application's, and may be long."""
    text = short_error(repr(ident))
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _name(collection: str, ident: Any) -> tuple[str, bytes]:
    try:
        return collection, bson.encode({"": ident})
    except (BSONError, UnicodeError):
        return collection, b""  # text that is not UTF-8: no query can name it
