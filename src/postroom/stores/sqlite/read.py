"""Reads the events that may be sent now, fair over lanes (rules R1 to R4, B2)."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from postroom.model.unreadable_rows import to_records
from postroom.record import Record
from postroom.store import ReadRequest
from postroom.stores.sqlite.errors import is_not_text
from postroom.stores.sqlite.thread import Database

_PAYLOAD, _HEADERS = map(Record._fields.index, ("payload", "headers_json"))


def read(db: Database, request: ReadRequest) -> list[Record]:
    """Select by the index alone, then fetch the selected rows, in one snapshot.

    Oldest first, because rows that were written together are on the same pages: a settle in the
    order of lanes would write several times as many.
    """
    with db.snapshot():
        seqs = _choose(db, request)
        if not seqs:
            return []
        asked = json.dumps(seqs)
        try:
            return _fetch(db.run("read", seqs=asked), request.size)
        except sqlite3.OperationalError as error:
            if not is_not_text(error):
                raise
        with db.reading_any_text():  # slower, until the row in question has been settled
            return _fetch(db.run("read", seqs=asked), request.size)


def _fetch(cursor: sqlite3.Cursor, room: int) -> list[Record]:
    """Make records of the rows that fit, always of the first one; fetches one row more at most."""
    fitting: list[tuple[Any, ...]] = []
    for row in cursor:
        room -= _weight(row[_PAYLOAD]) + _weight(row[_HEADERS])
        if room < 0 and fitting:
            break
        fitting.append(row)
    return to_records(fitting)


def _weight(value: object) -> int:
    return len(value) if isinstance(value, (bytes, str)) else 0


def _choose(db: Database, request: ReadRequest) -> list[int]:
    """Return the numbers to read: the first of each lane, then the oldest of the rest."""
    where = {
        "stream": request.stream,
        "lanes": json.dumps([(lane, request.tokens.get(lane)) for lane in request.lanes]),
        "per_lane": request.per_lane,
        "owner": request.owner,
    }
    if request.exclude:
        exclude = json.dumps([key.hex().upper() for key in request.exclude])
        lanes = db.rows("read_seqs_except", exclude=exclude, **where)
    else:
        lanes = db.rows("read_seqs", **where)
    heads: list[int] = []
    rest: list[int] = []
    for (numbers,) in lanes:
        seqs = json.loads(numbers)
        heads += seqs[:1]
        rest += seqs[1:]
    rest.sort()
    return (heads + rest)[: max(request.rows, 1)]
