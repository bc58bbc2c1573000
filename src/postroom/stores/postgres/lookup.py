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
from postroom.model.unreadable_rows import to_record, to_records
from postroom.record import Record, State
from postroom.search import is_caused, walk_by
from postroom.stores.postgres.database import Database, Session
from postroom.stores.postgres.search import indexes
from postroom.stores.sql_files import NEWEST

_OTHER = (State.PROCESSING, State.FAILED, State.DEAD, State.EXPIRED, State.CANCELLED)


async def get(db: Database, event_id: str) -> Record | None:
    rows = await db.rows("get", id=event_id)
    return to_record((*rows[0], None)) if rows else None


async def look_up(db: Database, ids: Sequence[str]) -> dict[str, Standing]:
    rows = await db.rows("look_up", ids=list(ids))
    return {event_id: Standing(*facts) for event_id, *facts in rows}


async def open_keys(db: Database, stream: str, limit: int) -> list[bytes]:
    return [bytes(found) for (found,) in await db.rows("open_keys", stream=stream, limit=limit)]


async def find(db: Database, prefix: str, wanted: Filter) -> list[Record]:
    by = walk_by(wanted, await indexes(db, prefix) if is_caused(wanted) else ())
    statement = {None: "find", "state": "find_other"}.get(by, f"find_by_{by}")
    statement += NEWEST if wanted.newest else ""
    values = wanted._asdict()
    values["state"] = None if wanted.state is None else str(wanted.state)
    return to_records((*row, None) for row in await db.rows(statement, **values))


async def stats(db: Database, stream: str | None) -> Stats:
    async with db.snapshot() as session:
        names = await _streams(session) if stream is None else [stream]
        seen = defaultdict[str, int](int, await session.rows("stats", streams=names))
        ((oldest,),) = await session.rows("stats_oldest", streams=names)
        ((done,),) = await session.rows("stats_done", stream=stream)
    counts = dict.fromkeys((str(state) for state in State), 0)
    counts |= {state: seen[state] for state in _OTHER} | {State.DONE: done}
    unfinished = seen["ready"] + seen["waiting"] + seen["parked"]
    counts[State.PENDING] = unfinished - seen[State.PROCESSING] - seen[State.FAILED]
    return Stats(counts, max(0.0, oldest or 0.0), seen["blocked"])


async def streams(db: Database) -> list[str]:
    async with db.snapshot() as session:
        return await _streams(session)


async def _streams(session: Session) -> list[str]:
    return [name for (name,) in await session.rows("streams")]


async def inboxes(db: Database | Session) -> list[InboxStats]:
    rows = await db.rows("inboxes", most=MAX_INBOX_ROWS, recent=RECENT_SECONDS)
    return [InboxStats._make(row) for row in rows]


async def identity(db: Database) -> str:
    ((name,),) = await db.rows("identity")
    return str(name)


async def details(db: Database, event_id: str) -> Details | None:
    rows = await db.rows("details", id=event_id)
    return Details._make(rows[0]) if rows else None


async def acceptances(db: Database, ids: Sequence[str]) -> list[Accepted]:
    return [Accepted._make(row) for row in await db.rows("acceptances", ids=list(ids))]


async def dead_causes(db: Database, stream: str | None, limit: int) -> list[DeadCause]:
    rows = await db.rows("dead_causes", stream=stream, limit=limit)
    return [DeadCause._make(row) for row in rows]
