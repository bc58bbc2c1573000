"""The questions of a story to the stores of several services, and its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from postroom.admin.bounded_search import SCAN_LIMIT, BoundedSearch
from postroom.admin.selection import Selection
from postroom.admin.story_tree import Node, Place
from postroom.admin.texts import many
from postroom.errors import SchemaError, StoreError
from postroom.event import INBOX_STREAM_PREFIX, STORED_IDS
from postroom.lookup import Accepted, Filter
from postroom.model.envelope import ID
from postroom.record import State, row_id
from postroom.search import CORRELATION, Outline
from postroom.store import Store

LIMIT = 1_000
CHILDREN = 20
_MOST_RECEIVED = 1_000  # events whose inbox rows are looked up
_ROUNDS = 20  # of looking for causes with other correlation ids


class Found(NamedTuple):
    """The rows of one store."""

    store: str
    rows: tuple[Outline, ...]
    notes: tuple[str, ...] = ()
    accepted: tuple[Accepted, ...] = ()


class Asked(NamedTuple):
    """A store that is asked: its URL for messages, its short name, and whether it is open.

    A store that is not open is opened for the first question, and closed at the end.
    """

    url: str
    label: str
    store: Store
    is_open: bool = False


async def gather(
    stores: Sequence[Asked], asked: str, limit: int
) -> tuple[list[Found], dict[str, str]]:
    """Return the rows of each store, and the errors of the stores that did not answer.

    First the event itself is looked up everywhere, for its correlation id; then all events of that
    correlation id; then causes that are missing, which may have another one.
    """
    readers = [Reader(one, limit) for one in stores]
    failed: dict[str, str] = {}

    async def each(ids: Iterable[str], correlations: Iterable[str]) -> None:
        wanted, known = list(ids), list(correlations)
        for reader in readers:
            if reader.url in failed:
                continue
            try:
                await reader.look(wanted, known)
            except (StoreError, SchemaError) as error:
                failed[reader.url] = str(error)

    await each([asked], [])
    seen = [row for reader in readers for row in reader.rows.values()]
    correlations = {asked} | {row.correlation_id for row in seen if row.correlation_id}
    await each(correlations, correlations)
    looked_for = {asked} | correlations
    for _ in range(_ROUNDS):
        rows = [row for reader in readers for row in reader.rows.values()]
        ids = {reader.name_of(row) for reader in readers for row in reader.rows.values()}
        missing = {row.causation_id for row in rows if row.causation_id} - ids - looked_for
        if not missing:
            break
        looked_for |= missing
        await each(sorted(missing)[:limit], [])
    known = {reader.name_of(row) for reader in readers for row in reader.rows.values()}
    for reader in readers:
        if reader.url not in failed:
            try:
                await reader.receive(sorted(known)[:_MOST_RECEIVED])
            except (StoreError, SchemaError) as error:
                failed[reader.url] = str(error)
        with suppress(StoreError):
            await reader.close()
    found = [reader.found() for reader in readers]
    return found, failed


class Reader:
    """Asks one store; opened at the first question."""

    def __init__(self, asked: Asked, limit: int) -> None:
        self.url = asked.url
        self.label = asked.label
        self.rows: dict[str, Outline] = {}
        self.notes: list[str] = []
        self._store = asked.store
        self._closes = not asked.is_open
        self._limit = limit
        self._is_prepared = False
        self._consumers: list[str] = []
        self._names: dict[str, str] = {}
        self._accepted: list[Accepted] = []

    async def look(self, ids: Sequence[str], correlations: Sequence[str]) -> None:
        """Collect the events with these ids, in outbox and durable inboxes, and of these
        correlation ids.
        """
        if not self._is_prepared:
            self._is_prepared = True
            if self._closes:
                await self._store.open()
            streams = await self._store.streams()
            ends = [one.removeprefix(INBOX_STREAM_PREFIX) for one in streams]
            self._consumers = [c for s, c in zip(streams, ends, strict=True) if s != c]
        stored = [row_id(consumer, one) for consumer in self._consumers for one in ids]
        await self._keep(await self._store.search.outlines([*ids, *stored]))
        for one in correlations:
            await self._keep(await self._of(one))

    async def _of(self, correlation: str) -> list[Outline]:
        search = self._store.search
        if CORRELATION in await search.indexes():
            rows = await search.outline("correlation_id", correlation, self._limit + 1)
            rows += await search.outline("causation_id", correlation, self._limit + 1)
        else:
            bounded = BoundedSearch(Selection(Filter(correlation_id=correlation)))
            ids: list[str] = []
            async for record in bounded.records(self._store):
                ids.append(record.id)
                if len(ids) > self._limit:
                    break
            rows = await search.outlines(ids)
            self._note(f"{self.label}: no index; looked at the events of the last 24 hours")
            self._note("to find all: postroom migrate --index correlation")
            if not bounded.is_complete:
                self._note(f"{self.label}: looked at the first {SCAN_LIMIT:,} events of these only")
        rows = list({row.seq: row for row in rows}.values())
        if len(rows) > self._limit:
            self._note(f"{self.label}: more than {many(self._limit, 'event')}; others: --limit")
        return rows[: self._limit]

    async def _keep(self, rows: Sequence[Outline]) -> None:
        for row in rows:
            self.rows[row.id] = row
            if row.id.startswith(STORED_IDS) and row.id.count("/") == 1:  # a hash, for a long id
                record = await self._store.get(row.id)
                with suppress(ValueError, AttributeError):
                    self._names[row.id] = str(record.headers.get(ID, row.id)) if record else row.id

    async def receive(self, ids: Sequence[str]) -> None:
        """Collect the inbox rows of these events."""
        self._accepted = await self._store.acceptances(ids) if ids else []

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def name_of(self, row: Outline) -> str:
        """Return the id of the event that a row is about."""
        if not row.id.startswith(STORED_IDS):
            return row.id
        return self._names.get(row.id) or row.id.split("/", 2)[-1]

    def found(self) -> Found:
        """Return all rows, renamed to their events."""
        named = [row._replace(id=self.name_of(row), topic=row.id) for row in self.rows.values()]
        return Found(self.label, tuple(named), tuple(self.notes), tuple(self._accepted))

    async def close(self) -> None:
        if self._closes:
            await self._store.close()


def merge(found: Sequence[Found]) -> list[Node]:
    """Return the events; one that several stores have is one node with several places."""
    nodes: dict[str, Node] = {}
    for one in found:
        for row in one.rows:
            node = nodes.setdefault(row.id, Node(row.id, row.type))
            node.cause = node.cause or row.causation_id
            node.correlation_id = node.correlation_id or row.correlation_id
            stored = row.topic.startswith(STORED_IDS)
            consumer = row.stream.removeprefix(INBOX_STREAM_PREFIX) if stored else None
            node.places.append(
                Place(
                    one.store,
                    consumer,
                    row.state,
                    row.created_us,
                    row.settled_us,
                    row.attempts,
                    row.next_attempt_us,
                    row.last_error,
                )
            )
    for store, accepted in [(one.store, row) for one in found for row in one.accepted]:
        receiver = nodes.get(accepted.id)
        consumers = {place.inbox for place in receiver.places} if receiver else set()
        if receiver is not None and accepted.consumer.partition("/")[0] not in consumers:
            state = State.DONE if accepted.done else State.PROCESSING
            at_us = receiver.at_us if accepted.at_us is None else accepted.at_us
            receiver.places.append(Place(store, accepted.consumer, str(state), at_us, at_us))
    for node in nodes.values():
        node.places.sort(key=lambda place: (place.inbox is not None, place.at_us))
    return list(nodes.values())
