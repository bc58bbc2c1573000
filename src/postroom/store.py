"""The port to a database: what the relay and the operators ask of a store.

A store keeps three things for each stream: events (records), leases (one per lane) and blocks (one
per key that is held by a failed head). Every decision about time is made on the store's own clock.

A call that changes something either happens whole or not at all. `StoreRetryableError` means that
nothing happened and the same call may be repeated (`StoreLockedError`: because another transaction
has locked rows); `StoreRefusedError` that nothing happened and a repeat would be refused again;
`StoreUnknownError` that nobody knows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, Protocol

from postroom.model.dead_letters import DeadCause
from postroom.model.diagnostics import Finding
from postroom.record import Record, State, short_error
from postroom.transaction import Claim, Proof

MAX_WHO_CHARS = 255


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do. Tests ask these questions; they never ask for a store's name."""

    transactions: bool = True  # a settle is atomic and fenced (G5)
    concurrent_writers: bool = True  # several transactions may be writing at the same time
    server_clock: bool = True  # leases are judged by a clock that all relays share
    notify: bool = True  # `wait_for_change` hears of commits in other processes
    shared: bool = True  # several processes can open it
    adopts: bool = False  # takes over the tables of other programs: it is an AdoptingStore


class Tables(NamedTuple):
    """What a store's tables are called: `prefix` before each name, in `schema`.

    schema    PostgreSQL's; None: the connection finds the tables, by its search_path or because
              the database has no schemas
    """

    prefix: str = "postroom_"
    schema: str | None = None

    @property
    def qualified(self) -> str:
        """Both in one text, `schema.prefix`, as adapters take it."""
        return self.prefix if self.schema is None else f"{self.schema}.{self.prefix}"


class Member(NamedTuple):
    """A relay that serves a stream: seen by the others from its first beat on."""

    owner: str
    healthy: bool
    name: str = ""


class Lease(NamedTuple):
    """The state of a lane. `live`: the store's clock has not passed its end, and has not been set
    back since by more than the length of the lease.
    """

    lane: int
    owner: str | None
    token: int
    live: bool


class Membership(NamedTuple):
    """What a beat sees: the members whose row is alive, and all lanes of the stream.

    renewed     the held lanes that this beat has renewed; a live lane that is not among them was
                locked by another transaction, and ends when its last renewal said
    """

    members: tuple[Member, ...]
    leases: tuple[Lease, ...]
    renewed: frozenset[int] = frozenset()


class ReadRequest(NamedTuple):
    """A question for what may be sent now.

    lanes       where to look; the first in this list go first when there is not room for all
    per_lane    at most so many rows of one lane
    rows        at most so many rows in all: the oldest of each lane, then the oldest of the rest,
                so that no lane starves and what was written together is settled together
    size        at most so many bytes: the answer is cut at the first row that does not fit, but
                there is always at least one
    exclude     keys (hashes) to leave out: those in flight at the moment the read starts
    owner, tokens   who asks, and the tokens by which it holds these lanes. A lane that is not held
                so, in the snapshot of the read, brings nothing: what a person has just taken away
                is not sent once more. Without an owner nothing is asked
    """

    stream: str
    lanes: Sequence[int]
    per_lane: int
    rows: int
    size: int
    exclude: Collection[bytes] = ()
    owner: str | None = None
    tokens: Mapping[int, int] = {}


class FailedOutcome(NamedTuple):
    """This event failed and will be tried again. A keyed one blocks its key until then."""

    record: Record
    attempts: int
    delay: float
    error: str


class DeadOutcome(NamedTuple):
    """This event becomes a dead letter; its key goes on."""

    record: Record
    attempts: int
    error: str


class Missing(NamedTuple):
    """A settlement named this event, but the store does not hold it under its number any more.

    replaced    another event has its number. After a fail-over to a replica that lagged, or a crash
                that lost committed transactions, numbers are given a second time
    """

    record: Record
    replaced: bool


@dataclass(slots=True)
class Settlement:
    """What has become of events, to be written in one fenced transaction.

    An event is named by its number and its id: a row that has only one of them is another event
    and is left as it is.

    leases      lane → token: only lanes that are still held with this token are changed
    starts      their handlers start now: processing, owner, lease end, attempts + 1 (H1)
    returned    were started but never ran: pending again, the attempt is given back
    parked      ready followers of a blocked key, to be moved out of the index; only if the key
                is still blocked below them, since nothing would ever bring them back otherwise
    keep_done   keep done rows for people, or delete them at once
    claims      effects of handlers in this database, those of `done` among them. In a lane with a
                claim whose proof is not there nothing is changed, as if it were not held: the
                database has lost the effect, in a fail-over or a restore
    missing     set by the store: events of lanes that were held (parked ones left out) whose row
                was not found. In a settlement that is repeated after a lost reply, with keep_done
                off, it includes those that the first try has deleted
    lost        set by the store: the claims of lanes that were held whose proof is not there
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

    def freed(self, lanes: Collection[int]) -> list[Record]:
        """Return the events in these lanes whose end opens the way for their blocked key."""
        ended = chain(self.done, (buried.record for buried in self.dead))
        blocked = [record for record in ended if record.barrier is not None]
        return [r for r in blocked if r.seq >= (r.barrier or 0) and r.lane in lanes]

    def part(self, wanted: Callable[[Record], bool]) -> Settlement:
        """Return the part that speaks of the wanted records."""
        part = self.instead(
            starts=[record for record in self.starts if wanted(record)],
            done=[record for record in self.done if wanted(record)],
            failed=[failure for failure in self.failed if wanted(failure.record)],
            dead=[buried for buried in self.dead if wanted(buried.record)],
            returned=[record for record in self.returned if wanted(record)],
            parked=[record for record in self.parked if wanted(record)],
        )
        lanes = {record.lane for record in part.records()}
        part.leases = {lane: token for lane, token in self.leases.items() if lane in lanes}
        part.claims = [claim for claim in self.claims if claim.lane in lanes]
        return part

    def apart(self) -> Iterator[Settlement]:
        """Yield a settlement for each record, in the order of `seq`."""
        for seq in sorted({record.seq for record in self.records()}):
            yield self.part(lambda record, seq=seq: record.seq == seq)  # type: ignore[misc]

    def instead(self, **outcomes: Any) -> Settlement:
        """Return one for the same lanes with only these outcomes."""
        part = Settlement(
            self.stream, self.owner, self.lease_seconds, self.leases, self.keep_done, **outcomes
        )
        part.claims = self.claims
        return part

    def records(self) -> Iterator[Record]:
        """Yield every record that is spoken of."""
        yield from self.parked
        yield from self.named()

    def named(self) -> Iterator[Record]:
        """Yield every record whose row must be there: all but the parked ones."""
        for records in (self.starts, self.done, self.returned):
            yield from records
        for failure in self.failed:
            yield failure.record
        for buried in self.dead:
            yield buried.record

    def find_missing(
        self, lanes: Collection[int], there: Collection[tuple[int, str]]
    ) -> list[Missing]:
        """Return what is missing in these lanes, given the numbers and ids that are there."""
        numbers, found = {seq for seq, _ in there}, set(there)
        named = {(r.seq, r.id): r for r in self.named() if r.lane in lanes}
        return [
            Missing(record, record.seq in numbers)
            for place, record in named.items()
            if place not in found
        ]

    def proofs(self) -> list[Proof]:
        """Return what must be there, in the order of `claims`."""
        return [claim.proof for claim in self.claims]

    def weigh(self, lanes: Collection[int], there: Collection[int]) -> set[int]:
        """Return the lanes whose claims are all there, given the places of those; sets `lost`."""
        self.lost = [
            claim
            for place, claim in enumerate(self.claims)
            if claim.lane in lanes and place not in there
        ]
        return set(lanes) - {claim.lane for claim in self.lost}

    def __bool__(self) -> bool:
        return bool(
            self.starts or self.done or self.failed or self.dead or self.returned or self.parked
        )


class Staged(NamedTuple):
    """What the Stager found: how many events it moved, when the next waiting one is due (seconds,
    None if there is none), and whether any event is ready now.
    """

    moved: int
    next_due_seconds: float | None
    ready: bool


class Stats(NamedTuple):
    """Counts by state (S4.9), and the age in seconds of the oldest event that could go (S2.7)."""

    counts: Mapping[str, int]
    lag_seconds: float
    blocked_keys: int


class Schema(NamedTuple):
    """The version of the tables that are there (0: none), and the newest that this code knows."""

    current: int
    newest: int


class Filter(NamedTuple):
    """Which records to look at; what is None does not matter."""

    stream: str | None = None
    state: State | None = None
    type: str | None = None
    topic: str | None = None
    key: str | None = None
    after_seq: int = 0
    limit: int = 100
    error: str | None = None  # a part of the last error, letter by letter
    from_us: int | None = None  # created then or later …
    before_us: int | None = None  # … and before this


class Standing(NamedTuple):
    """Where an event stands."""

    stream: str
    state: str


class Details(NamedTuple):
    """What else is known of one event: where it stands, its times, who works on it.

    barrier     its key is blocked: events of the key after this `seq` wait
    """

    stage: str
    available_us: int | None
    settled_us: int | None
    lease_owner: str | None
    lease_until_us: int | None
    barrier: int | None


MAX_CAUSES = 10_000


class AuditEntry(NamedTuple):
    """What a person did with the outbox: `what` is replay, bury, skip or prune."""

    who: str
    what: str
    how_many: int
    about: str
    at_us: int = 0


def audit_entry(
    by: str, what: str, how_many: int, ids: Sequence[str], reason: str = ""
) -> AuditEntry:
    """Describe what a person did to these events, within the bounds of what is stored."""
    about = ", ".join(ids) + (f": {reason}" if reason else "")
    return AuditEntry(short_error(by)[:MAX_WHO_CHARS], what, how_many, short_error(about))


class Store(Protocol):
    """A database that holds an outbox."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def tables(self) -> Tables:
        """The names of its tables: what is written beside it, inbox and counters, goes there."""

    @property
    def url(self) -> str:
        """Where the store is, without secrets: for messages."""

    # -- life ---------------------------------------------------------------------------------
    async def open(self) -> None:
        """Connect. Raises SchemaError when the tables are missing or newer than this code."""

    async def close(self) -> None:
        """Let go of everything; twice is safe."""

    async def migrate(self) -> int:
        """Bring the tables up to date; safe in many processes at once. Returns the version.

        May be called before `open`.
        """

    async def schema(self) -> Schema:
        """Look at the version of the tables, without changing anything; before or after `open`."""

    def migration_sql(self, after: int = 0) -> str:
        """Return what `migrate` would run from that version on, for people with a DBA."""

    async def identity(self) -> str:
        """Return the outbox' own id, made once with its tables (W9)."""

    async def check(self) -> list[Finding]:
        """Return what `postroom doctor` should report about the open store; changes nothing."""

    # -- lanes (L) ----------------------------------------------------------------------------
    async def heartbeat(
        self, stream: str, member: Member, lease_seconds: float, held: Mapping[int, int]
    ) -> Membership:
        """Show the member as alive, renew the held lanes (lane → token), and look around.

        A lane is renewed only if owner and token are still these; a lane that has run out but that
        nobody took may be renewed. A lane that another transaction has locked is left out of
        `renewed`: it must not keep the others from being renewed.
        """

    async def take(
        self, stream: str, owner: str, lanes: Sequence[int], lease_seconds: float
    ) -> dict[int, int]:
        """Take those of the lanes that are free or expired; returns lane → new token.

        A lane that another transaction has locked is left out, and taken later.
        """

    async def retake(
        self,
        stream: str,
        owner: str,
        held: Mapping[int, int],
        lease_seconds: float,
        doubt_seconds: float = 0.0,
    ) -> dict[int, int]:
        """Take lanes again that are still held with these tokens: each gets a new token.

        A lane in which an event was replayed within the last `doubt_seconds` is not taken: the
        settlement that is to be repeated may have ended that event before.

        After it, no earlier transaction under the old token can commit any more (L5). A lane that
        such a transaction keeps locked for long is left out.
        """

    async def release(self, stream: str, owner: str, held: Mapping[int, int]) -> None:
        """Give lanes back, at once free for others."""

    async def leave(self, stream: str, owner: str) -> None:
        """Remove the member and free whatever it still holds."""

    # -- events (R, B, P) ---------------------------------------------------------------------
    async def read(self, request: ReadRequest) -> list[Record]:
        """Return what may be sent now, from the lowest `seq` of each lane, in one snapshot.

        The answer is in the order of `seq`. Rows of a blocked key carry its `barrier`. A row that
        cannot become a record (a field is missing, or of another type) does not raise: it comes
        with placeholders, in the state UNREADABLE, and `settle` can bury it and delay it.
        """

    async def settle(self, settlement: Settlement) -> set[int]:
        """Write what has become of events; returns the lanes that were still held.

        From the check of a lane's token to the commit nobody else can own the lane (L2). What lies
        in other lanes is left as it is, and so is a row whose id, stream or lane is another one's.
        Sets `settlement.missing` and `settlement.lost`.
        """

    async def holds(self, proofs: Sequence[Proof]) -> set[int]:
        """Return the places of those proofs that are in this store: committed, in its tables."""

    async def stage(self, stream: str, lanes: Sequence[int], limit: int) -> Staged:
        """Move due waiting events of these lanes into the index of ready ones, and say whether
        there is anything to read. This is the one question that an idle relay asks.
        """

    async def repair_blocks(
        self, stream: str, owner: str, leases: Mapping[int, int], limit: int
    ) -> int:
        """Repair blocks of held lanes from state (B4); returns how many were changed."""

    async def prune(self, older_than_seconds: float, limit: int) -> int:
        """Delete done events settled longer ago than that, oldest first; returns how many."""

    # -- people (L7, B6) ----------------------------------------------------------------------
    async def get(self, event_id: str) -> Record | None: ...

    async def look_up(self, ids: Sequence[str]) -> dict[str, Standing]:
        """Return where the events with these ids stand; those that are not there are left out."""

    async def open_keys(self, stream: str, limit: int) -> list[bytes]:
        """Return the key hashes of unfinished events of a stream, one for each, in no order."""

    async def find(self, wanted: Filter) -> list[Record]:
        """Return records in `seq` order."""

    async def stats(self, stream: str | None = None) -> Stats: ...

    async def leases(self, stream: str) -> Membership:
        """Look at members and lanes without changing anything."""

    async def streams(self) -> list[str]:
        """Return the streams that have events or leases."""

    async def details(self, event_id: str) -> Details | None:
        """Return what `get` leaves out, for the eyes of a person."""

    async def dead_causes(
        self, stream: str | None = None, limit: int = MAX_CAUSES
    ) -> list[DeadCause]:
        """Return why dead letters died, the most frequent first, at most so many; no payloads."""

    async def replay(
        self, ids: Sequence[str], *, new_id: bool = False, by: str | None = None
    ) -> int:
        """Send dead or done events again, from attempt 0; returns how many.

        With `new_id` copies under fresh ids, which no inbox has seen. What is over is in nobody's
        flight: unlike `bury` and `skip` (L7) it leaves the lanes to their owners, and notes in
        their leases that something was replayed. `by` is the person: the deed is written down in
        the same transaction.
        """

    async def bury(self, ids: Sequence[str], reason: str, *, by: str | None = None) -> int:
        """Make unfinished events dead letters; returns how many."""

    async def record_audit(self, audit_entry: AuditEntry) -> None:
        """Write down a deed by itself, with the store's time."""

    async def audit_log(self, limit: int) -> list[AuditEntry]:
        """Return what people did, the last first."""

    async def skip(self, event_id: str, reason: str, *, by: str | None = None) -> None:
        """Bury an event and put a `postroom.skipped` marker in its place.

        A strict event leaves its number to the marker: the dead letter has `kseq` 0, and a replay
        gives it a new number and a place at the end.
        """

    def complaints(self) -> Sequence[tuple[str, str]]:
        """Return what the store set aside since the last call, each with the reason.

        The relay raises an alarm for each. A store that sets nothing aside returns nothing.
        """

    # -- waking and handlers ------------------------------------------------------------------
    async def wait_for_change(self, timeout_seconds: float) -> bool:
        """Return True as soon as something may have been committed, False after the time."""

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Open a transaction of the store's own driver for a handler; commits on exit (H3)."""

    def sync_transaction(self) -> AbstractContextManager[Any]:
        """Open the same for a handler that runs in a thread."""

    async def forget_accepted(
        self, consumer: str, older_than_seconds: float, kept_by: Sequence[str]
    ) -> int:
        """Delete inbox rows of this consumer that are older than that; returns how many.

        Rows of messages that are unfinished or dead in this store stay, also of those that the
        consumers `kept_by` keep in their durable inboxes: they may come again.
        `postroom.transactions.acceptances.forget_old` does it for any store.
        """


class Adopted(NamedTuple):
    """How many rows of a table were moved, and how many are left in it."""

    moved: int
    left: int


class AdoptingStore(Store, Protocol):
    """A store with the capability `adopts`: `postroom migrate adopt` asks for it."""

    async def adopt(
        self, table: str, *, on_moved: Callable[[int], object], **options: Any
    ) -> Adopted:
        """Move the rows of another program's outbox table into this outbox.

        The options of the command line are `topic`, `statuses` and `force`. `on_moved` is called
        after each step with the number of rows that it moved; what it raises ends the work between
        two steps. Raises StoreError, with nothing lost, for a row that does not fit.
        """
