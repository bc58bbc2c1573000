"""A search that looks at a bounded number of events: by index, or in a time window."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from postroom.admin.selection import Selection, walk
from postroom.admin.texts import many
from postroom.lookup import Filter
from postroom.model.clock import host_microseconds
from postroom.model.conditions import MISSING, Condition, Header, payload_of
from postroom.record import Record, State
from postroom.search import CORRELATION, OUT_OF_ORDER_US, Reach, is_caused, walk_by
from postroom.store import Store

SCAN_LIMIT = 100_000
WINDOW_HOURS = 24
_WINDOW_US = WINDOW_HOURS * 3_600_000_000
_PLACES = ("after_seq", "until_seq", "from_us", "before_us", "limit", "newest")


@dataclass
class BoundedSearch:
    """Finds the events of a selection; `records` yields them, the properties tell the bounds.

    scan_limit  events to look at, matching or not
    windowed    nothing else narrows a search that begins with the oldest event: only the events of
                the last 24 hours are looked at
    reach       how far it gets; None: it stops at the caller's limit
    not_json    events that were not compared
    """

    selection: Selection
    headers: Sequence[Header] = ()
    conditions: Sequence[Condition] = ()
    scan_limit: int = SCAN_LIMIT
    windowed: bool = field(default=False, init=False)
    without_index: bool = field(default=False, init=False)
    reach: Reach | None = field(default=None, init=False)
    not_json: int = field(default=0, init=False)

    async def records(self, store: Store) -> AsyncIterator[Record]:
        """Yield the matching events in the order of the selection."""
        wanted = await self._bounded(store)
        if wanted is None:
            return
        async for record in walk(store, Selection(wanted, self.selection.group)):
            if all(one.matches(record) for one in self.headers) and self._has_payload(record):
                yield record

    @property
    def is_complete(self) -> bool:
        """Whether it looks at everything that may match."""
        return self.reach is None or self.reach.rows < self.scan_limit

    def notes(self) -> list[str]:
        """Return what the reader must know about the bounds, except where the search stopped."""
        found = []
        if self.windowed:
            found.append(
                f"looked at events of the last {WINDOW_HOURS} hours; others: --since, --after 0"
            )
        if self.without_index:
            found.append("no index of these ids: postroom migrate --index correlation")
        if self.not_json:
            found.append(f"{many(self.not_json, 'event')} without a JSON payload left out")
        return found

    async def stopped_at(self, store: Store) -> Record | None:
        """Return the last event looked at, if the search is not complete."""
        if self.is_complete or self.reach is None:
            return None
        found = await store.find(Filter(after_seq=self.reach.seq - 1, limit=1))
        return found[0] if found else None

    def _has_payload(self, record: Record) -> bool:
        if not self.conditions:
            return True
        payload = payload_of(record)
        if payload is MISSING:
            self.not_json += not record.tombstone
            return False
        return all(one.matches(payload) for one in self.conditions)

    async def _bounded(self, store: Store) -> Filter | None:
        """Return the filter with its bounds; None if nothing can match."""
        wanted = self.selection.filter
        search = store.search
        plain = not (self.headers or self.conditions or self.selection.group)
        if plain and _without_place(wanted) == Filter():
            return await self._in_window(store, wanted)  # everything matches: the limit bounds it
        indexes = await search.indexes() if is_caused(wanted) else frozenset()
        by = walk_by(wanted, indexes, bounded=True)
        self.without_index = is_caused(wanted) and CORRELATION not in indexes
        if by is None and not wanted.newest and wanted.from_us is None and not wanted.after_seq:
            open_ended = wanted.before_us is None and not self.selection.from_start
            self.windowed = open_ended and wanted.state != State.PENDING  # the oldest ones count
            if self.windowed:
                wanted = wanted._replace(from_us=host_microseconds() - _WINDOW_US)
        wanted = await self._in_window(store, wanted)
        self.reach = await search.reach(wanted, self.scan_limit)
        if not self.reach.rows:
            return None
        if wanted.newest:
            if self.without_index and wanted.until_seq is None:  # bounded at both ends
                (last,) = await store.find(Filter(newest=True, limit=1)) or (None,)
                wanted = wanted._replace(until_seq=last.seq if last else 0)
            return wanted._replace(after_seq=max(wanted.after_seq, self.reach.seq - 1))
        return wanted._replace(until_seq=self.reach.seq)

    async def _in_window(self, store: Store, wanted: Filter) -> Filter:
        """Return the filter with the positions of its times: no event before them is looked at."""
        if wanted.from_us is not None:
            first = await store.search.position(wanted.from_us) - 1
            wanted = wanted._replace(after_seq=max(wanted.after_seq, first, 0))
        if wanted.before_us is not None:
            end = await store.search.position(wanted.before_us + 2 * OUT_OF_ORDER_US)
            last = max(0, end - 1)
            given = last if wanted.until_seq is None else wanted.until_seq
            wanted = wanted._replace(until_seq=min(last, given))
        return wanted


def _without_place(wanted: Filter) -> Filter:
    usual = Filter()
    return wanted._replace(**{name: getattr(usual, name) for name in _PLACES})
