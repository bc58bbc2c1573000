"""Lookup: the operators' questions to a store. Nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from postroom.commands import AuditEntry
from postroom.model.controls import Control
from postroom.model.dead_letters import DeadCause
from postroom.record import Record, State

MAX_CAUSES = 10_000
MAX_INBOX_ROWS = 10_000
RECENT_SECONDS = 60


class Filter(NamedTuple):
    """A filter of records; None matches everything."""

    stream: str | None = None
    state: State | None = None
    type: str | None = None
    topic: str | None = None
    key: str | None = None
    after_seq: int = 0
    limit: int = 100
    error: str | None = None  # a literal substring of the last error
    from_us: int | None = None  # created at or after
    before_us: int | None = None  # created before
    settled_before_us: int | None = None  # finished before
    correlation_id: str | None = None
    causation_id: str | None = None
    until_seq: int | None = None  # up to this position
    newest: bool = False  # the newest first: `limit` counts from the end


class Standing(NamedTuple):
    """The stream and state of an event."""

    stream: str
    state: str
    replaced_by: str | None = None  # of a dead letter: the id under which it was sent with changes


class Details(NamedTuple):
    """Stage, lease and timestamps of one event.

    barrier     set if the key is blocked: events of the key after this `seq` wait
    history     its failed attempts and operators' commands, as `postroom.model.history` reads it
    receipt     JSON: where its destination put it
    replaced_by     of a dead letter that was edited: the id under which it was sent
    """

    stage: str
    available_us: int | None
    settled_us: int | None
    lease_owner: str | None
    lease_until_us: int | None
    barrier: int | None
    history: str | None = None
    receipt: str | None = None
    replaced_by: str | None = None


class Accepted(NamedTuple):
    """A message in an inbox: the consumer that accepted it, and when by the database's clock.

    done        False: it was received, and its handler has not committed yet
    """

    consumer: str
    id: str
    at_us: int | None
    done: bool


class InboxStats(NamedTuple):
    """The inbox of a consumer.

    rows        of done messages, of which at most MAX_INBOX_ROWS are counted, as of `recent`
    oldest_us   when the oldest of them was done
    recent      messages done in the last RECENT_SECONDS
    newest_us   when the last one was done
    """

    consumer: str
    rows: int
    oldest_us: int | None
    recent: int = 0
    newest_us: int | None = None


class Stats(NamedTuple):
    """Counts by state, the age in seconds of the oldest event due, and the blocked keys."""

    counts: Mapping[str, int]
    lag_seconds: float
    blocked_keys: int


class Lookup(Protocol):
    """The part of a store that answers operators."""

    async def get(self, event_id: str) -> Record | None: ...

    async def look_up(self, ids: Sequence[str]) -> dict[str, Standing]:
        """Return stream and state of the events with these ids; unknown ids are left out."""

    async def open_keys(self, stream: str, limit: int) -> list[bytes]:
        """Return the key hash of each unfinished event of a stream, at one point in time."""

    async def find(self, wanted: Filter) -> list[Record]:
        """Return records in `seq` order, or in the opposite order (`newest`).

        Raises ConfigError for a correlation or causation id if nothing bounds the search: no index,
        no key, no state of few events, no `until_seq` (see `Search.reach`).
        """

    async def stats(self, stream: str | None = None) -> Stats: ...

    async def streams(self) -> list[str]:
        """Return the streams that have events or leases."""

    async def details(self, event_id: str) -> Details | None:
        """Return stage, lease and timestamps, which `get` omits."""

    async def acceptances(self, ids: Sequence[str]) -> list[Accepted]:
        """Return the inbox rows of messages with these ids, of all consumers, by time."""

    async def dead_causes(
        self, stream: str | None = None, limit: int = MAX_CAUSES
    ) -> list[DeadCause]:
        """Return the causes of dead letters, most frequent first, at most `limit`; no payloads."""

    async def inboxes(self) -> list[InboxStats]:
        """Return the consumers that have rows in the inbox, in order, by index."""

    async def controls(self) -> list[Control]:
        """Return all controls; by the store's clock a pause may be over. One cheap query."""

    async def audit_log(self, limit: int) -> list[AuditEntry]:
        """Return audit entries, newest first."""
