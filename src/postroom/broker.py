"""The port to a destination: a broker, or functions in this process.

An exception means *unknown*, never *not sent*. A destination therefore reports an outcome for each
record; what it does not report by the time `publish` ends counts as unknown.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from postroom.model.diagnostics import Finding
from postroom.record import Record
from postroom.store import Store
from postroom.transaction import Proof


class Verdict(Enum):
    """What became of one record at the destination (P2)."""

    CONFIRMED = "confirmed"  # it is there, durably
    REJECTED = "rejected"  # this message can never go
    MISCONFIGURED = "misconfigured"  # no such topic, no route, no handler, no permission
    FAILED = "failed"  # an attempt was made and failed
    UNKNOWN = "unknown"  # it may be there or not
    OUTAGE = "outage"  # the destination is away: not this event's fault
    UNSENT = "unsent"  # never left: held back behind an earlier event of its key


class Outcome(NamedTuple):
    """A verdict, why, and optionally when the destination wants the next attempt (seconds).

    proofs      of a confirmed effect in the store's own database: what its transaction wrote there.
                A settle finds it, or the database has lost that transaction since
    """

    verdict: Verdict
    error: str = ""
    after_seconds: float | None = None
    proofs: tuple[Proof, ...] = ()


CONFIRMED = Outcome(Verdict.CONFIRMED)
REPEAT = Outcome(Verdict.CONFIRMED, "a repeat: it was done before")
UNSENT = Outcome(Verdict.UNSENT)


@dataclass(frozen=True, slots=True)
class BrokerCapabilities:
    """What a destination can do."""

    marks_start: bool = False  # asks `begin` before each record: attempts are counted at the start
    max_bytes: int | None = None  # no larger payload can go
    transactional: bool = False  # a batch goes whole or not at all
    keeps_inbox: bool = False  # remembers what it has handled: `forget_accepted` prunes that


class Reporter(Protocol):
    """Where a destination reports to. All calls are made on the relay's event loop."""

    @property
    def outbox_id(self) -> str:
        """The id of the outbox that the records come from; goes beside strict numbers (W9)."""

    def confirm(self, records: Sequence[Record]) -> None:
        """Report that these are there, durably."""

    def report(self, record: Record, outcome: Outcome) -> None:
        """Report what became of one record; the first report of a record counts."""

    async def begin(self, record: Record) -> bool:
        """Count an attempt, durably, before an effect starts. False: the lane is lost, do not."""

    def may_go_on(self, record: Record) -> bool:
        """Say whether what was begun, and waited for others, may start now. From any thread."""


class Broker(Protocol):
    """A destination for records.

    A broker inherits from this class and writes the abstract methods. The others have a default
    that suits a destination which needs nothing of the store and remembers nothing.
    """

    @property
    @abstractmethod
    def capabilities(self) -> BrokerCapabilities: ...

    def bind(self, store: Store, lease_seconds: float, *, stream: str) -> Broker:  # noqa: ARG002
        """Return the destination as a relay of this store and stream uses it.

        Called with the open store before `open`. By default the broker itself: only a destination
        that works in the store's transactions, as handlers do, returns something else.
        """
        return self

    @abstractmethod
    async def open(self) -> None:
        """Get ready. A broker that is unreachable is not an error; publishing reports the outage.

        ConfigError is raised for what waiting does not mend.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release everything; twice is safe."""

    @abstractmethod
    async def health(self) -> None:
        """Return if the destination answers; raise an OSError otherwise (S4.4)."""

    async def check(self, topics: Collection[str]) -> list[Finding]:  # noqa: ARG002
        """Return what `postroom doctor` should report; changes nothing at the destination.

        `topics` are topics of events in the outbox. The broker is not open yet; the caller closes
        it afterwards. Raises if the destination is unreachable. By default only that is checked.
        """
        await self.open()
        await self.health()
        return []

    @abstractmethod
    async def publish(self, batch: Sequence[Record], reporter: Reporter) -> None:
        """Send a batch. Each key's run goes in order and stops at its first event that is not
        confirmed; the rest of that run is reported unsent (or unknown, if it may have left).
        Keys do not wait for each other. Several calls may be under way at once, never with the
        same key.
        """

    @abstractmethod
    async def publish_alone(self, record: Record, reporter: Reporter) -> None:
        """Send one suspect so that nothing else can share its fate: no common batch, no common
        channel, no other handler running.
        """

    async def forget_accepted(self, older_than_seconds: float) -> int:  # noqa: ARG002
        """Forget messages that were handled longer ago than that; returns how many.

        Only called with the capability `keeps_inbox`.
        """
        return 0
