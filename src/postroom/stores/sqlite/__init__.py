"""SQLite: one file, several processes, nothing to install."""

from postroom.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
