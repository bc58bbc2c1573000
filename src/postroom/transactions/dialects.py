"""The statements of each dialect: which ones, in which order, and how to read their results.

Written in steps without I/O; a driver runs each statement on the caller's object.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, Protocol

from postroom.model.clock import host_microseconds
from postroom.model.unreadable_rows import decode
from postroom.transaction import Acceptance, Counter, Proof, Row, Standing
from postroom.transactions.driver import Driver, SqliteDriver
from postroom.transactions.queries import Style, load
from postroom.transactions.steps import Steps


class Old(NamedTuple):
    """A query for messages that a consumer handled longer ago than this many seconds."""

    consumer: str
    seconds: float
    limit: int
    skip: int


class Dialect(Protocol):
    """The statements of a dialect, for one parameter style and one prefix."""

    # The driver belongs to this dialect.
    def insert(self, driver: Any, rows: Sequence[Row], whole: bool) -> Steps[int]:
        """Write the rows in order; returns how many were new. Whole: all of them, or none."""

    def count_up(self, driver: Any, counters: Sequence[Counter]) -> Steps[list[int]]:
        """Add to each counter, in the order given; returns the new values."""

    def cancel(self, driver: Any, event_id: str) -> Steps[str | None]:
        """Cancel an event that was never ready; returns its stream, or None."""

    def reschedule(self, driver: Any, event_id: str, at_us: int) -> Steps[str | None]:
        """Change the time of an event that was never ready; returns its stream, or None."""

    def accept(self, driver: Any, acceptance: Acceptance) -> Steps[bool]:
        """Record the message as done; False if it was done before."""

    def count_done(self, driver: Any, acceptances: Sequence[Acceptance]) -> Steps[int]:
        """Return how many of the messages are done, as this transaction sees it."""

    def done_before(self, driver: Any, old: Old) -> Steps[list[str]]:
        """Return messages done before that, oldest first."""

    def forget(self, driver: Any, consumer: str, ids: Sequence[str]) -> Steps[int]:
        """Delete the inbox rows of these messages; returns how many there were."""

    def stored(self, driver: Any, ids: Sequence[str]) -> Steps[set[str] | None]:
        """Return which of these ids, not all of which were new, exist; None: no permission
        to look.
        """

    def hold(self, driver: Any) -> Steps[None]:
        """Remember which transaction this is."""

    def is_held(self, driver: Any, earlier: Sequence[Proof]) -> Steps[bool]:
        """Return, after another `accept`, whether it was in the transaction of `hold`.

        `earlier` was written before; a transaction that contains it was not rolled back.
        """

    def standing(self, driver: Any, proofs: Sequence[Proof]) -> Steps[Standing]:
        """Return whether that transaction is still open and contains all of this."""


def ended(present: bool) -> Standing:
    """Return the standing of a transaction that has ended."""
    return Standing.COMMITTED if present else Standing.LOOSE


def split(proofs: Sequence[Proof]) -> tuple[list[Acceptance], list[Counter]]:
    """Return the messages and the counters among them."""
    acceptances = [proof for proof in proofs if isinstance(proof, Acceptance)]
    return acceptances, [proof for proof in proofs if isinstance(proof, Counter)]


class Savepoint:
    """Identifies its transaction by a savepoint in it, which ends with it, however it ends.

    SQLite and MySQL have no name for a transaction. Rows written before the savepoint exist as long
    as it does.
    """

    SET = "SAVEPOINT postroom_run"
    RELEASE = "RELEASE SAVEPOINT postroom_run"

    def hold(self, driver: Driver) -> Steps[None]:
        # One more statement per transaction; it may be sent with `accept` where a driver can send
        # two at once.
        yield driver.change(self.SET)

    def is_held(self, driver: Driver, earlier: Sequence[Proof]) -> Steps[bool]:
        # The savepoint need not be asked: a rollback takes the last row back, and a commit is found
        # at the end. One more statement for each event of a batch but the first.
        return (yield from self.are_there(driver, earlier[-1:]))

    def standing(self, driver: Driver, proofs: Sequence[Proof]) -> Steps[Standing]:
        # May be sent with the COMMIT, if that is sent only after this has succeeded.
        try:
            yield driver.change(self.RELEASE)
        except Exception as error:
            if not self.is_gone(error):
                raise
        else:
            return Standing.HELD
        return ended((yield from self.are_there(driver, proofs)))

    def is_gone(self, error: Exception) -> bool:
        """Return whether the database does not know the savepoint."""
        raise NotImplementedError

    def are_there(self, driver: Driver, proofs: Sequence[Proof]) -> Steps[bool]:
        """Return whether all of this has been written."""
        acceptances, counters = split(proofs)
        if acceptances and (yield from self.count_done(driver, acceptances)) < len(acceptances):
            return False
        for counter in counters:
            if (yield from self.last(driver, counter)) < counter.step:
                return False
        return True

    def count_done(self, driver: Driver, acceptances: Sequence[Acceptance]) -> Steps[int]:
        raise NotImplementedError

    def last(self, driver: Driver, counter: Counter) -> Steps[int]:
        """Return the value of a counter; 0 if it has none."""
        raise NotImplementedError


@cache
def dialect_of(name: str, style: Style, prefix: str) -> Dialect:
    """Return a dialect's statements in a driver's style."""
    if name == "mysql":
        from postroom.transactions.dialect_mysql import Mysql

        return Mysql(style, prefix)
    return Postgresql(style, prefix) if name == "postgresql" else Sqlite(style, prefix)


def portions(
    rows: Sequence[Row], weights: Sequence[int], max_rows: int, max_weight: int
) -> Iterator[Sequence[Row]]:
    """Split rows into runs within both limits; a row that exceeds them goes alone."""
    start = weight = 0
    for place, heavy in enumerate(weights):
        if place > start and (place - start == max_rows or weight + heavy > max_weight):
            yield rows[start:place]
            start, weight = place, 0
        weight += heavy
    if start < len(rows):
        yield rows[start:]


def all_or_none(driver: Driver, work: Steps[bool]) -> Steps[bool]:
    """Run the work in a savepoint; undo it if it returns False or fails.

    A failure may have ended the transaction itself; the first error is raised.
    """
    yield driver.change("SAVEPOINT postroom_add")
    try:
        kept = yield from work
    except Exception:
        with suppress(Exception):
            yield driver.change("ROLLBACK TO SAVEPOINT postroom_add")
            yield driver.change("RELEASE SAVEPOINT postroom_add")
        raise
    if not kept:
        yield driver.change("ROLLBACK TO SAVEPOINT postroom_add")
    yield driver.change("RELEASE SAVEPOINT postroom_add")
    return kept


class Sqlite(Savepoint):
    """SQLite: no round trips to save, and no clock but the host's (W7)."""

    def __init__(self, style: Style, prefix: str) -> None:
        queries = load("sqlite", style, prefix)
        self._insert, self._count_up, self._accept, self._count_done, self._last = (
            queries[name] for name in ("insert", "count_up", "accept", "count_done", "last")
        )
        self._row = self._insert.picker((*Row._fields, "now"))
        self._counter = self._count_up.picker(Counter._fields)
        self._acceptance = self._accept.picker((*Acceptance._fields, "now"))
        self._done = self._count_done.picker(Acceptance._fields)
        self._done_before, self._forget = queries["done_before"], queries["forget"]
        self._counter_last = self._last.picker(Counter._fields)
        self._cancel, self._reschedule = queries["cancel"], queries["reschedule"]
        self._cancelled = self._cancel.picker(("id", "now"))
        self._rescheduled = self._reschedule.picker(("id", "at_us"))

    def insert(self, driver: SqliteDriver, rows: Sequence[Row], whole: bool) -> Steps[int]:
        now = host_microseconds()
        if len(rows) == 1:
            new: int = yield driver.change(self._insert.sql, self._row((*rows[0], now)))
        elif whole:
            new = 0  # a savepoint without a BEGIN would commit (W2), and single rows cost the same
        else:
            values = [self._row((*row, now)) for row in rows]
            new = yield driver.change_many(self._insert.sql, values)
        return new

    def count_up(self, driver: Driver, counters: Sequence[Counter]) -> Steps[list[int]]:
        values: list[int] = []
        for counter in counters:
            found = yield driver.fetch(self._count_up.sql, self._counter(counter))
            values.append(found[0][0])
        return values

    def cancel(self, driver: Driver, event_id: str) -> Steps[str | None]:
        values = self._cancelled((event_id, host_microseconds()))
        return _stream((yield driver.fetch(self._cancel.sql, values)))

    def reschedule(self, driver: Driver, event_id: str, at_us: int) -> Steps[str | None]:
        values = self._rescheduled((event_id, at_us))
        return _stream((yield driver.fetch(self._reschedule.sql, values)))

    def accept(self, driver: Driver, acceptance: Acceptance) -> Steps[bool]:
        now = host_microseconds()
        found = yield driver.fetch(self._accept.sql, self._acceptance((*acceptance, now)))
        return bool(found)

    def count_done(self, driver: Driver, acceptances: Sequence[Acceptance]) -> Steps[int]:
        done = 0
        for acceptance in acceptances:
            found = yield driver.fetch(self._count_done.sql, self._done(acceptance))
            done += found[0][0]
        return done

    def done_before(self, driver: Driver, old: Old) -> Steps[list[str]]:
        before = host_microseconds() - int(old.seconds * 1_000_000)
        values = (old.consumer, before, old.limit, old.skip)
        found = yield driver.fetch(self._done_before.sql, values)
        return [decode(row[0]) for row in found]

    def forget(self, driver: SqliteDriver, consumer: str, ids: Sequence[str]) -> Steps[int]:
        values = [(consumer, each) for each in ids]
        return (yield driver.change_many(self._forget.sql, values))  # type: ignore[no-any-return]

    def is_gone(self, error: Exception) -> bool:
        return "no such savepoint" in str(error)

    def last(self, driver: Driver, counter: Counter) -> Steps[int]:
        found = yield driver.fetch(self._last.sql, self._counter_last(counter))
        return int(found[0][0]) if found else 0

    def stored(self, driver: Driver, ids: Sequence[str]) -> Steps[set[str] | None]:  # noqa: ARG002
        """Only an id can be a duplicate: numbers begin after the highest."""
        yield None
        return set(ids)


class Postgresql:
    """PostgreSQL: many rows are sent as one array per column."""

    MAX_ROWS = 10_000
    MAX_BYTES = 32_000_000

    def __init__(self, style: Style, prefix: str) -> None:
        queries = load("postgresql", style, prefix)
        self._insert, self._insert_many = queries["insert"], queries["insert_many"]
        self._count_up, self._count_up_many = queries["count_up"], queries["count_up_many"]
        self._accept, self._count_done = queries["accept"], queries["count_done"]
        self._last = queries["last"]
        self._row = self._insert.picker(Row._fields)
        self._columns = self._insert_many.picker(Row._fields)
        self._counter = self._count_up.picker(Counter._fields)
        self._counters = self._count_up_many.picker(Counter._fields)
        self._acceptance = self._accept.picker(Acceptance._fields)
        self._done = self._count_done.picker(Acceptance._fields)
        self._is_done = queries["is_done"]
        self._done_one = self._is_done.picker(Acceptance._fields)
        self._done_before, self._forget = queries["done_before"], queries["forget"]
        self._old = self._done_before.picker(Old._fields)
        self._counter_last = self._last.picker(Counter._fields)
        self._may_look, self._stored = queries["may_look"], queries["stored"]
        self._cancel, self._reschedule = queries["cancel"], queries["reschedule"]
        self._rescheduled = self._reschedule.picker(("id", "at_us"))

    def insert(self, driver: Driver, rows: Sequence[Row], whole: bool) -> Steps[int]:
        if len(rows) == 1:
            return (yield driver.change(self._insert.sql, self._row(rows[0])))  # type: ignore[no-any-return]
        if not whole:
            return (yield from self._many(driver, rows))
        return len(rows) if (yield from all_or_none(driver, self._all(driver, rows))) else 0

    def _all(self, driver: Driver, rows: Sequence[Row]) -> Steps[bool]:
        return (yield from self._many(driver, rows)) == len(rows)

    def _many(self, driver: Driver, rows: Sequence[Row]) -> Steps[int]:
        weights = [row.size + 500 for row in rows]
        new = 0
        for portion in portions(rows, weights, self.MAX_ROWS, self.MAX_BYTES):
            columns = [list(column) for column in zip(*portion, strict=True)]
            new += yield driver.change(self._insert_many.sql, self._columns(columns))
        return new

    def count_up(self, driver: Driver, counters: Sequence[Counter]) -> Steps[list[int]]:
        if len(counters) == 1 or any(counter.step < 0 for counter in counters):
            lasts: list[int] = []
            for counter in counters:
                found = yield driver.fetch(self._count_up.sql, self._counter(counter))
                lasts.append(found[0][0])
                _stamp(driver, found)
            return lasts
        columns = [list(column) for column in zip(*counters, strict=True)]
        found = yield driver.fetch(self._count_up_many.sql, self._counters(columns))
        values = {(topic, bytes(hashed)): last for topic, hashed, last in found}
        return [values[counter.topic, counter.key_hash] for counter in counters]

    def cancel(self, driver: Driver, event_id: str) -> Steps[str | None]:
        return _stream((yield driver.fetch(self._cancel.sql, (event_id,))))

    def reschedule(self, driver: Driver, event_id: str, at_us: int) -> Steps[str | None]:
        values = self._rescheduled((event_id, at_us))
        return _stream((yield driver.fetch(self._reschedule.sql, values)))

    def accept(self, driver: Driver, acceptance: Acceptance) -> Steps[bool]:
        found = yield driver.fetch(self._accept.sql, self._acceptance(acceptance))
        _stamp(driver, found)
        return bool(found)

    def count_done(self, driver: Driver, acceptances: Sequence[Acceptance]) -> Steps[int]:
        found = yield self._fetch_done(driver, acceptances)
        return int(found[0][0])

    def _fetch_done(self, driver: Driver, acceptances: Sequence[Acceptance]) -> Any:
        """Ask how many of the messages are done, and for the number of the transaction."""
        if len(acceptances) == 1:
            return driver.fetch(self._is_done.sql, self._done_one(acceptances[0]))
        columns = [
            [each[place] for each in acceptances] for place in range(len(Acceptance._fields))
        ]
        return driver.fetch(self._count_done.sql, self._done(columns))

    def done_before(self, driver: Driver, old: Old) -> Steps[list[str]]:
        found = yield driver.fetch(self._done_before.sql, self._old(old))
        return [row[0] for row in found]

    def forget(self, driver: Driver, consumer: str, ids: Sequence[str]) -> Steps[int]:
        return (yield driver.change(self._forget.sql, (consumer, list(ids))))  # type: ignore[no-any-return]

    def hold(self, driver: Driver) -> Steps[None]:  # noqa: ARG002
        """Return: `accept` returned the transaction's number."""
        yield from ()

    def is_held(self, driver: Driver, earlier: Sequence[Proof]) -> Steps[bool]:  # noqa: ARG002
        """Compare the numbers that the first and the last `accept` returned."""
        yield from ()
        return bool(driver.stamp == driver.last_stamp)

    def standing(self, driver: Driver, proofs: Sequence[Proof]) -> Steps[Standing]:
        """Compare numbers. In an aborted transaction any statement fails, including this one.

        One more statement per transaction; it may be sent with the COMMIT, if that is sent only
        after this has succeeded.
        """
        acceptances, counters = split(proofs)
        present, number = True, None
        if acceptances or not counters:
            found = yield self._fetch_done(driver, acceptances)
            present, number = found[0][0] == len(acceptances), found[0][1]
        for counter in counters:
            found = yield driver.fetch(self._last.sql, self._counter_last(counter))
            present, number = present and found[0][0] >= counter.step, found[0][1]
        if number == driver.stamp:
            return Standing.HELD if present else Standing.LOST
        return ended(present)

    def stored(self, driver: Driver, ids: Sequence[str]) -> Steps[set[str] | None]:
        """A number may be taken as well, by a sequence that is behind."""
        allowed = yield driver.fetch(self._may_look.sql)
        if not allowed[0][0]:
            return None
        found = yield driver.fetch(self._stored.sql, (list(ids),))
        return {row[0] for row in found}


def _stream(found: Sequence[Any]) -> str | None:
    """Return the stream of the changed event, if one was changed."""
    if not found:
        return None
    return found[0][0] if isinstance(found[0][0], str) else decode(bytes(found[0][0]))


def _stamp(driver: Driver, found: Sequence[Any]) -> None:
    """Store the number of the transaction that wrote the first row, and of the last."""
    if found:
        driver.last_stamp = found[0][1]
        if driver.stamp is None:
            driver.stamp = driver.last_stamp
