"""Operators' questions: get, find, count. Nothing is changed."""

from __future__ import annotations

import json
from collections import Counter
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
from postroom.model.clock import host_microseconds
from postroom.model.dead_letters import DeadCause
from postroom.model.unreadable_rows import decode, to_record, to_records
from postroom.record import Record, State
from postroom.search import is_caused, walk_by
from postroom.stores.sql_files import NEWEST
from postroom.stores.sqlite.search import indexes
from postroom.stores.sqlite.thread import Database

_OTHER = (State.PROCESSING, State.FAILED, State.DEAD, State.EXPIRED, State.CANCELLED)


def get(db: Database, event_id: str) -> Record | None:
    rows = db.rows("get", id=event_id)
    return to_record((*rows[0], None)) if rows else None


def look_up(db: Database, ids: Sequence[str]) -> dict[str, Standing]:
    rows = db.rows("look_up", ids=json.dumps(list(ids)))
    return {event_id: Standing(*facts) for event_id, *facts in rows}


def open_keys(db: Database, stream: str, limit: int) -> list[bytes]:
    return [bytes(found) for (found,) in db.rows("open_keys", stream=stream, limit=limit)]


def find(db: Database, prefix: str, wanted: Filter) -> list[Record]:
    by = walk_by(wanted, indexes(db, prefix) if is_caused(wanted) else ())
    statement = {None: "find", "state": "find_other"}.get(by, f"find_by_{by}")
    statement += NEWEST if wanted.newest else ""
    values = wanted._asdict()
    values["state"] = None if wanted.state is None else str(wanted.state)
    return to_records((*row, None) for row in db.rows(statement, **values))


def stats(db: Database, stream: str | None) -> Stats:
    of = {"first": "", "last": b""} if stream is None else {"first": stream, "last": stream}
    with db.snapshot() as now:
        seen = Counter[str]()
        for name, number in db.rows("stats", **of):
            seen[name] += number
        ((oldest,),) = db.rows("stats_oldest", **of)
        ((done,),) = db.rows("stats_done", stream=stream)
    counts = dict.fromkeys((str(state) for state in State), 0)
    counts |= {str(state): seen[state] for state in _OTHER} | {str(State.DONE): done}
    unfinished = seen["ready"] + seen["waiting"] + seen["parked"]
    counts[State.PENDING] = unfinished - seen[State.PROCESSING] - seen[State.FAILED]
    lag = 0.0 if oldest is None else max(0.0, (now - oldest) / 1_000_000)
    return Stats(counts, lag, seen["blocked"])


def streams(db: Database) -> list[str]:
    found = [name for (name,) in db.rows("streams")]
    return [decode(name) if isinstance(name, bytes) else str(name) for name in found]


def identity(db: Database) -> str:
    ((name,),) = db.rows("identity")
    return str(name)


def details(db: Database, event_id: str) -> Details | None:
    rows = db.rows("details", id=event_id)
    return Details._make(rows[0]) if rows else None


def acceptances(db: Database, ids: Sequence[str]) -> list[Accepted]:
    rows = db.rows("acceptances", ids=json.dumps(list(ids)))
    return [Accepted(_text(name), event_id, at, bool(done)) for name, event_id, at, done in rows]


def _text(stored: object) -> str:
    return decode(stored) if isinstance(stored, bytes) else str(stored)


def dead_causes(db: Database, stream: str | None, limit: int) -> list[DeadCause]:
    return [DeadCause._make(row) for row in db.rows("dead_causes", stream=stream, limit=limit)]


def inboxes(db: Database) -> list[InboxStats]:
    since = host_microseconds() - RECENT_SECONDS * 1_000_000
    rows = db.rows("inboxes", most=MAX_INBOX_ROWS, since=since)
    return [InboxStats._make(row) for row in rows]
