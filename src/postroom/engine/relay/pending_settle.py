"""One settle that is about to be written, and what its commit frees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from postroom.engine.relay.key_run import KeyRun
from postroom.record import Record
from postroom.settlement import Settlement


class PendingSettle(NamedTuple):
    """One settle: the outcomes to write, and the keys that its commit frees."""

    settlement: Settlement
    lanes: set[int]
    closing: list[tuple[bytes, KeyRun]]
    starts: list[tuple[Record, asyncio.Future[bool]]]
    alarms: list[tuple[Record, str]]

    def part(self, wanted: Callable[[Record], bool]) -> tuple[PendingSettle, PendingSettle]:
        """Split it in two: the selected part, and the rest. Keys stay whole."""
        return self._only(wanted), self._only(lambda record: not wanted(record))

    def without(self, record: Record) -> PendingSettle:
        """Leave out an event that has become a dead letter; its handler does not start."""
        for started, granted in self.starts:
            if started.seq == record.seq and not granted.done():
                granted.set_result(False)
        return self._replace(
            settlement=self.settlement.part(lambda other: other.seq != record.seq),
            starts=[(r, granted) for r, granted in self.starts if r.seq != record.seq],
        )

    def _only(self, wanted: Callable[[Record], bool]) -> PendingSettle:
        settlement = self.settlement.part(wanted)
        return PendingSettle(
            settlement,
            {record.lane for record in settlement.records()},
            [(key, run) for key, run in self.closing if wanted(run.records[0])],
            [(record, granted) for record, granted in self.starts if wanted(record)],
            [(record, error) for record, error in self.alarms if wanted(record)],
        )
