"""The effects that must still exist in a lane before more of it is started, without input or
output.

A relay has read the events e1 and e2 of a key, and settled e1 as done. The database fails over to a
replica that has neither the effect of e1 nor its settle: there e1 must be handled again. If the
relay now started e2 from memory, e2 would take effect first.

Each settle therefore names, besides the effects that it completes, some that earlier settles of its
lane have completed: the witnesses. A replica holds the transactions of its primary up to some
point. If a witness is there, everything committed before it is there too.

A witness is replaced by an effect that started later: one whose event was started in the same
settle that completed the witness' event, or after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import NamedTuple

from postroom.settlement import Settlement
from postroom.transaction import Claim


class _Witness(NamedTuple):
    settle: int  # the number of the settle that completed its event
    at: float
    claim: Claim


class Witnesses:
    """The witnesses of each lane; after `keep_seconds` their inbox rows may be pruned."""

    def __init__(self, keep_seconds: float) -> None:
        self._keep_seconds = keep_seconds
        self._settles = 0
        self._starts: dict[str, tuple[int, int]] = {}  # event → its lane, the settle of its start
        self._lanes: defaultdict[int, list[_Witness]] = defaultdict(list)

    def of(self, lanes: Collection[int], now: float) -> list[Claim]:
        """Return the effects that must exist for a settle of these lanes."""
        if not self._lanes:
            return []
        young = now - self._keep_seconds
        return [w.claim for lane in lanes for w in self._lanes.get(lane, ()) if w.at >= young]

    def settled(self, settlement: Settlement, lanes: Collection[int], now: float) -> None:
        """A settlement was written in these lanes."""
        if not (settlement.claims or settlement.starts or self._starts):
            return  # a destination outside of the store
        self._settles += 1
        started = {
            record.id: self._starts.pop(record.id, (0, 0))[1] for record in settlement.named()
        }
        ended = {record.id for record in settlement.done if record.lane in lanes}
        fresh = defaultdict[int, list[Claim]](list)
        for claim in settlement.claims:
            if claim.id in ended:
                fresh[claim.lane].append(claim)
        for lane, claims in fresh.items():
            since = max(started[claim.id] for claim in claims)
            self._lanes[lane] = [
                *(w for w in self._lanes[lane] if w.settle > since),
                *(_Witness(self._settles, now, claim) for claim in claims),
            ]
        for record in settlement.starts:
            if record.lane in lanes:
                self._starts[record.id] = (record.lane, self._settles)

    def forget(self, lanes: Collection[int]) -> None:
        """These lanes are no longer ours: their next owner starts with what is there."""
        for lane in lanes:
            self._lanes.pop(lane, None)
        gone = [name for name, (lane, _) in self._starts.items() if lane in lanes]
        for name in gone:
            del self._starts[name]
