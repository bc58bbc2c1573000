"""Store: the port to a database, for relays and operators.

A store keeps three things for each stream: events (records), leases (one per lane) and blocks (one
per key with a failed head). All decisions about time use the store's clock.

Every change is atomic. `StoreRetryableError` means that nothing was changed and the call can be
retried (`StoreLockedError`: another transaction holds the locks); `StoreRefusedError` means that
nothing was changed and a retry would fail again; `StoreUnknownError` means that the outcome is
unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from postroom.commands import Commands
from postroom.errors import ConfigError
from postroom.lookup import Lookup
from postroom.model.diagnostics import Finding
from postroom.operation import Operations
from postroom.record import Record
from postroom.search import Search
from postroom.settlement import Settlement
from postroom.transaction import Proof


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of a store. Callers and tests ask for these, never for a store's name."""

    transactions: bool = True  # settles are atomic and fenced
    concurrent_writers: bool = True  # several transactions can write at the same time
    server_clock: bool = True  # leases use one clock that all relays share
    notify: bool = True  # `wait_for_change` detects commits of other processes
    shared: bool = True  # several processes can open it
    adopts: bool = False  # takes over the tables of other programs: it is an AdoptingStore


class Tables(NamedTuple):
    """The names of a store's tables: `prefix` before each name, in `schema`.

    schema    PostgreSQL only; None: the tables are found by the connection's search_path, or the
              database has no schemas
    """

    prefix: str = "postroom_"
    schema: str | None = None

    @property
    def own_prefix(self) -> str | None:
        """The prefix, unless it is the default: part of a URL that names these tables."""
        return None if self.prefix == Tables().prefix else self.prefix

    @property
    def qualified(self) -> str:
        """Schema and prefix in one text, `schema.prefix`, as adapters expect it."""
        return self.prefix if self.schema is None else f"{self.schema}.{self.prefix}"


def refuse_others(noun: str, names: tuple[str | None, str | None], tables: Tables) -> None:
    """Raise ConfigError if an explicit prefix or schema differs from the store's."""
    for name, own, stores in zip(("prefix", "schema"), names, tables, strict=True):
        if own is not None and own != stores:
            raise ConfigError(
                f"the {noun} has {name}={own!r} but the store has {stores!r}; omit it on the "
                f"{noun}, or use the same value in both"
            )


class Member(NamedTuple):
    """A relay that serves a stream, visible to other relays from its first heartbeat."""

    owner: str
    healthy: bool
    name: str = ""


class Lease(NamedTuple):
    """The lease of a lane. `live`: by the store's clock it has not expired, and the clock was not
    set back by more than the length of the lease.
    """

    lane: int
    owner: str | None
    token: int
    live: bool


class Membership(NamedTuple):
    """The result of a heartbeat: the live members, and all lanes of the stream.

    renewed     the held lanes that this heartbeat renewed; a live lane that is missing here was
                locked by another transaction and expires at the end of its last renewal
    """

    members: tuple[Member, ...]
    leases: tuple[Lease, ...]
    renewed: frozenset[int] = frozenset()


class ReadRequest(NamedTuple):
    """A request for events that are due.

    lanes       lanes to read; earlier ones take precedence if `rows` is too small for all
    per_lane    maximum rows per lane
    rows        maximum rows in total: the oldest of each lane, then the oldest of the rest, so
                that no lane starves and events written together are settled together
    size        maximum bytes: the result ends before the first row that exceeds it, but contains
                at least one row
    exclude     hashes of keys to leave out: those in flight when the read starts
    owner, tokens   the owner and its tokens of these lanes. Lanes not held with these tokens return
                no rows, so that an event that an operator just replayed is not sent twice. With
                owner=None the lease is not checked
    """

    stream: str
    lanes: Sequence[int]
    per_lane: int
    rows: int
    size: int
    exclude: Collection[bytes] = ()
    owner: str | None = None
    tokens: Mapping[int, int] = {}


class Staged(NamedTuple):
    """The result of `stage`: the number of moved events, the seconds until the next waiting event
    is due (None if there is none), and whether any event is ready now.
    """

    moved: int
    next_due_seconds: float | None
    ready: bool


class PrunedDead(NamedTuple):
    """The result of `prune_dead`: how many dead letters were deleted, and the `seq` of the last one
    that was looked at (None: there are no more).
    """

    removed: int
    next_seq: int | None


class Schema(NamedTuple):
    """The version of the tables (0: no tables), and the newest version that this code knows."""

    current: int
    newest: int


class Store(Lookup, Commands, Operations, Protocol):
    """A database that holds an outbox; `Lookup`, `Commands` and `Operations` are for operators."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def tables(self) -> Tables:
        """The names of the store's tables, including inbox and counters."""

    @property
    def url(self) -> str:
        """The store's URL with secrets masked, for messages."""

    # -- life ---------------------------------------------------------------------------------
    async def open(self) -> None:
        """Connect. Raises SchemaError when the tables are missing or newer than this code."""

    async def close(self) -> None:
        """Close all connections; safe to call twice."""

    async def migrate(self) -> int:
        """Create or update the tables; returns the version.

        Idempotent, safe in several processes at once; can be called before `open`.
        """

    async def schema(self) -> Schema:
        """Return the version of the tables without changing them; before or after `open`."""

    @property
    def search(self) -> Search:
        """Searches by index, and the optional indexes."""

    def migration_sql(self, after: int = 0, *, transaction: bool = True) -> str:
        """Return the statements that `migrate` runs after that version, to be run by hand.

        The same call gives the same text. transaction=False: for a tool that opens the transaction.
        """

    async def identity(self) -> str:
        """Return the outbox's id, created once with its tables (W9)."""

    async def check(self) -> list[Finding]:
        """Return the findings of `postroom doctor` about the open store; changes nothing."""

    # -- lanes (L) ----------------------------------------------------------------------------
    async def heartbeat(
        self, stream: str, member: Member, lease_seconds: float, held: Mapping[int, int]
    ) -> Membership:
        """Record the member as alive, renew held lanes (lane → token), return the membership.

        A lane is renewed only if owner and token match; an expired lane that no other relay took
        may be renewed. A lane locked by another transaction is left out of `renewed` and must not
        delay the others.
        """

    async def take(
        self, stream: str, owner: str, lanes: Sequence[int], lease_seconds: float
    ) -> dict[int, int]:
        """Take the free or expired ones of these lanes; returns lane → new token.

        Lanes locked by another transaction are left out.
        """

    async def retake(
        self,
        stream: str,
        owner: str,
        held: Mapping[int, int],
        lease_seconds: float,
        doubt_seconds: float = 0.0,
    ) -> dict[int, int]:
        """Give a new token to lanes that are still held with these tokens.

        Afterwards no earlier transaction under the old token can commit (L5). A lane that such a
        transaction keeps locked for long is left out. A lane in which an event was replayed within
        the last `doubt_seconds` is left out too: the settlement to be retried may already have
        finished that event before the replay.
        """

    async def release(self, stream: str, owner: str, held: Mapping[int, int]) -> None:
        """Release lanes; they are free for other relays immediately."""

    async def leave(self, stream: str, owner: str) -> None:
        """Remove the member and release all lanes it still holds.

        Lanes that another transaction has locked are waited for, for about 2 s; the others do not
        wait for them. Raises StoreLockedError if some are still locked then.
        """

    async def leases(self, stream: str) -> Membership:
        """Return members and lanes without changing anything."""

    # -- events (R, B, P) ---------------------------------------------------------------------
    async def read(self, request: ReadRequest) -> list[Record]:
        """Return events that are due, from the lowest `seq` of each lane, in one snapshot.

        The result is in `seq` order. Rows of a blocked key carry its `barrier`. A row that cannot
        be converted to a record (missing field, wrong type) does not raise: it is returned with
        placeholders in the state UNREADABLE, and `settle` can bury or delay it.
        """

    async def settle(self, settlement: Settlement) -> set[int]:
        """Write outcomes of events; returns the lanes that were still held.

        From the check of a lane's token to the commit no other relay can own the lane (L2). Events
        of other lanes are not changed, nor are rows whose id, stream or lane differs. Sets
        `settlement.missing` and `settlement.lost`.
        """

    async def holds(self, proofs: Sequence[Proof]) -> set[int]:
        """Return the positions of the proofs that are committed in this store's tables."""

    async def stage(self, stream: str, lanes: Sequence[int], limit: int) -> Staged:
        """Move due waiting events of these lanes into the index of ready events, and return whether
        there is anything to read. An idle relay runs only this query.
        """

    async def repair_blocks(
        self, stream: str, owner: str, leases: Mapping[int, int], limit: int
    ) -> int:
        """Recompute blocks of held lanes from event states (B4); returns how many changed."""

    async def prune(self, older_than_seconds: float, limit: int) -> int:
        """Delete done events older than that, oldest first; returns how many."""

    async def prune_dead(
        self, stream: str, older_than_seconds: float, after_seq: int, limit: int
    ) -> PrunedDead:
        """Look at the next `limit` dead letters of a stream, in `seq` order, and delete those that
        died longer ago than that. Expired and cancelled events are deleted by `prune`.

        A strict event stays whose number was not skipped: its consumers wait for it.
        """

    def complaints(self) -> Sequence[tuple[str, str]]:
        """Return the items that the store set aside since the last call, each with its reason.

        The relay raises an alarm for each.
        """

    # -- waking and handlers ------------------------------------------------------------------
    async def wait_for_change(self, timeout_seconds: float) -> bool:
        """Return True as soon as another commit is possible, False after the timeout."""

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Open a transaction of the store's driver for a handler; commits on exit (H3)."""

    def sync_transaction(self) -> AbstractContextManager[Any]:
        """Open a transaction for a handler that runs in a thread."""

    async def forget_accepted(
        self, consumer: str, older_than_seconds: float, kept_by: Sequence[str]
    ) -> int:
        """Delete inbox rows of this consumer that are older than that; returns how many.

        Rows of messages that are unfinished or dead in this store are kept, including those in the
        durable inboxes of the consumers `kept_by`: they may be handled again.
        `postroom.transactions.acceptances.forget_old` does it for any store.
        """


class Adopted(NamedTuple):
    """The number of rows moved from a table, and the number left in it."""

    moved: int
    left: int


class AdoptingStore(Store, Protocol):
    """A store with the capability `adopts`, for `postroom migrate adopt`."""

    async def adopt(
        self, table: str, *, on_moved: Callable[[int], object], **options: Any
    ) -> Adopted:
        """Move the rows of another program's outbox table into this outbox.

        The options of the command line are `topic`, `statuses` and `force`. `on_moved` is called
        after each step with the number of moved rows; an exception from it stops between two steps.
        Raises StoreError, without losing a row, for a row that cannot be converted.
        """
