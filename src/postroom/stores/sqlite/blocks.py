"""Keys blocked by a failed head: lets them go on, repairs their blocks (rules B1 to B4)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from postroom.stores.sqlite.leases import held_lanes
from postroom.stores.sqlite.thread import Database

ADVANCE_STEP = 500


def advance(db: Database, stream: str, key_hash: bytes) -> bool:
    """Let a key whose barrier event has ended go on: its next followers, or all of them and the
    block is lifted.

    Does nothing while the barrier's event is unfinished. Call it inside a change.
    """
    key = {"stream": stream, "key_hash": key_hash}
    if not db.rows("advance_open", **key):
        return False
    moved = [seq for (seq,) in db.rows("advance", step=ADVANCE_STEP, **key)]
    if len(moved) == ADVANCE_STEP and db.rows("advance_more", **key):
        db.run("advance_barrier", barrier=max(moved), **key)
    else:
        db.run("advance_unblock", **key)
    return True


def repair_blocks(
    db: Database, stream: str, owner: str, leases: Mapping[int, int], limit: int
) -> int:
    """Repair blocks from the stored state; takes the write lock only if one is broken."""
    if not db.rows("repair_blocks", stream=stream, lanes=json.dumps(list(leases)), limit=1):
        return 0
    with db.change() as now:
        lanes = json.dumps(sorted(held_lanes(db, stream, owner, leases, now)))
        broken = db.rows("repair_blocks", stream=stream, lanes=lanes, limit=limit)
        return sum(advance(db, stream, key_hash) for (key_hash,) in broken)
