"""Searches by index, the bounds of other searches, and the optional indexes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import psycopg
from psycopg import AsyncConnection

from postroom.errors import StoreRetryableError
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
from postroom.stores.postgres.database import Database
from postroom.stores.postgres.settings import PostgresSettings
from postroom.stores.postgres.statements import load_queries
from postroom.stores.sql_files import NEWEST

Connected = Callable[[], AbstractAsyncContextManager[AsyncConnection[Any]]]


class Search:
    """The port `Search` on PostgreSQL.

    database    returns the open pool
    connected   opens a connection outside of the pool, without time limits
    """

    def __init__(
        self, settings: PostgresSettings, database: Callable[[], Database], connected: Connected
    ) -> None:
        self._settings = settings
        self._database = database
        self._connected = connected

    async def indexes(self) -> frozenset[str]:
        return await indexes(self._database(), self._settings.prefix)

    async def set_index(self, name: str, *, present: bool) -> bool:
        check_index(name)
        changed = False
        async with self._connected() as connection:
            # A build takes as long as the table is large; it blocks no writer.
            await connection.execute("SET statement_timeout = 0")
            await connection.execute("SET lock_timeout = 0")
            for column in OPTIONAL[name]:
                changed = await self._set(connection, column, present=present) or changed
        return changed

    async def _set(
        self, connection: AsyncConnection[Any], column: Column, *, present: bool
    ) -> bool:
        tables, name = self._settings.tables, f"outbox_{INDEX_OF[column]}"
        rows = await connection.execute(load_queries(tables)["index_state"].sql.encode())
        states = {str(found): (valid, building) for found, valid, building in await rows.fetchall()}
        there = states.get(self._settings.prefix + name)
        if there is not None and there[1]:
            raise StoreRetryableError(
                f"another process is building the index {self._settings.prefix}{name}; "
                "try again when it has finished"
            )
        if (there is not None and there[0]) == present:
            return False
        if there is not None:  # to be dropped, or left behind by a build that was interrupted
            await connection.execute(f"DROP INDEX CONCURRENTLY {tables}{name}".encode())
        if present:
            create = (
                f"CREATE INDEX CONCURRENTLY {self._settings.prefix}{name} ON {tables}outbox "
                f'({column} COLLATE "C", seq) WHERE {column} IS NOT NULL'
            )
            try:
                await connection.execute(create.encode())
            except psycopg.errors.DuplicateTable:
                raise StoreRetryableError(
                    f"another process creates {self._settings.prefix}{name}; try again"
                ) from None
        return True

    async def reach(self, wanted: Filter, rows: int) -> Reach:
        by = walk_by(wanted, await self.indexes(), bounded=True)
        statement = "reach" if by is None else f"reach_{by}" if by == "state" else f"reach_by_{by}"
        statement += NEWEST if wanted.newest else ""
        values = {**wanted._asdict(), "rows": rows}
        values["state"] = None if wanted.state is None else str(wanted.state)
        ((count, seq),) = await self._database().rows(statement, **values)
        return Reach(count, seq)

    async def position(self, at_us: int) -> int:
        search, probe = bisect(at_us), None
        try:
            wanted = next(search)
            while True:
                rows = await self._database().rows("position", seq=wanted)
                probe = rows[0] if rows else None
                wanted = search.send(probe)
        except StopIteration as found:
            return int(found.value)

    async def outline(self, by: Column, value: str, limit: int) -> list[Outline]:
        if by == "key":
            rows = await self._database().rows("outline_newest", value=value, limit=limit)
        else:
            if CORRELATION not in await self.indexes():
                raise no_index(by)
            rows = await self._database().rows(f"outline_by_{by}", value=value, limit=limit)
        return [to_outline(row) for row in rows]

    async def ids(self, beginning: str, limit: int) -> list[str]:
        rows = await self._database().rows("ids", beginning=beginning, limit=limit)
        return beginning_with(beginning, (name for (name,) in rows))

    async def outlines(self, ids: Sequence[str]) -> list[Outline]:
        return [to_outline(row) for row in await self._database().rows("outlines", ids=list(ids))]

    async def newest(self, limit: int) -> list[Outline]:
        return [to_outline(row) for row in await self._database().rows("newest", limit=limit)]


async def indexes(db: Database, prefix: str) -> frozenset[str]:
    """Return the optional indexes that are complete."""
    there = {name for (name,) in await db.rows("indexes")}
    return frozenset(
        name
        for name, columns in OPTIONAL.items()
        if all(f"{prefix}outbox_{INDEX_OF[column]}" in there for column in columns)
    )
