"""Checks of an SQLite file for `postroom doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from postroom.model.diagnostics import Finding

if TYPE_CHECKING:
    from postroom.stores.sqlite.store import SqliteStore
    from postroom.stores.sqlite.thread import Database

INDEXES = (
    "outbox_ready",
    "outbox_waiting",
    "outbox_parked",
    "outbox_done",
    "outbox_other",
    "outbox_key",
)
MUCH_WAL_BYTES = 256_000_000


async def examine(store: SqliteStore) -> list[Finding]:
    """Return all findings; an empty list if there are none."""
    found = await store.ask(lambda db: [*check_journal(db), *check_indexes(db, store.prefix)])
    return [*found, *check_wal(store.path)]


def check_journal(db: Database) -> list[Finding]:
    """Readers and the writer run concurrently only with a write-ahead log."""
    (mode,) = db.connection.execute("PRAGMA journal_mode").fetchone()
    if mode == "wal":
        return []
    return [
        Finding(
            "error",
            f"the journal mode is {mode}, not WAL",
            "a reader blocks every writer: leases are not renewed, and lanes change owners",
            "run `postroom migrate` while no other process has the file open",
        )
    ]


def check_indexes(db: Database, prefix: str) -> list[Finding]:
    """Without its index a read scans the whole table."""
    rows = db.connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")
    there = {name for (name,) in rows}
    return [
        Finding(
            "error",
            f"the index {prefix}{name} is missing",
            "reads, settles or searches scan the whole table, or fail",
            f"sqlite3 FILE, and the line of {prefix}{name} in `postroom migrate sql --from 0`",
        )
        for name in INDEXES
        if f"{prefix}{name}" not in there
    ]


def check_wal(path: Path) -> list[Finding]:
    """A transaction that stays open keeps the log from being checkpointed."""
    log = path.with_name(path.name + "-wal")
    size = log.stat().st_size if log.exists() else 0
    if size < MUCH_WAL_BYTES:
        return []
    return [
        Finding(
            "warning",
            f"the write-ahead log has grown to {size:,} bytes",
            "a process has kept a transaction open; reads become slow, and the disk fills up",
            f"find it (fuser {path}) and let it end its transactions",
        )
    ]
