"""Makes events readable that wait for a time, once they are due (rule W7)."""

from __future__ import annotations

from collections.abc import Sequence

from postroom.store import Staged
from postroom.stores.postgres.database import Database
from postroom.stores.postgres.floors import Floors
from postroom.stores.postgres.statements import numbers


async def stage(
    db: Database, floors: Floors, stream: str, lanes: Sequence[int], limit: int
) -> Staged:
    """Move due events and return whether there is work, in one statement."""
    owners, tokens = floors.holders(stream, lanes)
    with floors.moving(stream, lanes):
        ((moved, due, ready, where, lowest),) = await db.rows(
            "stage",
            stream=stream,
            lanes=numbers(lanes),
            owners=owners,
            tokens=numbers(tokens),
            floors=floors.of(stream, lanes),
            epoch=floors.epoch,
            limit=limit,
        )
        # After the commit: their order is kept by their key's block, or none is guaranteed.
        if moved:
            floors.lower(stream, zip(where, lowest, strict=True))
    return Staged(int(moved), due, ready)
