"""Deletes old done events."""

from __future__ import annotations

from postroom.model.durations import span_microseconds
from postroom.stores.mysql.lookup import stored_streams
from postroom.stores.mysql.session import Session

_PRUNED = ("done", "expired", "cancelled")


async def prune(session: Session, older_than_seconds: float, limit: int) -> int:
    """Delete old done events, stream by stream; within each the oldest first."""
    older, removed = span_microseconds(older_than_seconds), 0
    places = [(stream, state) for stream in await stored_streams(session) for state in _PRUNED]
    for stream, state in places:
        found = await session.rows(
            "prune_old", stream=stream, state=state, older=older, limit=limit - removed
        )
        if found:
            async with session.change():
                seqs = tuple(sorted(seq for (seq,) in found))
                removed += await session.run("prune", seqs=seqs, older=older)
        if removed >= limit:
            break
    return removed
