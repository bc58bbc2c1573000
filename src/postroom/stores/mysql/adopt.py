"""Adopting an outbox table that another program has written: its rows move into ours.

The table has the columns id, event_id, aggregate_type, aggregate_id, event_type, payload (JSON),
status (pending, sending, sent, failed), attempts, next_attempt_at, created_at and last_error.

    stop the old dispatcher → `await adopt(store, "outbox")` → let writers use `outbox.add`
    → `await adopt(store, "outbox")` once more, for what came in between

Rows keep their ids, their order and their attempts, and by default their numbers too: the numbers
of new events begin far above them, so that what is moved later still comes before them.

Every step moves some rows in one transaction, so that a row is in exactly one of the tables. It may
be interrupted anywhere and run again, also beside running relays. Another database needs statements
of the same names (adopt_*.sql) and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.errors import ConfigError, EventError, StoreConflictError, StoreError
from postroom.event import (
    DEFAULT_STREAM,
    DEFAULT_TOPIC,
    MAX_STREAM_BYTES,
    MAX_TOPIC_BYTES,
    check_text,
)
from postroom.stores.mysql.statements import load_queries

if TYPE_CHECKING:
    from postroom.stores.mysql.session import Session
    from postroom.stores.mysql.store import MysqlStore

_NAME = re.compile(r"[A-Za-z0-9_$]{1,64}(\.[A-Za-z0-9_$]{1,64})?")
_STEPS = ("adopt_pick", "adopt", "adopt_delete")


class Adopted(NamedTuple):
    """How many rows were moved, and how many are left: sent ones if so asked, or known ids."""

    moved: int
    left: int


class Adoption(NamedTuple):
    """How rows are taken over.

    table          the old table, `name` or `database.name`
    stream, topic  where the events go from now on
    max_attempts   failed rows that were tried so often become dead letters, others are tried again
    sent           move sent rows too, as done ones; they are pruned after their time
    keep_numbers   keep `id` as the place in the order; else they get new places at the end
    room           so many numbers above the highest stay free for rows that come late
    time_zone      of the old table's times: an offset such as '+02:00', or 'SYSTEM'
    step           rows in one transaction
    """

    table: str
    stream: str = DEFAULT_STREAM
    topic: str = DEFAULT_TOPIC
    max_attempts: int = 5
    sent: bool = True
    keep_numbers: bool = True
    room: int = 1_000_000
    time_zone: str = "SYSTEM"
    step: int = 1_000

    def check(self) -> None:
        """Refuse what makes no sense before anything is moved."""
        if not _NAME.fullmatch(self.table):
            raise ConfigError(f"table {self.table!r}: letters, digits, _ and $ make its name")
        try:
            check_text("stream", self.stream, MAX_STREAM_BYTES)
            check_text("topic", self.topic, MAX_TOPIC_BYTES)
        except EventError as error:
            raise ConfigError(str(error).removeprefix("event.")) from error
        if self.step < 1 or self.room < 0 or self.max_attempts < 0:
            raise ConfigError("step is 1 or more, room and max_attempts are 0 or more")

    @property
    def parts(self) -> dict[str, str]:
        """The parts of the statements that are not values."""
        table = ".".join(f"`{name}`" for name in self.table.split("."))
        numbers = ("seq, ", "a.id, ") if self.keep_numbers else ("", "")
        return {"table": table, "number": numbers[0], "old_number": numbers[1]}


async def adopt(
    store: MysqlStore,
    table: str,
    *,
    on_moved: Callable[[int], object] = lambda _: None,
    **options: Any,
) -> Adopted:
    """Move the rows of an old table into the outbox; options are those of Adoption.

    `on_moved` is told after each step how many rows it moved; what it raises ends the work between
    two steps. Raises StoreError, with nothing lost, for a row that does not fit or a number that is
    taken.
    """
    adoption = Adoption(table, **options)
    adoption.check()
    async with store.session() as session:
        await _refuse_long(session, adoption)
        if adoption.keep_numbers:
            await _make_room(session, adoption)
        moved, after = 0, 0
        while True:
            step, after = await _step(session, adoption, after)
            moved += step
            if not step:
                break
            on_moved(step)
        ((left, _),) = await session.rows("adopt_left", parts=adoption.parts)
    return Adopted(moved, left)


def adoption_sql(table: str, *, prefix: str, **options: Any) -> str:
    """Return what a step runs, for people who want to read it first."""
    adoption = Adoption(table, **options)
    adoption.check()
    sql = load_queries(prefix)
    texts = [sql[name] for name in _STEPS]
    for part, words in adoption.parts.items():
        texts = [text.replace(f"{{{part}}}", words) for text in texts]
    return "\n".join(["BEGIN;", *(f"{text};" for text in texts), "COMMIT;"])


async def _step(session: Session, adoption: Adoption, after: int) -> tuple[int, int]:
    """Move the next rows; returns how many, and the last one."""
    parts = adoption.parts
    try:
        async with session.change():
            found = await session.rows(
                "adopt_pick", parts=parts, after=after, sent=adoption.sent, step=adoption.step
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
                    time_zone=adoption.time_zone,
                )
                session.later("adopt_delete", parts=parts, ids=ids)
    except StoreConflictError:
        raise
    except StoreError as error:
        if "PRIMARY" not in str(error):
            raise
        raise StoreError(
            f"a number of {adoption.table} is taken in the outbox already ({error}). Adopt before "
            "the first event is added, or give keep_numbers=False: then they come after it"
        ) from error
    return len(ids), ids[-1] if ids else after


async def _refuse_long(session: Session, adoption: Adoption) -> None:
    rows = await session.rows("adopt_long", parts=adoption.parts)
    if rows:
        raise StoreError(
            f"row {rows[0][0]} of {adoption.table} does not fit: an event_id has up to 100 bytes, "
            "event_type, aggregate_type and aggregate_id up to 255. Nothing was moved"
        )


async def _make_room(session: Session, adoption: Adoption) -> None:
    """Let new events begin above the old numbers; the server never lowers the next number."""
    ((rows, highest),) = await session.rows("adopt_left", parts=adoption.parts)
    ((taken,),) = await session.rows("adopt_numbers")
    if rows and taken <= highest:
        await session.run("adopt_next_number", number=highest + adoption.room + 1)
