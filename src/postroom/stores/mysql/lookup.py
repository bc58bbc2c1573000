"""Operators' questions: get, find, count. Nothing is changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from postroom.lookup import (
    MAX_INBOX_ROWS,
    RECENT_SECONDS,
    Accepted,
    Details,
    Filter,
    InboxStats,
    Standing,
    Stats,
)
from postroom.model.dead_letters import DeadCause
from postroom.model.unreadable_rows import decode, to_record, to_records
from postroom.record import LANES, Record, State
from postroom.search import is_caused, walk_by
from postroom.stores.mysql.read import lanes_of
from postroom.stores.mysql.records import decoded
from postroom.stores.mysql.search import indexes
from postroom.stores.mysql.session import Session
from postroom.stores.sql_files import NEWEST

_LOOKED_AT = 16  # rows per lane that are sampled for the age of the rest
_FEW_STREAMS = 20  # more lanes are queried together, one row of each


async def get(session: Session, event_id: str) -> Record | None:
    rows = await session.rows("get", id=event_id)
    return to_record((*decoded(rows[0]), None)) if rows else None


async def look_up(session: Session, ids: Sequence[str]) -> dict[str, Standing]:
    rows = await session.rows("look_up", ids=tuple(dict.fromkeys(ids))) if ids else ()
    return {
        decode(row[0]): Standing(decode(row[1]), row[2], None if row[3] is None else decode(row[3]))
        for row in rows
    }


async def open_keys(session: Session, stream: str, limit: int) -> list[bytes]:
    rows = await session.rows("open_keys", stream=stream, limit=limit)
    return [bytes(found) for (found,) in rows]


async def find(session: Session, prefix: str, wanted: Filter) -> list[Record]:
    by = walk_by(wanted, await indexes(session, prefix) if is_caused(wanted) else ())
    statement = {None: "find", "state": "find_open"}.get(by, f"find_by_{by}")
    statement += NEWEST if wanted.newest else ""
    values = wanted._asdict()
    values["state"] = None if wanted.state is None else str(wanted.state)
    return to_records((*decoded(row), None) for row in await session.rows(statement, **values))


async def stats(session: Session, stream: str | None) -> Stats:
    seen = defaultdict[str, int](int, await session.rows("stats", stream=stream))
    processing, failed = seen[State.PROCESSING], seen[State.FAILED]
    counts = {
        State.PENDING: seen["ready"] + seen["waiting"] + seen["parked"] - processing - failed,
        State.PROCESSING: processing,
        State.DONE: seen[State.DONE],
        State.FAILED: failed,
        State.DEAD: seen[State.DEAD],
        State.EXPIRED: seen[State.EXPIRED],
        State.CANCELLED: seen[State.CANCELLED],
    }
    ages = [0]
    names = await streams(session, _FEW_STREAMS + 1) if stream is None else [stream]
    if len(names) > _FEW_STREAMS:  # one statement per event would take minutes with 10,000
        names = []
        ((age,),) = await session.rows("stats_oldest_all")
        ages.append(age or 0)
    for name in names:
        ((age,),) = await session.rows(
            "stats_oldest",
            parts={"lanes": lanes_of(session.sql, range(LANES))},
            stream=name,
            per_lane=_LOOKED_AT,
        )
        ages.append(age or 0)
    return Stats({str(k): n for k, n in counts.items()}, max(ages) / 1_000_000, seen["blocked"])


async def streams(session: Session, limit: int | None = None) -> list[str]:
    """Return the names in use, up to this many."""
    return [decode(name) for name in await stored_streams(session, limit)]


async def stored_streams(session: Session, limit: int | None = None) -> list[bytes]:
    """Walk from name to name along the index."""
    found: list[bytes] = []
    while True:
        if len(found) == limit:
            return found
        ((name,),) = await session.rows("streams_next", after=found[-1] if found else b"")
        if name is None:
            return found
        found.append(bytes(name))


async def identity(session: Session) -> str:
    ((name,),) = await session.rows("identity")
    return str(name)


async def details(session: Session, event_id: str) -> Details | None:
    rows = await session.rows("details", id=event_id)
    return Details._make(rows[0]) if rows else None


async def acceptances(session: Session, ids: Sequence[str]) -> list[Accepted]:
    names = tuple(event_id.encode() for event_id in ids)
    rows = await session.rows("acceptances", ids=names) if names else ()
    return [
        Accepted(str(decode(consumer)), str(decode(event_id)), at, bool(done))
        for consumer, event_id, at, done in rows
    ]


async def dead_causes(session: Session, stream: str | None, limit: int) -> list[DeadCause]:
    return [
        DeadCause._make(row)
        for row in await session.rows("dead_causes", stream=stream, limit=limit)
    ]


async def inboxes(session: Session) -> list[InboxStats]:
    found: list[InboxStats] = []
    after = b""
    while True:
        ((name,),) = await session.rows("inboxes_next", after=after)
        if name is None:
            return found
        ((rows, *rest),) = await session.rows(
            "inboxes", consumer=name, most=MAX_INBOX_ROWS, recent=RECENT_SECONDS
        )
        if rows:
            found.append(InboxStats(decode(bytes(name)), rows, *rest))
        after = name
