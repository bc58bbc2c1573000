"""Deletes old done events."""

from __future__ import annotations

from postroom.stores.postgres.database import Database


async def prune(db: Database, older_than_seconds: float, limit: int) -> int:
    """Delete old done events."""
    async with db.change() as session:
        return await session.run("prune", seconds=older_than_seconds, limit=limit)
