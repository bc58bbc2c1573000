"""Makes events readable that wait for a time, once they are due (rule W7)."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from postroom.store import Staged
from postroom.stores.mysql.session import Session


async def stage(session: Session, stream: str, lanes: Sequence[int], limit: int) -> Staged:
    """Move due events; writes only if there are some."""
    if not lanes:
        return Staged(0, None, ready=False)
    where = {"stream": stream, "lanes": tuple(lanes), "each_lane": json.dumps(list(lanes))}
    ((due, ready),) = await session.rows("stage_look", **where)
    moved = 0
    if due is not None and due <= 0:
        # Each lane separately and in any order: one that is full of due events holds up no other.
        some = random.sample(lanes, len(lanes))
        parts = [session.say("stage_due", stream=stream, lane=n, most=-(-limit // 4)) for n in some]
        text = " UNION ALL ".join(f"({part})" for part in parts)
        found = await session.query(f"{text} LIMIT {limit}")
        if found:
            async with session.change():
                seqs = tuple(sorted(seq for (seq,) in found))
                free = tuple(seq for (seq,) in await session.rows("stage_free", seqs=seqs))
                if free:
                    moved = await session.run("stage", seqs=free)
        ((due, ready),) = await session.rows("stage_look", **where)
    wait = None if due is None else max(0.0, due / 1_000_000)
    return Staged(moved, wait, bool(ready))
