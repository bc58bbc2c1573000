"""Deletes old done events."""

from __future__ import annotations

from postroom.model.clock import host_microseconds
from postroom.model.durations import span_microseconds
from postroom.stores.sqlite.thread import Database


def prune(db: Database, older_than_seconds: float, limit: int) -> int:
    """Delete old done events; takes the write lock only if there are some."""
    before = host_microseconds() - span_microseconds(older_than_seconds)
    ((found,),) = db.rows("prune_any", before=before)
    if not found:
        return 0
    with db.change():
        return db.run("prune", before=before, limit=limit).rowcount
