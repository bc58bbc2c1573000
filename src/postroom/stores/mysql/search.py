"""Searches by index, the bounds of other searches, and the optional indexes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from postroom.lookup import Filter
from postroom.model.unreadable_rows import decode
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
from postroom.stores.mysql.session import Session
from postroom.stores.sql_files import NEWEST

Sessions = Callable[[], AbstractAsyncContextManager[Session]]


class Search:
    """The port `Search` on MySQL and MariaDB.

    session     returns one of the store's own sessions
    once        opens a session for one piece of work, which may take long
    """

    def __init__(self, prefix: str, session: Sessions, once: Sessions) -> None:
        self._prefix = prefix
        self._session = session
        self._once = once

    async def indexes(self) -> frozenset[str]:
        async with self._session() as session:
            return await indexes(session, self._prefix)

    async def set_index(self, name: str, *, present: bool) -> bool:
        check_index(name)
        async with self._once() as session:
            there = await _names(session)
            steps = []
            for column in OPTIONAL[name]:
                index = f"{self._prefix}outbox_{INDEX_OF[column]}"
                if (index in there) != present:
                    add = f"ADD INDEX {index} (`{column}`, seq)"
                    steps.append(add if present else f"DROP INDEX {index}")
            if steps:
                # Writers go on; refused where the server cannot do that.
                await session.execute(
                    f"ALTER TABLE {self._prefix}outbox {', '.join(steps)}, "
                    "ALGORITHM = INPLACE, LOCK = NONE"
                )
        return bool(steps)

    async def reach(self, wanted: Filter, rows: int) -> Reach:
        async with self._session() as session:
            by = walk_by(wanted, await indexes(session, self._prefix), bounded=True)
            name = "reach" if by is None else f"reach_{by}" if by == "state" else f"reach_by_{by}"
            name += NEWEST if wanted.newest else ""
            values = {**wanted._asdict(), "rows": rows}
            values["state"] = None if wanted.state is None else str(wanted.state)
            ((count, seq),) = await session.rows(name, **values)
            return Reach(count, seq)

    async def position(self, at_us: int) -> int:
        search = bisect(at_us)
        async with self._session() as session:
            try:
                wanted = next(search)
                while True:
                    rows = await session.rows("position", seq=wanted)
                    wanted = search.send(rows[0] if rows else None)
            except StopIteration as found:
                return int(found.value)

    async def outline(self, by: Column, value: str, limit: int) -> list[Outline]:
        async with self._session() as session:
            if by == "key":
                rows = await session.rows("outline_newest", value=value, limit=limit)
            else:
                if CORRELATION not in await indexes(session, self._prefix):
                    raise no_index(by)
                rows = await session.rows(f"outline_by_{by}", value=value, limit=limit)
            return [to_outline(row) for row in rows]

    async def ids(self, beginning: str, limit: int) -> list[str]:
        async with self._session() as session:
            rows = await session.rows("ids", beginning=beginning, limit=limit)
            return beginning_with(beginning, (decode(name) for (name,) in rows))

    async def outlines(self, ids: Sequence[str]) -> list[Outline]:
        if not ids:
            return []
        async with self._session() as session:
            rows = await session.rows("outlines", ids=tuple(dict.fromkeys(ids)))
            return [to_outline(row) for row in rows]

    async def newest(self, limit: int) -> list[Outline]:
        async with self._session() as session:
            return [to_outline(row) for row in await session.rows("newest", limit=limit)]


async def indexes(session: Session, prefix: str) -> frozenset[str]:
    """Return the optional indexes that are complete."""
    there = await _names(session)
    return frozenset(
        name
        for name, columns in OPTIONAL.items()
        if all(f"{prefix}outbox_{INDEX_OF[column]}" in there for column in columns)
    )


async def _names(session: Session) -> set[str]:
    found = [name for (name,) in await session.rows("indexes")]
    return {name.decode() if isinstance(name, bytes) else str(name) for name in found}
