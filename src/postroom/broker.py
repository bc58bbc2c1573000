"""Broker: the port to a destination, which is a message broker or handlers in this process.

An exception means *unknown*, never *not sent*. A destination therefore reports an outcome for each
record; a record without a report when `publish` returns counts as unknown.
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
    """The outcome of one record at the destination (P2)."""

    CONFIRMED = "confirmed"  # stored durably at the destination
    REJECTED = "rejected"  # this message can never be delivered
    MISCONFIGURED = "misconfigured"  # no such topic, no route, no handler, no permission
    FAILED = "failed"  # an attempt was made and failed
    UNKNOWN = "unknown"  # it may have been delivered or not
    OUTAGE = "outage"  # the destination is unreachable: does not count as an attempt
    UNSENT = "unsent"  # not sent: held back behind an earlier event of its key


class Outcome(NamedTuple):
    """A verdict, the error, and optionally the delay before the next attempt (seconds).

    proofs      rows that the transaction of a confirmed effect wrote to the store's own database.
                If a settle does not find them, the database has lost that transaction
    traceback   the last frames of a handler's exception, for the event's history
    receipt     where the destination put a confirmed record, as `postroom.model.receipts.make`
                writes it; empty if it does not say
    local       decided in this process: the destination was not asked, and may be unreachable
    """

    verdict: Verdict
    error: str = ""
    after_seconds: float | None = None
    proofs: tuple[Proof, ...] = ()
    traceback: str = ""
    receipt: str = ""
    local: bool = False

    @property
    def is_answer(self) -> bool:
        """Whether the destination itself gave it: it is reachable."""
        return self.verdict in _ANSWERS and not self.local


_ANSWERS = (Verdict.CONFIRMED, Verdict.REJECTED, Verdict.MISCONFIGURED, Verdict.FAILED)
CONFIRMED = Outcome(Verdict.CONFIRMED)
REPEAT = Outcome(Verdict.CONFIRMED, "duplicate: already handled")
UNSENT = Outcome(Verdict.UNSENT)


@dataclass(frozen=True, slots=True)
class BrokerCapabilities:
    """The capabilities of a destination."""

    marks_start: bool = False  # calls `begin` before each record, which counts the attempt
    max_bytes: int | None = None  # maximum payload
    transactional: bool = False  # a batch is delivered atomically
    keeps_inbox: bool = False  # keeps inbox rows, which `forget_accepted` prunes


class Reporter(Protocol):
    """Receives the reports of a destination. All calls are made on the relay's event loop."""

    @property
    def outbox_id(self) -> str:
        """The id of the records' outbox; sent with strict numbers (W9)."""

    @property
    def keeps_receipts(self) -> bool:
        """Whether receipts are stored. Otherwise a destination need not make any."""

    def confirm(self, records: Sequence[Record], receipts: Sequence[str] = ()) -> None:
        """Report that these records are stored durably.

        receipts    in the order of the records, or none; see Outcome
        """

    def report(self, record: Record, outcome: Outcome) -> None:
        """Report the outcome of one record; the first report of a record counts."""

    async def begin(self, record: Record) -> bool:
        """Durably count an attempt before the handler starts.

        False: the lane was lost and the handler must not run.
        """

    def may_go_on(self, record: Record) -> bool:
        """Return whether a record that was begun and then queued may still start. Thread-safe."""


class Broker(Protocol):
    """A destination for records.

    A broker inherits from this class and implements the abstract methods. The defaults of the other
    methods suit a destination without access to the store and without an inbox.
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

    def functions(self) -> Sequence[str]:
        """Return a line for each function of this process that handles events; none by default.

        Relays of one stream compare them: they should run the same functions.
        """
        return ()

    @abstractmethod
    async def open(self) -> None:
        """Get ready. A broker that is unreachable is not an error; publishing reports the outage.

        Raises ConfigError for problems that waiting does not solve.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release all resources; safe to call twice."""

    @abstractmethod
    async def health(self) -> None:
        """Return if the destination answers; raise an OSError otherwise."""

    async def check(self, topics: Collection[str]) -> list[Finding]:  # noqa: ARG002
        """Return the findings of `postroom doctor`; changes nothing at the destination.

        `topics` are topics of events in the outbox. The broker is not open yet; the caller closes
        it afterwards. Raises if the destination is unreachable. By default only that is checked.
        """
        await self.open()
        await self.health()
        return []

    @abstractmethod
    async def publish(self, batch: Sequence[Record], reporter: Reporter) -> None:
        """Send a batch. The events of a key are sent in order and stop at the first that is not
        confirmed; the rest of the key is reported unsent (or unknown, if it may have been sent).
        Keys do not wait for each other. Several calls can run concurrently, never with the same
        key.
        """

    @abstractmethod
    async def publish_alone(self, record: Record, reporter: Reporter) -> None:
        """Send one suspect in isolation from other records: no shared batch, no shared channel, no
        other handler running.
        """

    async def forget_accepted(self, older_than_seconds: float) -> int:  # noqa: ARG002
        """Delete inbox rows older than that; returns how many.

        Only called with the capability `keeps_inbox`.
        """
        return 0
