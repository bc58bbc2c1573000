"""Makes events readable that wait for a time, once they are due (rule W7)."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from postroom.model.clock import host_microseconds
from postroom.store import Staged
from postroom.stores.sqlite.thread import Database


def stage(db: Database, stream: str, lanes: Sequence[int], limit: int) -> Staged:
    """Move due events; takes the write lock only if there are some."""
    where = {"stream": stream, "lanes": json.dumps(list(lanes))}
    ((due, ready),) = db.rows("stage_look", **where)
    now, moved = host_microseconds(), 0
    if isinstance(due, int) and due <= now:
        with db.change() as now:
            # Each lane separately, in any order: one that is full of due events holds up no other.
            for lane in random.sample(lanes, len(lanes)):
                most = min(-(-limit // 4), limit - moved)
                moved += db.run("stage", stream=stream, lane=lane, now=now, most=most).rowcount
                if moved >= limit:
                    break
            ((due, ready),) = db.rows("stage_look", **where)
    wait = max(0.0, (due - now) / 1_000_000) if isinstance(due, int) else None
    return Staged(moved, wait, bool(ready))
