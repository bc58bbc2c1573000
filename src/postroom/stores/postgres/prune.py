"""Deletes old done events, old dead letters, and operations that ended long ago."""

from __future__ import annotations

from postroom.store import PrunedDead
from postroom.stores.postgres.database import Database


async def prune(db: Database, older_than_seconds: float, limit: int) -> int:
    """Delete old done events."""
    async with db.change() as session:
        return await session.run("prune", seconds=older_than_seconds, limit=limit)


async def prune_dead(
    db: Database, stream: str, older_than_seconds: float, after_seq: int, limit: int
) -> PrunedDead:
    """Delete the old ones of the next dead letters of a stream."""
    async with db.change() as session:
        ((removed, seen, last),) = await session.rows(
            "prune_dead",
            stream=stream,
            seconds=older_than_seconds,
            after_seq=after_seq,
            limit=limit,
        )
    return PrunedDead(removed, last if seen == limit else None)


async def prune_operations(db: Database, older_than_seconds: float, limit: int) -> int:
    """Delete operations that ended long ago."""
    async with db.change() as session:
        return await session.run("prune_operations", seconds=older_than_seconds, limit=limit)
