"""Keys blocked by a failed head: lets them go on, repairs their blocks (rules B1 to B4)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from postroom.stores.postgres.database import Database, Session
from postroom.stores.postgres.floors import Floors
from postroom.stores.postgres.leases import fence
from postroom.stores.postgres.statements import hashes, numbers

ADVANCE_STEP = 500


async def advance(session: Session, stream: str, keys: Collection[bytes]) -> list[tuple[int, int]]:
    """Let keys whose barrier event has ended go on: their next followers, or all of them and the
    block is lifted.

    Does nothing for a key while its barrier's event is unfinished. Returns the lane of each key
    that went on, and the lowest number that came back there (0: none did). Call it inside a
    transaction that holds the lanes.
    """
    if not keys:
        return []
    rows = await session.rows("advance", stream=stream, keys=hashes(keys), step=ADVANCE_STEP)
    return [(lane, lowest or 0) for lane, lowest in rows]


async def repair_blocks(
    db: Database, floors: Floors, stream: str, owner: str, leases: Mapping[int, int], limit: int
) -> int:
    """Repair blocks from the stored state; opens a transaction only if one is broken."""
    if not await db.rows("repair_blocks", stream=stream, lanes=numbers(leases), limit=1):
        return 0
    with floors.moving(stream, leases):
        async with db.change() as session:
            held = await fence(session, stream, owner, leases)
            broken = await session.rows(
                "repair_blocks", stream=stream, lanes=numbers(held), limit=limit
            )
            lowest = await advance(session, stream, [key_hash for (key_hash,) in broken])
            floors.lower(stream, lowest)
            return len(lowest)
