"""A SQLite file with the tables of postroom and of a small business, and a look at it from outside."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from postroom.stores.migration_scripts import Place, script

SCHEMA = script(Place("sqlite", "postroom_"), 0, transaction=False)


def make(path: Path) -> Path:
    """Write the file: made once, and copied for each test, because creating tables is slow."""
    path.write_bytes(_template())
    return path


@cache
def _template() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder, "template.db")
        with closing(sqlite3.connect(path)) as conn:
            conn.execute("PRAGMA journal_mode=WAL").fetchall()
            conn.executescript(SCHEMA)
            conn.execute("CREATE TABLE orders (name TEXT)")
            conn.commit()
        return path.read_bytes()


def rows(path: Path, table: str = "postroom_outbox") -> list[Mapping[str, Any]]:
    order = "seq" if table.endswith("outbox") else "1" if table.startswith("postroom") else "rowid"
    with closing(sqlite3.connect(path)) as conn:
        conn.row_factory = sqlite3.Row
        found = conn.execute(f"SELECT * FROM {table} ORDER BY {order}").fetchall()
    return [dict(row) for row in found]
