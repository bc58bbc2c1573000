"""Deletes old done events, old dead letters, and operations that ended long ago."""

from __future__ import annotations

import json

from postroom.model.clock import host_microseconds
from postroom.model.durations import span_microseconds
from postroom.store import PrunedDead
from postroom.stores.sqlite.thread import Database


def prune(db: Database, older_than_seconds: float, limit: int) -> int:
    """Delete old done events; takes the write lock only if there are some."""
    before = host_microseconds() - span_microseconds(older_than_seconds)
    ((found,),) = db.rows("prune_any", before=before)
    if not found:
        return 0
    with db.change():
        return db.run("prune", before=before, limit=limit).rowcount


def prune_dead(
    db: Database, stream: str, older_than_seconds: float, after_seq: int, limit: int
) -> PrunedDead:
    """Delete the old ones of the next dead letters of a stream."""
    before = host_microseconds() - span_microseconds(older_than_seconds)
    page = db.rows(
        "prune_dead_page", stream=stream, before=before, after_seq=after_seq, limit=limit
    )
    old = [seq for seq, is_old in page if is_old]
    removed = 0
    if old:
        with db.change():
            removed = db.run("prune_dead", seqs=json.dumps(old), before=before).rowcount
    return PrunedDead(removed, page[-1][0] if len(page) == limit else None)


def prune_operations(db: Database, older_than_seconds: float, limit: int) -> int:
    """Delete operations that ended long ago; takes the write lock only if there are some."""
    before = host_microseconds() - span_microseconds(older_than_seconds)
    ((found,),) = db.rows("prune_operations_any", before=before)
    if not found:
        return 0
    with db.change():
        return db.run("prune_operations", before=before, limit=limit).rowcount
