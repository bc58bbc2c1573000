"""Deletes old done events, old dead letters, and operations that ended long ago."""

from __future__ import annotations

from postroom.model.durations import span_microseconds
from postroom.store import PrunedDead
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


async def prune_dead(
    session: Session, stream: str, older_than_seconds: float, after_seq: int, limit: int
) -> PrunedDead:
    """Delete the old ones of the next dead letters of a stream."""
    older = span_microseconds(older_than_seconds)
    page = await session.rows(
        "prune_dead_page", stream=stream, older=older, after_seq=after_seq, limit=limit
    )
    old = tuple(seq for seq, is_old in page if is_old)
    removed = 0
    if old:
        async with session.change():
            removed = await session.run("prune_dead", seqs=old, older=older)
    return PrunedDead(removed, page[-1][0] if len(page) == limit else None)


async def prune_operations(session: Session, older_than_seconds: float, limit: int) -> int:
    """Delete operations that ended long ago."""
    older = span_microseconds(older_than_seconds)
    ((found,),) = await session.rows("prune_operations_any", older=older)
    if not found:
        return 0
    async with session.change():
        return await session.run("prune_operations", older=older, limit=limit)
