"""The outbox as its writers hold it: `add` puts an event into the caller's own transaction.

It has no connection of its own, never commits, and knows nothing of the relay. What is written is
decided here once, in steps without I/O; `Outbox` and `SyncOutbox` only run them.

Order (W8): the events of one key keep the order in which they were written if their writers are
coordinated, which means that both lock the same row *before* `add`. If they are not, use
`ordering="strict"`: the outbox then numbers each key's events itself, one transaction at a time.
"""

from __future__ import annotations

import copy
import json
import logging
from collections import Counter as Tally
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar

from postroom import notifier as notifier_module
from postroom.errors import (
    ConfigError,
    DuplicateEventError,
    EventError,
    NumberTakenError,
    TransactionError,
)
from postroom.event import DEFAULT_TOPIC, Event
from postroom.model import add_hooks
from postroom.model.clock import to_microseconds
from postroom.model.codec import JSON, encode
from postroom.notifier import Notifier
from postroom.record import key_hash, lane_of
from postroom.routes import Routes
from postroom.store import Tables
from postroom.transaction import AsyncTransaction, Counter, Row, SyncTransaction
from postroom.transactions import (
    open_transaction,
    open_transaction_sync,
    resolve,
    resolve_sync,
    target_of,
)
from postroom.transactions.queries import DEFAULT_PREFIX, qualify
from postroom.transactions.steps import Steps, run, run_async

Ordering = Literal["keyed", "strict"]
C = TypeVar("C")

_log = logging.getLogger(__name__)
_to_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def to_row(event: Event, topic: str) -> Row:
    """Turn an event into what is stored; refuses a payload that cannot be (PayloadError)."""
    body, encoded_as = encode(event.payload)
    is_json = encoded_as == JSON
    headers = _to_text(dict(event.headers)) if event.headers else None
    hashed = key_hash(event.aggregate_type, event.key, event.id)
    return Row(  # by place, which is quicker
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
    )


@dataclass(frozen=True, slots=True)
class _Kick:
    """A kick to come after a commit; equal ones are one."""

    outbox: _Writer
    streams: frozenset[str]

    def __call__(self) -> None:
        self.outbox.kick(self.streams)


class _Writer:
    """What both outboxes share: settings, and the steps of an add."""

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
                    "default_topic: give it to Routes(…, default=…), not to the outbox"
                )
            self._routes = routes
        else:
            self._routes = Routes(routes, default_topic)
        if ordering not in {"keyed", "strict"}:
            raise ConfigError(f"ordering {ordering!r}: it is 'keyed' or 'strict'")
        self._strict = ordering == "strict"
        self._names = (prefix, schema)
        self._prefix = qualify(DEFAULT_PREFIX if prefix is None else prefix, schema)
        self._notifier = notifier
        self._open: dict[int, set[str]] = {}  # id of a connection in transaction() → its streams

    @property
    def names_tables(self) -> bool:
        """Whether it was given a prefix or a schema of its own."""
        return self._names != (None, None)

    def within(self, tables: Tables) -> Self:
        """Return this outbox for a store's tables.

        Raises ConfigError if it was given a prefix or schema of its own that is another.
        """
        for name, own, stores in zip(("prefix", "schema"), self._names, tables, strict=True):
            if own is not None and own != stores:
                raise ConfigError(
                    f"the outbox has {name}={own!r}, and the store has {stores!r}: leave it out, "
                    "or write the same in both"
                )
        twin = copy.copy(self)
        twin._prefix = tables.qualified
        return twin

    def kick(self, streams: Collection[str] | None = None) -> None:
        """Wake the relays of these streams, or of all; to be called after the commit.

        Never raises. Without it events are found by polling, a little later.
        """
        if isinstance(streams, str):
            streams = (streams,)
        wanted = None if streams is None else frozenset(streams)
        notifier_module.kick(wanted)
        if self._notifier is not None:
            try:
                self._notifier.notify(wanted)
            except Exception:
                _log.exception("relays elsewhere could not be notified; they will poll")

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

    def _rows(self, events: list[Event]) -> list[Row]:
        """Check and encode everything before the first statement runs."""
        rows = [self._row(event) for event in events]
        if len({row.id for row in rows}) < len(rows):
            raise DuplicateEventError(i for i, n in Tally(row.id for row in rows).items() if n > 1)
        return rows

    def _write(
        self, conn: object, tx: AsyncTransaction | SyncTransaction, rows: list[Row]
    ) -> Steps[None]:
        duplicates: list[str] = []
        if self._strict:
            duplicates = yield from _insert_strict(tx, rows)
        elif (yield tx.insert(rows)) != len(rows):
            duplicates = [row.id for row in rows]
        self._remember(conn, tx, rows)
        if duplicates:
            yield from _refuse(tx, duplicates)

    def _remember(
        self, conn: object, tx: AsyncTransaction | SyncTransaction, rows: Sequence[Row]
    ) -> None:
        """Have these streams kicked after the commit, if we come to know of it."""
        streams = {row.stream for row in rows}
        scope = self._open.get(id(target_of(tx, conn))) if self._open else None
        if scope is not None:
            scope.update(streams)
        else:
            tx.after_commit(_Kick(self, frozenset(streams)))

    @contextmanager
    def _scope(self, target: object) -> Iterator[None]:
        """Collect the streams of what is added on this connection, and kick them at the end."""
        if id(target) in self._open:
            raise TransactionError(
                "outbox.transaction(conn) is open on this connection already: add to it directly"
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
            "key", "is missing: strict order numbers the events of a key. Give it a key, or use "
            "an outbox with ordering='keyed'",
        )  # fmt: skip
    if event.available_at is not None:
        raise EventError(
            "available_at", "cannot be had with strict order: every later event of the key would "
            "have to wait for this one",
        )  # fmt: skip


def _refuse(tx: AsyncTransaction | SyncTransaction, ids: Sequence[str]) -> Steps[None]:
    """Raise the error for ids of which not all were new.

    Where an adapter has no `stored`, nothing but an id can have been there.
    """
    look = getattr(tx, "stored", None)
    there: set[str] | None = set(ids) if look is None else (yield look(ids))
    if there is None:
        raise DuplicateEventError(ids, certain=False)
    lost = [name for name in ids if name not in there]
    if lost:
        raise NumberTakenError(lost)
    raise DuplicateEventError(ids)


def _insert_strict(tx: AsyncTransaction | SyncTransaction, rows: list[Row]) -> Steps[list[str]]:
    """Write rows numbered within their keys, without a gap (W9); returns ids that were there.

    Counters are locked in one order by all writers, so that they do not deadlock. Only a row that
    was written uses up its number: those of duplicates go back to the counter, which nobody else
    can have touched since.
    """
    tally = Tally((row.topic, row.key_hash) for row in rows)
    keys = sorted(tally)
    values: list[int] = yield tx.count_up([Counter(*key, tally[key]) for key in keys])
    last = {key: value - tally[key] for key, value in zip(keys, values, strict=True)}
    left = dict(tally)
    duplicates: list[str] = []
    try:
        if (yield tx.insert(_numbered(rows, last), whole=True)):
            return []
        for row in rows:
            key = (row.topic, row.key_hash)
            if len(rows) > 1 and (yield tx.insert([row._replace(kseq=last[key] + 1)])):
                last[key] += 1
                left[key] -= 1
            else:
                duplicates.append(row.id)
    except Exception:
        with suppress(Exception):  # the first error is the one to tell
            yield from _give_back(tx, left)
        raise
    yield from _give_back(tx, left)
    return duplicates


def _numbered(rows: list[Row], last: Mapping[tuple[str, bytes], int]) -> list[Row]:
    """Return the rows with the numbers after `last`, in their order."""
    given = dict(last)
    numbered: list[Row] = []
    for row in rows:
        key = (row.topic, row.key_hash)
        given[key] += 1
        numbered.append(row._replace(kseq=given[key]))
    return numbered


def _give_back(
    tx: AsyncTransaction | SyncTransaction, left: Mapping[tuple[str, bytes], int]
) -> Steps[None]:
    counters = [Counter(*key, -left[key]) for key in sorted(left) if left[key]]
    if counters:
        yield tx.count_up(counters)


def _listed(events: Iterable[Event]) -> list[Event]:
    if isinstance(events, Event):
        raise TypeError("add_many takes several events; use add for one")
    return list(events)


class Outbox(_Writer):
    """Puts events into the caller's transaction: they exist if and only if it commits (G1).

    routes          event type → topic, for events that name none
    default_topic   the topic of what no route matches
    ordering        "strict" numbers each key's events, for writers that are not coordinated
    prefix          of the tables; `postroom_` if left out
    schema          of the tables, where it is not the one that the connection looks in first
    notifier        carries kicks to other processes

    `conn` is the caller's: a connection of sqlite3, aiosqlite, psycopg, asyncpg, PyMySQL,
    mysqlclient or asyncmy, a connection or session of SQLAlchemy, or Django's connection.
    """

    async def add(self, conn: Any, event: Event) -> Event:
        """Write an event into the transaction that is open on `conn`; never commits.

        Raises AutocommitError where it would commit by itself, UnsupportedConnectionError (a
        TypeError) for an object it does not know, PayloadError, and DuplicateEventError if the id
        is there already. The transaction is still usable after each of them; after a cancelled
        add it must be rolled back, since nobody knows what has been written.
        """
        row = self._row(event)
        tx = resolve(conn, self._prefix)
        if self._strict:
            await run_async(self._write(conn, tx, [row]))
        else:
            new = await tx.insert((row,))
            self._remember(conn, tx, (row,))
            if not new:
                await run_async(_refuse(tx, [row.id]))
        return event

    async def add_many(self, conn: Any, events: Iterable[Event]) -> list[Event]:
        """Write events in their order, as `add` does one.

        What is wrong with any of them is said before the first is written. DuplicateEventError
        comes after the others were written: then all of these ids are in the outbox.
        """
        listed = _listed(events)
        rows = self._rows(listed)
        tx = resolve(conn, self._prefix)
        if rows:
            await run_async(self._write(conn, tx, rows))
        return listed

    @asynccontextmanager
    async def transaction(self, conn: C) -> AsyncIterator[C]:
        """Open the caller's transaction on `conn`; commit at the end and kick, or roll back."""
        tx = resolve(conn, self._prefix)
        with self._scope(target_of(tx, conn)):
            async with open_transaction(tx):
                yield conn


class SyncOutbox(_Writer):
    """`Outbox` for callers without an event loop; the same guarantees."""

    def add(self, conn: Any, event: Event) -> Event:
        """Write an event into the transaction that is open on `conn`; see `Outbox.add`."""
        row = self._row(event)
        tx = resolve_sync(conn, self._prefix)
        if self._strict:
            run(self._write(conn, tx, [row]))
        else:
            new = tx.insert((row,))
            self._remember(conn, tx, (row,))
            if not new:
                run(_refuse(tx, [row.id]))
        return event

    def add_many(self, conn: Any, events: Iterable[Event]) -> list[Event]:
        """Write events in their order; see `Outbox.add_many`."""
        listed = _listed(events)
        rows = self._rows(listed)
        tx = resolve_sync(conn, self._prefix)
        if rows:
            run(self._write(conn, tx, rows))
        return listed

    @contextmanager
    def transaction(self, conn: C) -> Iterator[C]:
        """Open the caller's transaction on `conn`; commit at the end and kick, or roll back."""
        tx = resolve_sync(conn, self._prefix)
        with self._scope(target_of(tx, conn)), open_transaction_sync(tx):
            yield conn
