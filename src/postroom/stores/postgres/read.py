"""Reads the events that may be sent now, fair over lanes (rules R1 to R4, R6, B2)."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic

from postroom.errors import StoreError
from postroom.model.unreadable_rows import to_records
from postroom.record import Record
from postroom.store import ReadRequest
from postroom.stores.postgres.database import Database
from postroom.stores.postgres.floors import Floors
from postroom.stores.postgres.statements import hashes, numbers


async def read(db: Database, floors: Floors, request: ReadRequest) -> list[Record]:
    """Select and fetch in one statement, which is one snapshot."""
    lanes, began = request.lanes, monotonic()
    rows = await db.rows(
        "read",
        stream=request.stream,
        lanes=numbers(lanes),
        owner=request.owner,
        tokens=numbers(map(request.tokens.get, lanes)),
        floors=floors.under(request),
        epoch=floors.epoch,
        per_lane=request.per_lane,
        rows=max(request.rows, 1),
        size=request.size,
        exclude=hashes(request.exclude),
    )
    with suppress(StoreError):  # only makes the next reads slower
        await floors.noticed(db, request, monotonic() - began)
    return to_records(rows)
