"""Settlement: the outcomes of events, as a relay hands them to a store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from postroom.model import history
from postroom.record import Record, short_error, stored_error
from postroom.transaction import Claim, Proof


class FailedOutcome(NamedTuple):
    """The event failed and will be retried. If it has a key, it blocks the key until then.

    entry       is added to the event's history; None adds nothing
    held        it did not fail: it was not sent, because its topic is paused or at its limit
    """

    record: Record
    attempts: int
    delay: float
    error: str
    entry: history.Entry | None = None
    held: bool = False

    @property
    def last_error(self) -> str:
        """The error as it is stored; that of a held event was masked before."""
        return short_error(self.error) if self.held else stored_error(self.error)


class DeadOutcome(NamedTuple):
    """The event becomes a dead letter; later events of its key continue."""

    record: Record
    attempts: int
    error: str
    entry: history.Entry | None = None

    @property
    def last_error(self) -> str:
        """The error as it is stored."""
        return stored_error(self.error)


class Missing(NamedTuple):
    """An event of a settlement that the store no longer holds under its number.

    replaced    another event has its number: after a fail-over to a lagging replica, or a crash
                that lost committed transactions, numbers are assigned again
    """

    record: Record
    replaced: bool


def new_history(
    outcome: FailedOutcome | DeadOutcome, stored: Mapping[int | str, object]
) -> str | None:
    """Return the history with the outcome's entry, given stored ones by number or id.

    None: it stays as it is.
    """
    record, entry = outcome.record, outcome.entry
    if entry is None:
        return None
    return history.append(stored.get(record.seq, stored.get(record.id)), entry)


@dataclass(slots=True)
class Settlement:
    """Outcomes of events, to be written in one fenced transaction.

    An event is identified by number and id: a row that matches only one of them is another event
    and is not changed.

    leases      lane → token: only lanes still held with this token are changed
    starts      events whose handlers start now: processing, owner, lease end, attempts + 1 (H1)
    returned    events that were started but never ran: pending again, without the attempt
    parked      ready followers of a blocked key, to be moved out of the index; only if the key is
                still blocked below them, because nothing would move them back otherwise
    keep_done   keep done rows, or delete them immediately
    claims      committed effects of handlers in this database, including those of `done`. A lane
                with a claim whose proof is missing is not changed, as if it were not held: the
                database lost the effect in a fail-over or a restore
    missing     set by the store: events of held lanes (without parked ones) whose row was not
                found. In a settlement retried after a lost reply, with keep_done off, it includes
                the events that the first attempt deleted
    lost        set by the store: claims of held lanes whose proof is missing
    expired     events whose time to be sent is over by the relay's clock. The store decides, by its
                own clock: a wrong clock of a relay's host loses no event
    kept        set by the store: those of `expired` whose time is not over, to be sent
    receipts    of done events, by id, as `postroom.model.receipts` writes them; stored with rows
                that are kept, in the statement that marks them done
    """

    stream: str
    owner: str
    lease_seconds: float
    leases: dict[int, int]
    keep_done: bool = True
    starts: list[Record] = field(default_factory=list)
    done: list[Record] = field(default_factory=list)
    failed: list[FailedOutcome] = field(default_factory=list)
    dead: list[DeadOutcome] = field(default_factory=list)
    returned: list[Record] = field(default_factory=list)
    parked: list[Record] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    lost: list[Claim] = field(default_factory=list)
    expired: list[Record] = field(default_factory=list)
    kept: list[Record] = field(default_factory=list)
    receipts: Mapping[str, str] = field(default_factory=dict)

    def freed(self, lanes: Collection[int]) -> list[Record]:
        """Return the finished events in these lanes that unblock their key."""
        ended = chain(self.done, (buried.record for buried in self.dead), self.truly_expired(lanes))
        blocked = [record for record in ended if record.barrier is not None]
        return [r for r in blocked if r.seq >= (r.barrier or 0) and r.lane in lanes]

    def truly_expired(self, lanes: Collection[int]) -> list[Record]:
        """Return the expired events in these lanes, without those that the store keeps."""
        kept = {record.id for record in self.kept}
        return [r for r in self.expired if r.lane in lanes and r.id not in kept]

    def keep(self, places: Collection[tuple[int, str]]) -> None:
        """The store keeps the events at these places: their time is not over by its clock."""
        self.kept = [record for record in self.expired if (record.seq, record.id) in places]

    def part(self, wanted: Callable[[Record], bool]) -> Settlement:
        """Return the part for the selected records."""
        part = self.instead(
            starts=[record for record in self.starts if wanted(record)],
            done=[record for record in self.done if wanted(record)],
            failed=[failure for failure in self.failed if wanted(failure.record)],
            dead=[buried for buried in self.dead if wanted(buried.record)],
            returned=[record for record in self.returned if wanted(record)],
            parked=[record for record in self.parked if wanted(record)],
            expired=[record for record in self.expired if wanted(record)],
        )
        lanes = {record.lane for record in part.records()}
        part.leases = {lane: token for lane, token in self.leases.items() if lane in lanes}
        part.claims = [claim for claim in self.claims if claim.lane in lanes]
        return part

    def apart(self) -> Iterator[Settlement]:
        """Yield one settlement per record, in `seq` order."""
        for seq in sorted({record.seq for record in self.records()}):
            yield self.part(lambda record, seq=seq: record.seq == seq)  # type: ignore[misc]

    def instead(self, **outcomes: Any) -> Settlement:
        """Return a settlement of the same lanes with only these outcomes."""
        part = Settlement(
            self.stream, self.owner, self.lease_seconds, self.leases, self.keep_done, **outcomes
        )
        part.claims, part.receipts = self.claims, self.receipts
        return part

    def records(self) -> Iterator[Record]:
        """Yield every record of the settlement."""
        yield from self.parked
        yield from self.named()

    def named(self) -> Iterator[Record]:
        """Yield every record whose row must exist: all but the parked ones."""
        for records in (self.starts, self.done, self.returned, self.expired):
            yield from records
        for failure in self.failed:
            yield failure.record
        for buried in self.dead:
            yield buried.record

    def find_missing(
        self, lanes: Collection[int], there: Collection[tuple[int, str]]
    ) -> list[Missing]:
        """Return the missing events of these lanes, given the existing numbers and ids."""
        numbers, found = {seq for seq, _ in there}, set(there)
        named = {(r.seq, r.id): r for r in self.named() if r.lane in lanes}
        return [
            Missing(record, record.seq in numbers)
            for place, record in named.items()
            if place not in found
        ]

    def told(self, lanes: Collection[int]) -> list[Record]:
        """Return the events of these lanes whose histories get an entry."""
        outcomes: list[FailedOutcome | DeadOutcome] = [*self.failed, *self.dead]
        told = [outcome.record for outcome in outcomes if outcome.entry is not None]
        return [record for record in chain(told, self.expired) if record.lane in lanes]

    def expiries(
        self, lanes: Collection[int], stored: Mapping[int | str, object]
    ) -> list[tuple[int, str]]:
        """Return number and history of the expired events in these lanes, given stored histories
        by number or id.
        """
        return [
            (record.seq, history.append(stored.get(record.seq, stored.get(record.id)), entry))
            for record in self.truly_expired(lanes)
            for entry in (history.expiry(self.owner, record.expires_us),)
        ]

    def proofs(self) -> list[Proof]:
        """Return the proofs that must exist, in the order of `claims`."""
        return [claim.proof for claim in self.claims]

    def weigh(self, lanes: Collection[int], there: Collection[int]) -> set[int]:
        """Return the lanes whose proofs all exist, given their positions; sets `lost`."""
        self.lost = [
            claim
            for place, claim in enumerate(self.claims)
            if claim.lane in lanes and place not in there
        ]
        return set(lanes) - {claim.lane for claim in self.lost}

    def __bool__(self) -> bool:
        return bool(
            self.starts
            or self.done
            or self.failed
            or self.dead
            or self.returned
            or self.parked
            or self.expired
        )
