"""Searches by index, the bounds of other searches, and the optional indexes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from postroom.lookup import Filter
from postroom.search import (
    CORRELATION,
    INDEX_OF,
    OPTIONAL,
    Column,
    Outline,
    Reach,
    beginning_with,
    bisect,
    check_index,
    no_index,
    to_outline,
    walk_by,
)
from postroom.stores.sql_files import NEWEST
from postroom.stores.sqlite.thread import Database

T = TypeVar("T")


class Ask(Protocol):
    """Runs a function with a connection, in the connection's thread."""

    async def __call__(self, request: Callable[[Database], T]) -> T: ...


class Search:
    """The port `Search` on SQLite.

    ask, change     run a function on the connection of operators, or on a new one that writes
    """

    def __init__(self, prefix: str, ask: Ask, change: Ask) -> None:
        self._prefix = prefix
        self._ask = ask
        self._change = change

    async def indexes(self) -> frozenset[str]:
        return await self._ask(lambda db: indexes(db, self._prefix))

    async def set_index(self, name: str, *, present: bool) -> bool:
        check_index(name)
        return await self._change(lambda db: _set_index(db, self._prefix, name, present=present))

    async def reach(self, wanted: Filter, rows: int) -> Reach:
        return await self._ask(lambda db: _reach(db, self._prefix, wanted, rows))

    async def position(self, at_us: int) -> int:
        return await self._ask(lambda db: _position(db, at_us))

    async def outline(self, by: Column, value: str, limit: int) -> list[Outline]:
        return await self._ask(lambda db: _outline(db, self._prefix, by, value, limit))

    async def ids(self, beginning: str, limit: int) -> list[str]:
        rows = await self._ask(lambda db: db.rows("ids", beginning=beginning, limit=limit))
        return beginning_with(beginning, (name for (name,) in rows))

    async def outlines(self, ids: Sequence[str]) -> list[Outline]:
        wanted = json.dumps(list(ids))
        return await self._ask(lambda db: [to_outline(r) for r in db.rows("outlines", ids=wanted)])

    async def newest(self, limit: int) -> list[Outline]:
        return await self._ask(lambda db: [to_outline(r) for r in db.rows("newest", limit=limit)])


def indexes(db: Database, prefix: str) -> frozenset[str]:
    """Return the optional indexes that are complete."""
    there = {name for (name,) in db.rows("indexes")}
    return frozenset(
        name
        for name, columns in OPTIONAL.items()
        if all(f"{prefix}outbox_{INDEX_OF[column]}" in there for column in columns)
    )


def _set_index(db: Database, prefix: str, name: str, *, present: bool) -> bool:
    with db.change():
        there = {found for (found,) in db.rows("indexes")}
        changed = False
        for column in OPTIONAL[name]:
            index = f"{prefix}outbox_{INDEX_OF[column]}"
            if (index in there) == present:
                continue
            changed = True
            if present:
                db.connection.execute(
                    f"CREATE INDEX {index} ON {prefix}outbox ({column}) WHERE {column} IS NOT NULL"
                )
            else:
                db.connection.execute(f"DROP INDEX {index}")
    return changed


def _reach(db: Database, prefix: str, wanted: Filter, rows: int) -> Reach:
    by = walk_by(wanted, indexes(db, prefix), bounded=True)
    statement = "reach" if by is None else "reach_state" if by == "state" else f"reach_by_{by}"
    statement += NEWEST if wanted.newest else ""
    values = {**wanted._asdict(), "rows": rows}
    values["state"] = None if wanted.state is None else str(wanted.state)
    ((count, seq),) = db.rows(statement, **values)
    return Reach(count, seq)


def _position(db: Database, at_us: int) -> int:
    search = bisect(at_us)
    try:
        wanted = next(search)
        while True:
            rows = db.rows("position", seq=wanted)
            seq, written, last = rows[0] if rows else (0, 0, 0)
            found = (seq, written if isinstance(written, int) else 0, last)
            wanted = search.send(found if rows else None)
    except StopIteration as found:
        return int(found.value)


def _outline(db: Database, prefix: str, by: Column, value: str, limit: int) -> list[Outline]:
    if by == "key":
        rows = db.rows("outline_newest", value=value, limit=limit)
    else:
        if CORRELATION not in indexes(db, prefix):
            raise no_index(by)
        rows = db.rows(f"outline_by_{by}", value=value, limit=limit)
    return [to_outline(row) for row in rows]
