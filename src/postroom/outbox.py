"""Outbox: `add` writes an event into the caller's transaction.

An outbox has no connection, never commits, and is independent of the relay. The writes are defined
once, as steps without I/O; `Outbox` and `SyncOutbox` only execute them.

Order (W8): events of one key keep their write order if their writers are coordinated, which means
that they lock the same row *before* `add`. For writers that are not coordinated, use
`ordering="strict"`: the outbox then numbers each key's events, one transaction at a time.
"""

from __future__ import annotations

import copy
import json
import logging
from collections import Counter as Tally
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Self, TypeVar, overload

from postroom import notifier as notifier_module
from postroom.connection import Connection, SyncConnection
from postroom.delivery import Watch, until_done
from postroom.errors import (
    ConfigError,
    DuplicateEventError,
    EventError,
    TransactionError,
)
from postroom.event import DEFAULT_TOPIC, Event
from postroom.model import add_hooks
from postroom.model.clock import to_microseconds
from postroom.model.codec import JSON, encode
from postroom.model.durations import Seconds
from postroom.notifier import Notifier
from postroom.record import PARTITION, PARTITION_KEY, TOMBSTONE, key_hash, lane_of
from postroom.routes import Routes
from postroom.store import Store, Tables, refuse_others
from postroom.transaction import AsyncTransaction, Row, SyncTransaction
from postroom.transactions import resolve, resolve_sync, waiting
from postroom.transactions.inserts import OnDuplicate, insert_new, insert_strict, refuse
from postroom.transactions.queries import DEFAULT_PREFIX, qualify
from postroom.transactions.steps import Steps, run, run_async

Ordering = Literal["keyed", "strict"]
AnyConn = TypeVar("AnyConn", bound=Connection)
SyncConn = TypeVar("SyncConn", bound=SyncConnection)

_log = logging.getLogger(__name__)
_to_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def to_row(event: Event, topic: str) -> Row:
    """Convert an event to a row; raises PayloadError if the payload cannot be encoded."""
    body, encoded_as = (b"", JSON) if event.tombstone else encode(event.payload)
    is_json = encoded_as == JSON and not event.tombstone
    headers = _to_text(dict(event.headers)) if event.headers else None
    hashed = key_hash(event.aggregate_type, event.key, event.id)
    return Row(  # positional arguments are faster
        event.id,
        event.stream,
        lane_of(hashed),
        hashed,
        event.type,
        topic,
        event.key,
        event.aggregate_type,
        event.aggregate_id,
        body.decode() if is_json else None,
        None if is_json else body,
        event.content_type or encoded_as,
        headers,
        event.correlation_id,
        _to_text(event.causation_path) if event.causation_path else None,
        event.schema_version,
        None,  # kseq
        to_microseconds(event.occurred_at),
        None if event.available_at is None else to_microseconds(event.available_at),
        len(body) + (len(headers.encode()) if headers else 0),
        event.causation_id,
        _options(event),
        None if event.deliver_by is None else to_microseconds(event.deliver_by),
    )


def _options(event: Event) -> str | None:
    """Return the options of an event for its destination as JSON; None for most events."""
    if not event.tombstone and event.partition is None and event.partition_key is None:
        return None
    found = {
        TOMBSTONE: event.tombstone or None,
        PARTITION: event.partition,
        PARTITION_KEY: event.partition_key,
    }
    return _to_text({name: value for name, value in found.items() if value is not None})


@dataclass(frozen=True, slots=True)
class _Kick:
    """A kick to be sent after a commit; equal kicks are sent once."""

    outbox: _Writer
    streams: frozenset[str]

    def __call__(self) -> None:
        self.outbox.kick(self.streams)


class _Writer:
    """Settings and steps that both outboxes share."""

    def __init__(
        self,
        *,
        routes: Routes | Mapping[str, str] | None = None,
        default_topic: str = DEFAULT_TOPIC,
        ordering: Ordering = "keyed",
        prefix: str | None = None,
        schema: str | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        if isinstance(routes, Routes):
            if default_topic not in {DEFAULT_TOPIC, routes.default}:
                raise ConfigError(
                    "default_topic: set it with Routes(…, default=…), not on the outbox"
                )
            self._routes = routes
        else:
            self._routes = Routes(routes, default_topic)
        if ordering not in {"keyed", "strict"}:
            raise ConfigError(f"ordering must be 'keyed' or 'strict', not {ordering!r}")
        self._strict = ordering == "strict"
        self._names = (prefix, schema)
        self.prefix = qualify(DEFAULT_PREFIX if prefix is None else prefix, schema)
        self._notifier = notifier
        self._open: dict[int, set[str]] = {}  # id of a connection in transaction() → its streams

    @property
    def names_tables(self) -> bool:
        """Whether a prefix or schema was set explicitly."""
        return self._names != (None, None)

    def within(self, tables: Tables) -> Self:
        """Return this outbox for a store's tables.

        Raises ConfigError if an explicit prefix or schema differs from the store's.
        """
        refuse_others("outbox", self._names, tables)
        twin = copy.copy(self)
        twin.prefix = tables.qualified
        return twin

    def kick(self, streams: Collection[str] | None = None) -> None:
        """Wake the relays of these streams, or of all streams; call it after the commit.

        Never raises. Without a kick, relays find the events at their next poll.
        """
        if isinstance(streams, str):
            streams = (streams,)
        wanted = None if streams is None else frozenset(streams)
        notifier_module.kick(wanted)
        if self._notifier is not None:
            try:
                self._notifier.notify(wanted)
            except Exception:
                _log.exception(
                    "cannot notify relays in other processes; they find events by polling"
                )

    def _row(self, event: Event) -> Row:
        if not isinstance(event, Event):
            raise TypeError(
                f"an outbox takes Event objects, not {type(event).__qualname__}: "
                "add(conn, Event(type, payload, key=…)), or add_many(conn, [Event(…), …])"
            )
        if self._strict:
            _check_strict(event)
        if add_hooks.hooks:
            event = add_hooks.seen(event)
        return to_row(event, self._routes.topic_of(event))

    def _rows(self, events: list[Event], on_duplicate: OnDuplicate) -> list[Row]:
        """Validate and encode all events before the first statement runs."""
        _check_on_duplicate(on_duplicate)
        rows = [self._row(event) for event in events]
        first = {row.id: row for row in reversed(rows)}
        if len(first) == len(rows):
            return rows
        if on_duplicate == "ignore":
            return [row for row in rows if first[row.id] is row]
        raise DuplicateEventError(i for i, n in Tally(row.id for row in rows).items() if n > 1)

    def _write(
        self,
        tx: AsyncTransaction | SyncTransaction,
        rows: list[Row],
        on_duplicate: OnDuplicate = "raise",
    ) -> Steps[set[str]]:
        """Write the rows; returns the ids of those that are new."""
        duplicates: list[str] = []
        if self._strict:
            duplicates = yield from insert_strict(tx, rows)
        elif on_duplicate == "ignore":
            duplicates = yield from insert_new(tx, rows)
        elif (yield tx.insert(rows)) != len(rows):
            duplicates = [row.id for row in rows]
        self._remember(tx, {row.stream for row in rows})
        if duplicates:
            yield from refuse(tx, duplicates, on_duplicate)
        return {row.id for row in rows}.difference(duplicates)

    def _remember(self, tx: AsyncTransaction | SyncTransaction, streams: Collection[str]) -> None:
        """Kick these streams after the commit, if the driver reports commits."""
        scope = self._open.get(id(tx.target)) if self._open else None
        if scope is not None:
            scope.update(streams)
        else:
            tx.after_commit(_Kick(self, frozenset(streams)))

    @contextmanager
    def _scope(self, target: object) -> Iterator[None]:
        """Collect the streams of events added on this connection; kick them at the end."""
        if id(target) in self._open:
            raise TransactionError(
                "outbox.transaction(conn) is already open on this connection; call add directly"
            )
        streams = self._open[id(target)] = set()
        try:
            yield
        finally:
            del self._open[id(target)]
        self.kick(streams or None)


def _check_strict(event: Event) -> None:
    if event.key is None:
        raise EventError(
            "key", "is missing: strict order numbers the events of a key. Set a key, or use an "
            "outbox with ordering='keyed'",
        )  # fmt: skip
    if event.deliver_by is not None:
        raise EventError(
            "deliver_by", "is not supported with strict order: an expired event would leave a gap "
            "in the numbers of its key. Omit it, or use an outbox with ordering='keyed'",
        )  # fmt: skip
    if event.available_at is not None:
        raise EventError(
            "available_at", "is not supported with strict order: every later event of the key "
            "would wait for this one. Omit it, or use an outbox with ordering='keyed'",
        )  # fmt: skip


def _check_on_duplicate(on_duplicate: str) -> None:
    if on_duplicate not in {"raise", "ignore"}:
        raise ValueError(f"on_duplicate must be 'raise' or 'ignore', not {on_duplicate!r}")


def _listed(events: Iterable[Event]) -> list[Event]:
    if isinstance(events, Event):
        raise TypeError("add_many takes an iterable of events; use add for a single event")
    return list(events)


def _written(events: list[Event], new: set[str]) -> list[Event]:
    """Return the events whose ids are new, each once."""
    if len(new) == len(events):
        return events
    first: dict[str, Event] = {}
    for event in events:
        if event.id in new:
            first.setdefault(event.id, event)
    return list(first.values())


class Outbox(_Writer):
    """Writes events into the caller's transaction: they exist if and only if it commits.

    routes          event type → topic, for events without a topic
    default_topic   topic of events that no route matches
    ordering        "strict" numbers each key's events, for writers that are not coordinated
    prefix          prefix of the tables; default: `postroom_`
    schema          schema of the tables; default: the connection's first one
    notifier        sends kicks to other processes

    `conn` is the caller's connection of sqlite3, aiosqlite, psycopg, asyncpg, PyMySQL,
    mysqlclient or asyncmy, a connection or session of SQLAlchemy, or Django's connection.
    """

    @overload
    async def add(
        self, conn: Connection, event: Event, *, on_duplicate: Literal["raise"] = "raise"
    ) -> Event: ...
    @overload
    async def add(
        self, conn: Connection, event: Event, *, on_duplicate: OnDuplicate
    ) -> Event | None: ...
    async def add(
        self, conn: Connection, event: Event, *, on_duplicate: OnDuplicate = "raise"
    ) -> Event | None:
        """Write an event into the transaction that is open on `conn`; never commits.

        Returns the event. With `on_duplicate="ignore"` an event whose id exists is not written and
        not compared, and None is returned.

        Raises AutocommitError in autocommit mode, UnsupportedConnectionError (a TypeError) for an
        unsupported object, PayloadError, and DuplicateEventError if the id exists. The transaction
        stays usable after each of them. After a cancelled add it must be rolled back: whether the
        event was written is unknown.
        """
        row = self._row(event)
        tx = resolve(conn, self.prefix)
        if on_duplicate != "raise":
            _check_on_duplicate(on_duplicate)
            return event if await run_async(self._write(tx, [row], on_duplicate)) else None
        if self._strict:
            await run_async(self._write(tx, [row]))
        else:
            new = await tx.insert((row,))
            self._remember(tx, (row.stream,))
            if not new:
                await run_async(refuse(tx, [row.id]))
        return event

    async def add_many(
        self, conn: Connection, events: Iterable[Event], *, on_duplicate: OnDuplicate = "raise"
    ) -> list[Event]:
        """Write several events in their order, like `add`; returns those that were written.

        All events are validated before the first is written. DuplicateEventError is raised after
        the other events were written: all of these ids are then in the outbox.
        """
        listed = _listed(events)
        rows = self._rows(listed, on_duplicate)
        tx = resolve(conn, self.prefix)
        new = await run_async(self._write(tx, rows, on_duplicate)) if rows else set()
        return _written(listed, new)

    async def cancel(self, conn: Connection, event_id: str) -> bool:
        """Cancel a delayed event in the transaction that is open on `conn`; never commits.

        Returns whether it was cancelled: if the transaction commits, it ends as `cancelled` and is
        never sent. False: it was due, and a relay may have sent it; or it has ended, or there is no
        event with this id. Raises AutocommitError and UnsupportedConnectionError like `add`.
        """
        return await run_async(waiting.cancel(resolve(conn, self.prefix), event_id))

    async def reschedule(self, conn: Connection, event_id: str, at: datetime) -> bool:
        """Change the time of a delayed event in the transaction that is open on `conn`.

        Returns whether it was changed; False as with `cancel`, or because it would expire before
        `at`. A time in the past sends it at once. A relay notices an earlier time at its next poll.
        """
        return await run_async(waiting.reschedule(resolve(conn, self.prefix), event_id, at))

    async def wait(
        self,
        store: Store,
        ids: Iterable[str],
        *,
        timeout: Seconds | None = 30.0,  # noqa: ASYNC109 - see NotDeliveredError
        committed: bool = False,
    ) -> None:
        """Return when these events are done: confirmed by their destination, or handled.

        Call it after the commit. `store` is an open store of the outbox' database. Raises
        NotDeliveredError, which names the events that are dead, expired, cancelled, or still
        waiting at the timeout; NotFoundError for an id that is not in the outbox. With `committed`
        an event that is not there counts as done, where done events are deleted at once.
        """
        self.within(store.tables)
        await until_done(store, Watch(ids), timeout, committed=committed)

    @asynccontextmanager
    async def transaction(self, conn: AnyConn) -> AsyncIterator[AnyConn]:
        """Begin a transaction on `conn`; commit and kick at the end, or roll back on an error."""
        tx = resolve(conn, self.prefix)
        with self._scope(tx.target):
            async with tx.open():
                yield conn


class SyncOutbox(_Writer):
    """`Outbox` for callers without an event loop; the same guarantees."""

    @overload
    def add(
        self, conn: SyncConnection, event: Event, *, on_duplicate: Literal["raise"] = "raise"
    ) -> Event: ...
    @overload
    def add(
        self, conn: SyncConnection, event: Event, *, on_duplicate: OnDuplicate
    ) -> Event | None: ...
    def add(
        self, conn: SyncConnection, event: Event, *, on_duplicate: OnDuplicate = "raise"
    ) -> Event | None:
        """Write an event into the transaction that is open on `conn`; see `Outbox.add`."""
        row = self._row(event)
        tx = resolve_sync(conn, self.prefix)
        if on_duplicate != "raise":
            _check_on_duplicate(on_duplicate)
            return event if run(self._write(tx, [row], on_duplicate)) else None
        if self._strict:
            run(self._write(tx, [row]))
        else:
            new = tx.insert((row,))
            self._remember(tx, (row.stream,))
            if not new:
                run(refuse(tx, [row.id]))
        return event

    def add_many(
        self, conn: SyncConnection, events: Iterable[Event], *, on_duplicate: OnDuplicate = "raise"
    ) -> list[Event]:
        """Write events in their order; see `Outbox.add_many`."""
        listed = _listed(events)
        rows = self._rows(listed, on_duplicate)
        tx = resolve_sync(conn, self.prefix)
        new = run(self._write(tx, rows, on_duplicate)) if rows else set()
        return _written(listed, new)

    def cancel(self, conn: SyncConnection, event_id: str) -> bool:
        """Cancel a delayed event in the transaction that is open on `conn`; see `Outbox.cancel`."""
        return run(waiting.cancel(resolve_sync(conn, self.prefix), event_id))

    def reschedule(self, conn: SyncConnection, event_id: str, at: datetime) -> bool:
        """Change the time of a delayed event; see `Outbox.reschedule`."""
        return run(waiting.reschedule(resolve_sync(conn, self.prefix), event_id, at))

    @contextmanager
    def transaction(self, conn: SyncConn) -> Iterator[SyncConn]:
        """Begin a transaction on `conn`; commit and kick at the end, or roll back on an error."""
        tx = resolve_sync(conn, self.prefix)
        with self._scope(tx.target), tx.open():
            yield conn
