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

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from postroom.errors import ConfigError, StoreError, StoreRetryableError
from postroom.store import Adopted
from postroom.stores.adoption import (
    STATES,
    Adoption,
    number_taken,
    refuse_relays,
    row_does_not_fit,
    sort_statuses,
)
from postroom.stores.mysql.leases import leases
from postroom.stores.mysql.statements import load_queries

if TYPE_CHECKING:
    from postroom.stores.mysql.session import Session
    from postroom.stores.mysql.store import MysqlStore

_STEPS = ("adopt_pick", "adopt", "adopt_delete")
_STATUS = "CAST(COALESCE(CONVERT(t.status USING utf8mb4), 'NULL') AS BINARY)"


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
    adoption = _adoption(table, options)
    async with store.session() as session:
        await _refuse_relays(session, adoption)
        lists = await _statuses(session, adoption)
        values = {**lists, "time_zone": await _time_zone(session, adoption)}
        await _refuse_unfit(session, adoption, lists["moving"])
        if _keeps_numbers(adoption):
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
        ((left, _),) = await session.rows("adopt_left", parts=_parts(adoption))
    return Adopted(moved, left)


def adoption_sql(table: str, *, prefix: str, **options: Any) -> str:
    """Return the SQL of a step, for review."""
    adoption = _adoption(table, options)
    sql = load_queries(prefix)
    texts = [sql[name] for name in _STEPS]
    for part, words in _parts(adoption).items():
        texts = [text.replace(f"{{{part}}}", words) for text in texts]
    return "\n".join(["BEGIN;", *(f"{text};" for text in texts), "COMMIT;"])


def _adoption(table: str, options: Mapping[str, Any]) -> Adoption:
    if "columns" in options:
        raise ConfigError(
            "columns (--column) are supported on PostgreSQL only: rename the columns of the table, "
            "or copy its rows into one with the expected columns"
        )
    adoption = Adoption(table, **options)
    adoption.check()
    return adoption


def _keeps_numbers(adoption: Adoption) -> bool:
    return adoption.keep_numbers is not False


def _parts(adoption: Adoption) -> dict[str, str]:
    """Return the parts of the statements that are not values."""
    table = ".".join(f"`{name}`" for name in adoption.table.split("."))
    number, old_number = ("seq, ", "a.id, ") if _keeps_numbers(adoption) else ("", "")
    return {"table": table, "number": number, "old_number": old_number, "status": _STATUS}


async def _step(
    session: Session, adoption: Adoption, values: Mapping[str, Any], after: int
) -> tuple[int, int]:
    """Move the next rows; returns how many, and the last one."""
    parts = _parts(adoption)
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
                    **{name: values[name] for name in (*STATES, "time_zone")},
                )
                session.later("adopt_delete", parts=parts, ids=ids)
    except StoreRetryableError:
        raise
    except StoreError as error:
        if "PRIMARY" not in str(error):
            raise
        raise number_taken(adoption, error) from error
    return len(ids), ids[-1] if ids else after


async def _refuse_relays(session: Session, adoption: Adoption) -> None:
    """Refuse to put rows before events that a relay may have sent (G4)."""
    refuse_relays(await leases(session, adoption.stream), adoption)


async def _statuses(session: Session, adoption: Adoption) -> dict[str, tuple[str, ...]]:
    found = {
        bytes(status).decode(errors="backslashreplace"): count
        for status, count in await session.rows("adopt_statuses", parts=_parts(adoption))
    }
    return sort_statuses(found, adoption)


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
    rows = await session.rows("adopt_unfit", parts=_parts(adoption), moving=moving)
    if rows:
        raise row_does_not_fit(adoption, *rows[0])


async def _make_room(session: Session, adoption: Adoption) -> None:
    """Let new events start above the old numbers; the server never lowers the next number."""
    ((rows, highest),) = await session.rows("adopt_left", parts=_parts(adoption))
    ((taken,),) = await session.rows("adopt_numbers")
    if rows and taken <= highest:
        await session.run("adopt_next_number", number=highest + adoption.room + 1)
