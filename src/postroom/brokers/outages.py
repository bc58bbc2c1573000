"""An unreachable broker: the error that says so, and what it means for a batch."""

from __future__ import annotations

from collections.abc import Sequence

from postroom.broker import UNSENT, Outcome, Reporter, Verdict
from postroom.record import Record


class UnreachableError(ConnectionError):
    """The broker is unreachable, refuses the login, or does not answer."""


def report_outage(batch: Sequence[Record], reporter: Reporter, error: object) -> None:
    """Nothing was sent. The first of each key reports why; the others stay behind it."""
    outage = Outcome(Verdict.OUTAGE, str(error))
    told: set[bytes] = set()
    for record in batch:
        reporter.report(record, UNSENT if record.key_hash in told else outage)
        told.add(record.key_hash)
