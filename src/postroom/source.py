"""Source: the port to a queue or topics of a broker.

A source returns deliveries, and the consumer acknowledges each one. A message that is not
acknowledged is redelivered, to this consumer or another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from postroom.model.diagnostics import Finding
from postroom.model.incoming import Incoming


@dataclass(frozen=True, slots=True)
class SourceCapabilities:
    """The capabilities of a source."""

    offsets: bool = False  # every message has a position in a log, which can serve as its id
    max_unacked: int | None = None
    """Maximum unacknowledged messages; None: no maximum."""
    redelivers_seconds: float | None = None
    """Time in which the broker can redeliver a message; None: unknown."""


@dataclass(slots=True)
class SourceConnection:
    """The state of a source's connection to its broker. One thread writes it, any may read it.

    trouble     why nothing can be received: the broker is unreachable, or a topic or queue is
                missing; empty while the source is connected or closed
    losses      number of times that this began
    refusal     why the broker refuses acknowledgements; empty while it accepts them
    refusals    number of refused acknowledgements
    """

    trouble: str = ""
    losses: int = 0
    refusal: str = ""
    refusals: int = 0

    def lost(self, why: str) -> bool:
        """Record that the broker is unreachable; True if that is new."""
        is_new = not self.trouble
        self.trouble = why or "the connection was lost"
        self.losses += is_new
        return is_new

    def restored(self) -> bool:
        """Record that the broker is reachable, or no longer needed; True if that is new."""
        was_lost, self.trouble = bool(self.trouble), ""
        return was_lost

    def refused(self, why: str) -> bool:
        """Record that the broker refused an acknowledgement; True if that is new."""
        is_new, self.refusal = not self.refusal, why or "no reason given"
        self.refusals += 1
        return is_new

    def accepted(self) -> bool:
        """Record that the broker accepts acknowledgements, or none are due; True if new."""
        was_refused, self.refusal = bool(self.refusal), ""
        return was_refused


class Delivery(Protocol):
    """A received message that is not acknowledged yet."""

    @property
    def message(self) -> Incoming: ...

    @property
    def is_lost(self) -> bool:
        """True once the message belongs to another consumer: do not start handling it."""

    def ack(self) -> None:
        """Acknowledge a message that was handled durably. Never blocks; no-op if it is lost."""


class Source(Protocol):
    """A queue or topics to receive messages from. Used on one event loop."""

    @property
    def capabilities(self) -> SourceCapabilities: ...

    @property
    def connection(self) -> SourceConnection:
        """The state of the connection, for metrics and health."""

    @property
    def name(self) -> str | None:
        """The queue or consumer group; None if there is none.

        Must be the same in all processes of a service, and stable across deployments.
        """

    async def open(self) -> None:
        """Start receiving. An unreachable broker, or a topic or queue that does not exist yet, is
        not an error: the source waits for it, reports it in `connection`, and logs it once.

        Raises ConfigError for problems that waiting does not solve: no permission, a wrong name.
        """

    async def receive(self) -> Sequence[Delivery]:
        """Wait for messages and return them, the messages of one key in order.

        The consumer does not call it while it has enough work; this is the back-pressure.
        """

    async def pause(self) -> None:
        """Stop fetching messages; received messages can still be acknowledged."""

    async def close(self) -> None:
        """Flush all acknowledgements and disconnect; unacknowledged messages are redelivered.

        Safe to call twice.
        """

    async def backlog(self) -> int | None:
        """Return how many messages wait at the broker for this queue or group; None: unknown.

        For operators; the source is not open, and consumes nothing. Raises if the broker is
        unreachable, or the queue or a topic does not exist.
        """
        return None

    async def health(self) -> None:
        """Return if the broker answers; raise an error otherwise."""

    async def check(self) -> list[Finding]:
        """Return the findings of `postroom doctor`; consumes and changes nothing.

        The source is not open. Raises if the broker is unreachable. If known, the source sets
        `capabilities.redelivers_seconds`: the doctor compares it with the inbox's dedup window.
        """
