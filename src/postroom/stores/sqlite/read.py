"""Reads the events that may be sent now, fair over lanes (rules R1 to R4, B2)."""

from __future__ import annotations

import json
import sqlite3
from operator import attrgetter

from postroom.model.unreadable_rows import to_records
from postroom.record import Record
from postroom.store import ReadRequest
from postroom.stores.sqlite.errors import is_not_text
from postroom.stores.sqlite.thread import Database

_CHUNK = 50  # rows fetched at once: limits what a read holds beyond its byte limit

_payload = attrgetter("payload")
_headers = attrgetter("headers_json")


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
    """Make records of the rows that fit, a few at a time; always of the first one."""
    found: list[Record] = []
    while rows := cursor.fetchmany(_CHUNK):
        records = to_records(rows)
        weight = sum(map(len, map(_payload, records)))
        weight += sum(len(headers) for headers in map(_headers, records) if headers)
        if weight <= room:
            room -= weight
            found += records
            continue
        for record in records:
            room -= record.size
            if room < 0 and found:
                break
            found.append(record)
        break
    return found


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
