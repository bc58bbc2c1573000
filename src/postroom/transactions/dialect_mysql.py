"""The statements that MySQL 8 and MariaDB 10.11 have in common.

A plain INSERT, because the alternatives are unreliable: IGNORE turns a truncated value into a
warning, and the count of ON DUPLICATE KEY UPDATE depends on the connection's FOUND_ROWS flag, which
SQLAlchemy and Django set. Error 1062 undoes only the statement, so the transaction goes on (W5); of
several rows none is written then, and they are tried one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from postroom.errors import PayloadError, TransactionError
from postroom.model.unreadable_rows import decode
from postroom.transaction import Acceptance, Counter, Row
from postroom.transactions.dialects import Old, Savepoint, all_or_none, portions
from postroom.transactions.driver import Driver, MysqlDriver
from postroom.transactions.errors import code_of, is_duplicate
from postroom.transactions.queries import Style, load
from postroom.transactions.steps import Steps

_MAX_ROWS = 500
_MAX_BYTES = 1_000_000
_SMALL = 16_384  # no server in practical use accepts less
_PAIR = "(%s, %s)"  # of `count_done`; every MySQL driver has this style
_NO_SAVEPOINT = 1305
_ESCAPED = "\0\n\r\x1a\"'\\"
_limits: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_checked: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""Connections whose session is known to use utf8mb4, and the server's number for that session."""


class Mysql(Savepoint):
    """MySQL and MariaDB: many rows are sent as one list of VALUES."""

    def __init__(self, style: Style, prefix: str) -> None:
        queries = load("mysql", style, prefix)
        self._insert = queries["insert"]
        self._head, found, self._group = self._insert.sql.rpartition("VALUES ")
        assert found
        self._id_key = f"{prefix.rpartition('.')[2]}outbox_id"
        self._row = self._insert.picker((*Row._fields, "key_hash_hex", "payload_hex"))
        self._limit = queries["max_packet"].sql
        self._charset = queries["charset"].sql
        self._count_up, self._count_up_read = queries["count_up"], queries["count_up_read"]
        self._counter = self._count_up.picker((*Counter._fields, "key_hash_hex"))
        self._counter_read = self._count_up_read.picker((*Counter._fields, "key_hash_hex"))
        self._accept, self._accept_again = queries["accept"], queries["accept_again"]
        self._acceptance = self._accept.picker(Acceptance._fields)
        self._acceptance_again = self._accept_again.picker(Acceptance._fields)
        self._count_done = queries["count_done"]
        self._done = self._count_done.picker(Acceptance._fields)
        self._done_before, self._forget = queries["done_before"], queries["forget"]
        self._old = self._done_before.picker(Old._fields)
        self._waiting, self._waiting_lock = queries["waiting"], queries["waiting_lock"]
        self._locked = self._waiting_lock.picker(("seq", "id", "at_us"))
        self._cancel, self._reschedule = queries["cancel"], queries["reschedule"]
        self._rescheduled = self._reschedule.picker(("seq", "at_us"))

    def insert(self, driver: MysqlDriver, rows: Sequence[Row], whole: bool) -> Steps[int]:
        yield from self._refuse_charset(driver)
        weights = [_most_bytes(row) + len(self._group) for row in rows]
        most = _MAX_BYTES
        if sum(weights) > _SMALL:
            limit = yield from self._max_packet(driver)
            for row, weight in zip(rows, weights, strict=True):
                if weight > limit:
                    self._refuse_over(row, limit)
            most = min(most, limit)
        parts = list(portions(rows, weights, _MAX_ROWS, most))
        if whole:
            steps = self._all(driver, parts)
            kept = yield from (all_or_none(driver, steps) if len(parts) > 1 else steps)
            return len(rows) if kept else 0
        new = 0
        for part in parts:
            if (yield from self._at_once(driver, part)):
                new += len(part)
            elif len(part) > 1:
                for row in part:
                    new += yield from self._at_once(driver, [row])
        return new

    def stored(self, driver: Driver, ids: Sequence[str]) -> Steps[set[str] | None]:  # noqa: ARG002
        """Error 1062 names the key: that of the ids. Any other is raised."""
        yield None
        return set(ids)

    def _all(self, driver: Driver, parts: Sequence[Sequence[Row]]) -> Steps[bool]:
        for part in parts:
            if not (yield from self._at_once(driver, part)):
                return False
        return True

    def _at_once(self, driver: Driver, rows: Sequence[Row]) -> Steps[bool]:
        """Write all of these rows; False: an id exists already, and none of them was written."""
        values: list[Any] = []
        for row in rows:
            body = row.payload_bytes
            extra = (row.key_hash.hex(), None if body is None else body.hex())
            values += self._row((*row, *extra))
        groups = ", ".join([self._group] * len(rows))
        try:
            yield driver.change(f"{self._head}VALUES {groups}", tuple(values))
        except Exception as error:
            if not is_duplicate(error, self._id_key):
                raise
            return False
        return True

    def _refuse_charset(self, driver: MysqlDriver) -> Steps[None]:
        """Raise TransactionError if the server would change text; queried once per session."""
        session = driver.session
        number = session.thread_id()  # a reopened connection has another one
        if _checked.get(session) == number:
            return
        found = yield driver.fetch(self._charset)
        for charset in found[0]:
            if charset != "utf8mb4":
                raise TransactionError(
                    f"the server treats this connection's text as {charset}, regardless of the "
                    "driver's setting (see skip-character-set-client-handshake and "
                    "init_connect in its "
                    "configuration), and would store question marks. Connect with "
                    "init_command='SET NAMES utf8mb4'"
                )
        _checked[session] = number

    def _max_packet(self, driver: MysqlDriver) -> Steps[int]:
        """Return the server's maximum statement size; queried once per session."""
        session = driver.session
        limit = _limits.get(session)
        if limit is None:
            found = yield driver.fetch(self._limit)
            limit = _limits[session] = int(found[0][0])
        return limit

    def _refuse_over(self, row: Row, limit: int) -> None:
        needed = len(self._insert.sql) + _bytes(row)
        if needed > limit:
            raise PayloadError(
                "$",
                f"the statement would have {needed:,} bytes; this server accepts {limit:,} "
                "(max_allowed_packet). Raise the limit, or store the large part elsewhere and send "
                "a reference to it",
                limit=limit,
            )

    def count_up(self, driver: MysqlDriver, counters: Sequence[Counter]) -> Steps[list[int]]:
        yield from self._refuse_charset(driver)
        values: list[int] = []
        for counter in counters:
            source = (*counter, counter.key_hash.hex())
            yield driver.change(self._count_up.sql, self._counter(source))
            found = yield driver.fetch(self._count_up_read.sql, self._counter_read(source))
            values.append(found[0][0])
        return values

    def cancel(self, driver: MysqlDriver, event_id: str) -> Steps[str | None]:
        seq, stream = yield from self._lock_waiting(driver, event_id, None)
        if stream is not None:
            yield driver.change(self._cancel.sql, (seq,))
        return stream

    def reschedule(self, driver: MysqlDriver, event_id: str, at_us: int) -> Steps[str | None]:
        seq, stream = yield from self._lock_waiting(driver, event_id, at_us)
        if stream is not None:
            yield driver.change(self._reschedule.sql, self._rescheduled((seq, at_us)))
        return stream

    def _lock_waiting(
        self, driver: MysqlDriver, event_id: str, at_us: int | None
    ) -> Steps[tuple[int, str | None]]:
        """Lock an event that was never ready; returns its number and stream, if it is one."""
        yield from self._refuse_charset(driver)
        for (seq,) in (yield driver.fetch(self._waiting.sql, (event_id,))):
            values = self._locked((seq, event_id, at_us))
            for (stream,) in (yield driver.fetch(self._waiting_lock.sql, values)):
                return seq, decode(stream) if isinstance(stream, bytes) else stream
        return 0, None

    def accept(self, driver: MysqlDriver, acceptance: Acceptance) -> Steps[bool]:
        yield from self._refuse_charset(driver)
        try:
            yield driver.change(self._accept.sql, self._acceptance(acceptance))
        except Exception as error:
            if not is_duplicate(error, "PRIMARY"):
                raise
        else:
            return True
        changed: int = yield driver.change(
            self._accept_again.sql, self._acceptance_again(acceptance)
        )
        return changed == 1

    def count_done(self, driver: Driver, acceptances: Sequence[Acceptance]) -> Steps[int]:
        values = [value for acceptance in acceptances for value in self._done(acceptance)]
        pairs = ", ".join([_PAIR] * len(acceptances))
        found = yield driver.fetch(self._count_done.sql.replace(_PAIR, pairs), tuple(values))
        return int(found[0][0])

    def done_before(self, driver: Driver, old: Old) -> Steps[list[str]]:
        values = self._old(old._replace(seconds=int(old.seconds)))
        found = yield driver.fetch(self._done_before.sql, values)
        return [decode(row[0]) if isinstance(row[0], bytes) else row[0] for row in found]

    def forget(self, driver: Driver, consumer: str, ids: Sequence[str]) -> Steps[int]:
        if not ids:
            return 0
        values = [value for each in ids for value in (consumer, each)]
        pairs = ", ".join([_PAIR] * len(ids))
        forgotten = driver.change(self._forget.sql.replace(_PAIR, pairs), tuple(values))
        return (yield forgotten)  # type: ignore[no-any-return]

    def is_gone(self, error: Exception) -> bool:
        return code_of(error) == _NO_SAVEPOINT

    def last(self, driver: Driver, counter: Counter) -> Steps[int]:
        source = (*counter, counter.key_hash.hex())
        found = yield driver.fetch(self._count_up_read.sql, self._counter_read(source))
        return int(found[0][0]) if found else 0


def _texts(row: Row) -> list[str]:
    return [value for value in row if type(value) is str]


def _most_bytes(row: Row) -> int:
    """Return the maximum size of a row's values in a statement, quickly."""
    most = 400 if row.payload_bytes is None else 400 + 2 * len(row.payload_bytes)
    for text in _texts(row):
        most += len(text) * 2 if text.isascii() else len(text) * 8
    return most


def _bytes(row: Row) -> int:
    """Return the size of a row's values in a statement."""
    size = 200 if row.payload_bytes is None else 200 + 2 * len(row.payload_bytes)
    for text in _texts(row):
        size += len(text.encode()) + sum(map(text.count, _ESCAPED))
    return size
