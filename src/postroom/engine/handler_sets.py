"""Notices live relays or consumers of one name whose handlers differ.

Two services that share a database and a stream take each other's events, and with the name of a
consumer each takes messages that the other has handled for repeats. The id of a relay that runs
handlers is visible to all members of its stream; it contains a hash of the functions, and of a
consumer also the source that it reads:

- other functions and another source: another service. An alarm, at once.
- other functions otherwise: perhaps a new version that replaces the old one. A warning, and an
  alarm if it lasts.
- another source only: a second source of one service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple
from uuid import uuid4

from postroom.model.clock import Clock
from postroom.observer import Alarm, Fact, OtherHandlers
from postroom.store import Member

DEPLOYMENT_SECONDS = 600.0
"""Two versions of a service run at the same time for at most this long."""
_MOST_BYTES = 100  # of a source's name in an id, which has 255 bytes at most


class HandlerSet(NamedTuple):
    """The handlers of a member: hashes of its functions and its source, and the source's name."""

    functions: str = ""
    source: str = ""
    reads: str = ""


def handlers_of(member: Member) -> HandlerSet:
    """Return what the id of a member tells; all empty if it runs no handlers."""
    _, *parts = member.owner.split("/", 3)
    return HandlerSet(*parts)


class HandlerSets:
    """Compares the handlers of the members of one stream with those of this process.

    consumer    the name of the consumer; None: a relay with handlers
    """

    def __init__(
        self,
        stream: str,
        functions: Iterable[str],
        tell: Callable[[Fact], None],
        clock: Clock,
        *,
        consumer: str | None = None,
        source: str = "",
    ) -> None:
        self._stream, self._tell, self._clock = stream, tell, clock
        self._consumer = consumer
        self._own = HandlerSet(_hash(functions), _hash([source]) if source else "", _shown(source))
        self._since: dict[HandlerSet, float] = {}
        self._told: set[HandlerSet] = set()
        named = self._own if source else self._own[:1]
        self.owner = "/".join([str(uuid4()), *named])

    def compare(self, members: Sequence[Member]) -> None:
        """Report members with other handlers: at once, and again if they stay."""
        now, seen = self._clock.monotonic(), dict[HandlerSet, float]()
        for member in members:
            other = handlers_of(member)
            if other.functions in ("", self._own.functions) or other in seen:
                continue
            since = seen[other] = self._since.get(other, now)
            if other in self._told:
                continue
            is_other_service = other.source != self._own.source
            if is_other_service or now - since >= DEPLOYMENT_SECONDS:
                self._told.add(other)
                self._alarm(member, other)
            elif other not in self._since:
                self._tell(OtherHandlers(self._stream, member.name or member.owner))
        self._told &= seen.keys()
        self._since = seen

    def _alarm(self, member: Member, other: HandlerSet) -> None:
        relay = member.name or member.owner
        if self._consumer is None:
            about = f"two sets of handlers serve the stream {self._stream!r}"
            error = (
                f"the relay {relay} serves this stream with other handlers, and each handles a "
                "part of the events. Give each service its own stream: Event(…, stream=…) and "
                "Relay(…, stream=…); or stop the old version"
            )
        else:
            about = f"the consumer name {self._consumer!r} is used twice"
            where = f"reads {other.reads!r}" if other.source else "is"
            error = (
                f"this consumer reads {self._own.reads!r}, and another one with this name, in the "
                f"same database, {where} with other handlers: each takes messages that the other "
                "has handled for repeats. Give each service its own name: Consumer(…, name=…)"
            )
        self._tell(Alarm(self._stream, about, error))


def _hash(lines: Iterable[str]) -> str:
    text = "\n".join(sorted(lines))
    return sha256(text.encode(errors="replace")).hexdigest()[:12]


def _shown(source: str) -> str:
    printable = "".join(each if each.isprintable() else "?" for each in source)
    return printable.encode()[:_MOST_BYTES].decode(errors="ignore")
