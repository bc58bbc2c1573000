"""Notices another live consumer with the same name that belongs to another service.

Two services that share a database and a consumer's name take each other's messages for repeats, and
handle each other's stored messages. Every consumer runs a relay, which is a live member of the
stream of its stored messages. The member's id tells what the consumer reads and which functions
handle it: another source and other functions are another service. Processes of one service differ
in neither, a new deployment in the functions only, a second source of one service in the source
only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from uuid import uuid4

from postroom.observer import Alarm
from postroom.store import Member

_log = logging.getLogger(__name__)
_MOST_BYTES = 100  # of a source's name in an id, which has 255 bytes at most


class NameConflicts:
    """Compares the ids of the live consumers of one name; each other service is an alarm, once."""

    def __init__(
        self,
        name: str,
        source: str,
        functions: Iterable[str],
        tell: Callable[[Alarm], None],
        stream: str,
    ) -> None:
        self._name, self._tell, self._stream = name, tell, stream
        self._reads, self._source = _shown(source), _hash([source])
        self._functions = _hash(functions)
        self._told: set[tuple[str, str]] = set()
        self.owner = f"{uuid4()}/{self._functions}/{self._source}/{self._reads}"

    def compare(self, members: Sequence[Member]) -> None:
        """Raise an alarm for members of another service."""
        for member in members:
            _, functions, source, reads = (*member.owner.split("/", 3), "", "", "")[:4]
            if not source or functions == self._functions or source == self._source:
                continue
            if (functions, source) not in self._told:
                self._told.add((functions, source))
                self._alarm(reads)

    def _alarm(self, other: str) -> None:
        about = f"the consumer name {self._name!r} is used twice"
        error = (
            f"this consumer reads {self._reads!r}, and another one with this name, in the same "
            f"database, reads {other!r} with other handlers: each takes messages that the other "
            "has handled for repeats. Give each service its own name: Consumer(…, name=…)"
        )
        self._tell(Alarm(self._stream, about, error))
        _log.error("%s: %s", about, error)


def _hash(lines: Iterable[str]) -> str:
    text = "\n".join(sorted(lines))
    return sha256(text.encode(errors="replace")).hexdigest()[:12]


def _shown(source: str) -> str:
    printable = "".join(each if each.isprintable() else "?" for each in source)
    return printable.encode()[:_MOST_BYTES].decode(errors="ignore")
