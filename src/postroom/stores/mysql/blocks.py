"""Keys blocked by a failed head: lets them go on, repairs their blocks (rules B1 to B4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from postroom.stores.mysql.leases import fence
from postroom.stores.mysql.session import Session

ADVANCE_STEP = 500


async def advance(session: Session, stream: str, key_hash: bytes) -> bool:
    """Let a key whose barrier event has ended go on: its next followers, or all of them and the
    block is lifted.

    Does nothing while the barrier's event is unfinished. Call it inside a change.
    """
    key: dict[str, Any] = {"stream": stream, "key_hash": key_hash}
    if not await session.rows("advance_open", **key):
        return False
    found = [seq for (seq,) in await session.rows("advance_next", step=ADVANCE_STEP + 1, **key)]
    moved = found[:ADVANCE_STEP]
    if moved:
        session.later("advance", seqs=tuple(moved))
    if len(found) > len(moved):
        session.later("advance_barrier", barrier=moved[-1], **key)
    else:
        session.later("advance_unblock", **key)
    return True


async def repair_blocks(
    session: Session, stream: str, owner: str, leases: Mapping[int, int], limit: int
) -> int:
    """Repair blocks from the stored state; takes the fence only if one is broken."""
    if not leases:
        return 0
    if not await session.rows("repair_blocks", stream=stream, lanes=tuple(leases), limit=1):
        return 0
    repaired = 0
    async with session.change():
        lanes = await fence(session, stream, owner, leases)
        if lanes:
            broken = await session.rows(
                "repair_blocks", stream=stream, lanes=tuple(lanes), limit=limit
            )
            for (key_hash,) in broken:
                repaired += await advance(session, stream, key_hash)
    return repaired
