"""Adopts another program's outbox table: moves its rows into postroom's.

The table has the columns id, event_id, aggregate_type, aggregate_id, event_type, payload (JSON),
status (pending, sending, sent, failed), attempts, next_attempt_at, created_at and last_error.

  stop the old dispatcher, start no relay → `await adopt(store, "outbox")`
  → let writers use `outbox.add` → `await adopt(store, "outbox")` once more, for rows written
  in between → start relays

Rows keep their ids, order and attempts, and by default their numbers too: the numbers of new events
begin far above them, so that rows moved later still come before them. This holds only while no
relay sends: a relay that has sent a new event cannot send an older one before it. `adopt` therefore
refuses to work while a relay serves the stream.

Every step moves some rows in one transaction, so that a row is in exactly one of the tables. It may
be interrupted anywhere and run again. Another database needs only statements of the same names
(adopt_*.sql).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.errors import ConfigError, StoreError, StoreRetryableError
from postroom.event import (
    DEFAULT_STREAM,
    DEFAULT_TOPIC,
    MAX_STREAM_BYTES,
    MAX_TOPIC_BYTES,
)
from postroom.model.text import check_setting
from postroom.store import Adopted
from postroom.stores.mysql.leases import leases
from postroom.stores.mysql.statements import load_queries

if TYPE_CHECKING:
    from postroom.stores.mysql.session import Session
    from postroom.stores.mysql.store import MysqlStore

_NAME = re.compile(r"[A-Za-z0-9_$]{1,64}(\.[A-Za-z0-9_$]{1,64})?")
_STEPS = ("adopt_pick", "adopt", "adopt_delete")
_STATUS = "CAST(COALESCE(CONVERT(t.status USING utf8mb4), 'NULL') AS BINARY)"
_STATES = ("pending", "failed", "done", "dead")
_MEANINGS = {"pending": "pending", "sending": "pending", "sent": "done", "failed": "failed"}
_NOBODY = "\x00"  # not a status: a list in SQL needs at least one value


class Adoption(NamedTuple):
    """The options of an adoption.

    table          the old table, `name` or `database.name`
    stream, topic  the new destination of the events
    statuses       the meaning of the old table's statuses: pending, failed, done or dead. Added to
                   pending, sending (= pending), sent (= done) and failed; case-insensitive;
                   NULL is the status of a row without one
    max_attempts   failed rows with this many attempts become dead letters, others are retried
    sent           move sent rows too, as done; they are pruned as usual
    keep_numbers   keep `id` as the position; otherwise rows get new positions at the end
    room           how many numbers above the highest stay free for late rows
    time_zone      of the old table's DATETIMEs: an offset such as '+02:00', or 'SYSTEM'; by
                   default that of the server's sessions. TIMESTAMPs need none
    step           rows in one transaction
    force          run although relays serve the stream: keys may be sent out of order
    """

    table: str
    stream: str = DEFAULT_STREAM
    topic: str = DEFAULT_TOPIC
    max_attempts: int = 5
    sent: bool = True
    keep_numbers: bool = True
    room: int = 1_000_000
    time_zone: str | None = None
    step: int = 1_000
    statuses: Mapping[str, str] = MappingProxyType({})
    force: bool = False

    def check(self) -> None:
        """Refuse invalid options before anything is moved."""
        if not _NAME.fullmatch(self.table):
            raise ConfigError(f"table {self.table!r}: use letters, digits, _ and $")
        check_setting("stream", self.stream, MAX_STREAM_BYTES)
        check_setting("topic", self.topic, MAX_TOPIC_BYTES)
        if self.step < 1 or self.room < 0 or self.max_attempts < 0:
            raise ConfigError("step must be 1 or more, room and max_attempts 0 or more")
        for status, state in self.statuses.items():
            if state not in _STATES:
                raise ConfigError(
                    f"status {status!r} cannot become {state!r}; use one of {', '.join(_STATES)}"
                )

    @property
    def meanings(self) -> dict[str, str]:
        """The meaning of each status, by its lower-case name."""
        return _MEANINGS | {name.lower(): state for name, state in self.statuses.items()}

    @property
    def parts(self) -> dict[str, str]:
        """The parts of the statements that are not values."""
        table = ".".join(f"`{name}`" for name in self.table.split("."))
        numbers = ("seq, ", "a.id, ") if self.keep_numbers else ("", "")
        return {
            "table": table, "number": numbers[0], "old_number": numbers[1], "status": _STATUS,
        }  # fmt: skip


async def adopt(
    store: MysqlStore,
    table: str,
    *,
    on_moved: Callable[[int], object] = lambda _: None,
    **options: Any,
) -> Adopted:
    """Move the rows of an old table into the outbox; options are those of Adoption.

    `on_moved` is called after each step with the number of rows; if it raises, the work ends
    between two steps. Raises StoreError, with nothing lost, for a row that does not fit or a number
    that is taken.
    """
    adoption = Adoption(table, **options)
    adoption.check()
    async with store.session() as session:
        await _refuse_relays(session, adoption)
        lists = await _statuses(session, adoption)
        values = {**lists, "time_zone": await _time_zone(session, adoption)}
        await _refuse_unfit(session, adoption, lists["moving"])
        if adoption.keep_numbers:
            await _make_room(session, adoption)
        moved, after = 0, 0
        while True:
            step, after = await _step(session, adoption, values, after)
            moved += step
            if not step:
                break
            on_moved(step)
            await _refuse_relays(session, adoption)
        await _statuses(session, adoption)  # rows written meanwhile
        ((left, _),) = await session.rows("adopt_left", parts=adoption.parts)
    return Adopted(moved, left)


def adoption_sql(table: str, *, prefix: str, **options: Any) -> str:
    """Return the SQL of a step, for review."""
    adoption = Adoption(table, **options)
    adoption.check()
    sql = load_queries(prefix)
    texts = [sql[name] for name in _STEPS]
    for part, words in adoption.parts.items():
        texts = [text.replace(f"{{{part}}}", words) for text in texts]
    return "\n".join(["BEGIN;", *(f"{text};" for text in texts), "COMMIT;"])


async def _step(
    session: Session, adoption: Adoption, values: Mapping[str, Any], after: int
) -> tuple[int, int]:
    """Move the next rows; returns how many, and the last one."""
    parts = adoption.parts
    try:
        async with session.change():
            found = await session.rows(
                "adopt_pick", parts=parts, after=after, step=adoption.step, moving=values["moving"]
            )
            ids = tuple(number for (number,) in found)
            if ids:
                session.later(
                    "adopt",
                    parts=parts,
                    ids=ids,
                    stream=adoption.stream,
                    topic=adoption.topic,
                    max_attempts=adoption.max_attempts,
                    **{name: values[name] for name in (*_STATES, "time_zone")},
                )
                session.later("adopt_delete", parts=parts, ids=ids)
    except StoreRetryableError:
        raise
    except StoreError as error:
        if "PRIMARY" not in str(error):
            raise
        raise StoreError(
            f"a number of {adoption.table} is already taken in the outbox ({error}). Adopt before "
            "the first event is added, or give keep_numbers=False, which numbers them after it"
        ) from error
    return len(ids), ids[-1] if ids else after


async def _refuse_relays(session: Session, adoption: Adoption) -> None:
    """Refuse to put rows before events that a relay may have sent (G4)."""
    membership = await leases(session, adoption.stream)
    names = sorted({member.name or member.owner for member in membership.members})
    if names and not adoption.force:
        raise StoreError(
            f"relays serve the stream {adoption.stream!r}: {', '.join(names)}. Rows moved "
            "now would be ordered before events that were already sent. Stop the relays until the "
            "last adoption is done, or force it (--force) if no key has events in both tables"
        )


async def _statuses(session: Session, adoption: Adoption) -> dict[str, tuple[str, ...]]:
    """Return the table's statuses by meaning; refuse unknown ones.

    Sent rows must not be published again as pending, and pending rows must not be lost.
    """
    meanings = adoption.meanings
    found = {
        bytes(status).decode(errors="backslashreplace"): count
        for status, count in await session.rows("adopt_statuses", parts=adoption.parts)
    }
    unknown = {status: count for status, count in found.items() if status.lower() not in meanings}
    if unknown:
        told = ", ".join(f"{status!r} ({count:,} rows)" for status, count in unknown.items())
        raise StoreError(
            f"{adoption.table} has unknown statuses: {told}. Map each of them to "
            f"one of {', '.join(_STATES)}, for example --status {next(iter(unknown))}=done. "
            "Their rows were not moved"
        )
    lists = {
        state: tuple(s for s in found if meanings[s.lower()] == state) or (_NOBODY,)
        for state in _STATES
    }
    moving = [s for s in found if adoption.sent or meanings[s.lower()] != "done"]
    return {**lists, "moving": tuple(moving) or (_NOBODY,)}


async def _time_zone(session: Session, adoption: Adoption) -> str:
    """Return the time zone of the old table's times, as this session reads them."""
    database, _, name = adoption.table.rpartition(".")
    where = {"database": database or None, "name": name}
    ((zone, kind, known),) = await session.rows("adopt_zone", time_zone=adoption.time_zone, **where)
    if str(kind).lower() == "timestamp":
        return "+00:00"  # the session's own
    if not known:
        raise ConfigError(
            f"the server does not know the time zone {zone!r}: give an offset such as '+02:00' "
            "(time_zone=), or load the server's time zone tables"
        )
    return str(zone)


async def _refuse_unfit(session: Session, adoption: Adoption, moving: Sequence[str]) -> None:
    rows = await session.rows("adopt_unfit", parts=adoption.parts, moving=moving)
    if rows:
        row, why = rows[0]
        raise StoreError(
            f"row {row} of {adoption.table} does not fit: {why}. Nothing was moved; correct "
            "or delete the row, and run it again"
        )


async def _make_room(session: Session, adoption: Adoption) -> None:
    """Let new events start above the old numbers; the server never lowers the next number."""
    ((rows, highest),) = await session.rows("adopt_left", parts=adoption.parts)
    ((taken,),) = await session.rows("adopt_numbers")
    if rows and taken <= highest:
        await session.run("adopt_next_number", number=highest + adoption.room + 1)
