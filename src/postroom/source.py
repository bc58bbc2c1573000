"""The port to where messages come from: a queue or topics of a broker.

A source hands over deliveries and learns of each one when it may be forgotten. It never decides by
itself: what is not acknowledged comes again, here or at another consumer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from postroom.model.diagnostics import Finding
from postroom.model.incoming import Incoming


@dataclass(frozen=True, slots=True)
class SourceCapabilities:
    """What a source can do."""

    offsets: bool = False  # every message has a place in a log, which can serve as its id
    max_unacked: int | None = None
    """So many messages are delivered before one must be acknowledged; None: any number."""
    redelivers_seconds: float | None = None
    """For how long the broker may deliver a message again; None: nobody can tell."""


@dataclass(slots=True)
class Connection:
    """The state of a source's connection to its broker. One thread writes it, any may read it.

    trouble     why the broker cannot be reached; empty while the source is connected or closed
    losses      how often the broker became unreachable since the source was made
    refusal     why the broker refuses acknowledgements; empty while it takes them
    refusals    how many acknowledgements it refused since the source was made
    """

    trouble: str = ""
    losses: int = 0
    refusal: str = ""
    refusals: int = 0

    def lost(self, why: str) -> bool:
        """Note that the broker cannot be reached; True if that is new."""
        is_new = not self.trouble
        self.trouble = why or "the connection was lost"
        self.losses += is_new
        return is_new

    def restored(self) -> bool:
        """Note that the broker answers, or is not wanted any more; True if that is new."""
        was_lost, self.trouble = bool(self.trouble), ""
        return was_lost

    def refused(self, why: str) -> bool:
        """Note that the broker refused an acknowledgement; True if that is new."""
        is_new, self.refusal = not self.refusal, why or "it does not say why"
        self.refusals += 1
        return is_new

    def accepted(self) -> bool:
        """Note that the broker takes acknowledgements, or none are due; True if that is new."""
        was_refused, self.refusal = bool(self.refusal), ""
        return was_refused


class Delivery(Protocol):
    """One message in hand."""

    @property
    def message(self) -> Incoming: ...

    @property
    def is_lost(self) -> bool:
        """True once the message is another consumer's: do not begin with it any more."""

    def ack(self) -> None:
        """Say that it is done with, durably. Never blocks; nothing happens if it is lost."""


class Source(Protocol):
    """Where messages come from. Used on one event loop."""

    @property
    def capabilities(self) -> SourceCapabilities: ...

    @property
    def connection(self) -> Connection:
        """The state of the connection, for metrics and health."""

    @property
    def name(self) -> str | None:
        """What the broker knows the receiving service by: a queue, a consumer group.

        The same in all its processes and after each deployment; None: there is none.
        """

    async def open(self) -> None:
        """Begin to receive. A broker that is away is no error; it is waited for.

        Raises ConfigError for what waiting does not mend: no such queue, no permission.
        """

    async def receive(self) -> Sequence[Delivery]:
        """Wait for messages and return them: those of one key in their order.

        Not to be called while the consumer has enough to do: that is how the broker is held back.
        """

    async def pause(self) -> None:
        """Ask for no further messages; those in hand can still be acknowledged."""

    async def close(self) -> None:
        """Tell the broker of all acknowledgements and let go; what is left comes again.

        Twice is safe.
        """

    async def health(self) -> None:
        """Return if the broker answers; raise what is wrong otherwise."""

    async def check(self) -> list[Finding]:
        """Return what `postroom doctor` should report; consumes nothing and changes nothing.

        The source is not open. Raises if the broker is unreachable. A source that can tell sets
        `capabilities.redelivers_seconds`: the doctor compares it with how long an inbox remembers.
        """
