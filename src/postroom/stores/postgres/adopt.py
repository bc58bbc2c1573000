"""Adopts another program's outbox table: moves its rows into postroom's.

  stop the old dispatcher, start no relay → `await adopt(store, "outbox")`
  → let writers use `outbox.add` → `await adopt(store, "outbox")` once more, for rows written
  in between → start relays

The table has an `id` and the columns `event_type` and `payload`; others are used if they are there:
event_id, aggregate_type, aggregate_id, topic, status or sent_at, attempts, created_at, last_error.
`columns` gives the names that the table has for them.

Rows keep their ids, order and attempts. Where `id` is an integer they keep their numbers, too: the
numbers of new events begin far above them, so that rows moved later still come before them. This
holds only while no relay sends: a relay that has sent a new event cannot send an older one before
it. `adopt` therefore refuses to work while a relay serves the stream.

Every step moves some rows in one transaction, so that a row is in exactly one of the tables. It may
be interrupted anywhere and run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg import AsyncConnection, AsyncRawCursor, IsolationLevel
from psycopg.errors import UniqueViolation

from postroom.errors import ConfigError, StoreError
from postroom.store import Adopted
from postroom.stores import sql_files
from postroom.stores.adoption import (
    STATES,
    Adoption,
    number_taken,
    refuse_relays,
    row_does_not_fit,
    sort_statuses,
)
from postroom.stores.postgres.statements import numbers
from postroom.transactions.queries import Query, compile_query

if TYPE_CHECKING:
    from postroom.stores.postgres.store import PostgresStore

COLUMNS = (
    "id", "event_id", "event_type", "aggregate_type", "aggregate_id", "topic", "payload", "status",
    "sent_at", "attempts", "created_at", "last_error",
)  # fmt: skip
_REQUIRED = ("id", "event_type", "payload")
_INTEGERS = {"smallint": -(2**15), "integer": -(2**31), "bigint": -(2**63)}  # the lowest of each
_NIL = "00000000-0000-0000-0000-000000000000"
_PACKAGE = "postroom.stores.postgres"


@dataclass(frozen=True)
class PostgresAdoption(Adoption):
    """The options of Adoption, and two more.

    columns        the table's own names for the columns, such as {"event_type": "kind"}. `sent_at`
                   takes the place of `status`: NULL is pending, a time is done
    content_type   of the payloads; by default application/json, of a bytea column
                   application/octet-stream
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    content_type: str | None = None

    def check(self) -> None:
        super().check()
        for name in self.columns:
            if name not in COLUMNS:
                raise ConfigError(f"no column {name!r} is moved; use one of {', '.join(COLUMNS)}")


class _Start(NamedTuple):
    """The last row of a step, by its place and id: the next step begins after it."""

    place: str
    id: str


async def adopt(
    store: PostgresStore,
    table: str,
    *,
    connected: Callable[[], AbstractAsyncContextManager[AsyncConnection[Any]]],
    on_moved: Callable[[int], object] = lambda _: None,
    **options: Any,
) -> Adopted:
    """Move the rows of an old table into the outbox; options are those of PostgresAdoption.

    `on_moved` is called after each step with the number of rows; if it raises, the work ends
    between two steps. Raises StoreError, with nothing lost, for a row that does not fit or a number
    that is taken.
    """
    adoption = PostgresAdoption(table, **options)
    adoption.check()
    refuse_relays(await store.leases(adoption.stream), adoption)
    async with connected() as connection:
        await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
        old = await _OldTable.read(connection, store.settings.tables, adoption)
        lists = await old.statuses()
        await old.refuse_unfit(lists["moving"])
        if old.keeps_numbers:
            await old.make_room()
        moved, after = 0, old.start
        while True:
            step, after = await old.step(lists, after)
            moved += step
            if not step:
                break
            on_moved(step)
            refuse_relays(await store.leases(adoption.stream), adoption)
        await old.statuses()  # rows written meanwhile
        left, _ = await old.left()
    return Adopted(moved, left)


class _OldTable:
    """The table that is adopted, with the statements for its columns."""

    def __init__(
        self,
        connection: AsyncConnection[Any],
        prefix: str,
        adoption: PostgresAdoption,
        types: Mapping[str, str],
        zone: str,
    ) -> None:
        self._connection = connection
        self._adoption = adoption
        self._types = _named(adoption, types)
        integer = self._types["id"] in _INTEGERS
        self.keeps_numbers = adoption.keep_numbers if adoption.keep_numbers is not None else integer
        if self.keeps_numbers and not integer:
            raise ConfigError(
                f"the numbers of {adoption.table} cannot be kept: its id is of type "
                f"{self._types['id']}, not an integer. Leave keep_numbers out"
            )
        if not integer and "created_at" not in self._types:
            raise ConfigError(
                f"the order of the rows of {adoption.table} is unknown: its id is of type "
                f"{self._types['id']}. Name the column with their time: --column created_at=…"
            )
        self._integer = integer
        self.start = _Start("-infinity", _NIL if self._types["id"] == "uuid" else "")
        if integer:
            self.start = _Start(*2 * (str(_INTEGERS[self._types["id"]]),))
        self._parts = self._written(zone)
        self._sql = self._compiled(prefix)

    @classmethod
    async def read(
        cls, connection: AsyncConnection[Any], prefix: str, adoption: PostgresAdoption
    ) -> _OldTable:
        """Look at the table's columns; refuse a table that cannot be adopted."""
        sql = sql_files.load_queries(_PACKAGE, prefix)
        look = compile_query(sql["adopt_columns"], "numeric")
        types = dict(await _rows(connection, look, {"name": _quoted(adoption.table)}))
        if not types:
            raise StoreError(
                f"there is no table {adoption.table}, or this role cannot see it: name it as "
                "schema.table if it is not in the search_path"
            )
        ask = compile_query(sql["adopt_zone"], "numeric")
        ((zone, known),) = await _rows(connection, ask, {"time_zone": adoption.time_zone})
        if not known:
            raise ConfigError(
                f"the server does not know the time zone {zone!r}: give an offset such as '+02:00' "
                "or a name of pg_timezone_names (time_zone=)"
            )
        return cls(connection, prefix, adoption, types, str(zone))

    async def statuses(self) -> dict[str, tuple[str, ...]]:
        """Return the table's statuses by meaning; refuse unknown ones."""
        return sort_statuses(dict(await self._rows("adopt_statuses")), self._adoption)

    async def refuse_unfit(self, moving: tuple[str, ...]) -> None:
        """Refuse a table with a row that the outbox cannot hold."""
        rows = await self._rows("adopt_unfit", moving=list(moving))
        if rows:
            raise row_does_not_fit(self._adoption, *rows[0])

    async def make_room(self) -> None:
        """Let new events start above the old numbers."""
        rows, highest = await self.left()
        if rows:
            await self._rows("adopt_next_number", highest=highest, room=self._adoption.room)

    async def left(self) -> tuple[int, int]:
        """Return the number of rows, and the highest of their numbers."""
        ((rows, highest),) = await self._rows("adopt_left")
        return rows, highest

    async def step(self, lists: Mapping[str, tuple[str, ...]], after: _Start) -> tuple[int, _Start]:
        """Move the next rows in one transaction; returns how many, and the last one."""
        adoption = self._adoption
        try:
            async with self._connection.transaction():
                found = await self._rows(
                    "adopt_pick",
                    after=after.place,
                    after_id=after.id,
                    step=adoption.step,
                    moving=list(lists["moving"]),
                )
                if not found:
                    return 0, after
                ids = [row_id for row_id, _ in found]
                written = await self._rows(
                    "adopt",
                    ids=ids,
                    stream=adoption.stream,
                    topic=adoption.topic,
                    content_type=adoption.content_type or self._content_type,
                    max_attempts=adoption.max_attempts,
                    **{state: list(lists[state]) for state in STATES},
                )
                # A relay that was allowed by `force` may read above these numbers already.
                await self._run("replayed", seqs=numbers(seq for (seq,) in written))
                deleted = await self._run("adopt_delete", ids=ids)
                if not len(written) == deleted == len(ids):
                    raise StoreError(
                        f"{len(ids)} rows of {adoption.table} were chosen, {len(written)} written "
                        f"and {deleted} deleted; nothing was moved. Does it have triggers, rules "
                        "or row-level security?"
                    )
        except UniqueViolation as error:
            if str(error.diag.constraint_name).endswith("_pkey"):
                raise number_taken(adoption, error.diag.message_detail) from error
            raise
        return len(ids), _Start(found[-1][1], found[-1][0])

    @property
    def _content_type(self) -> str:
        return f"application/{'octet-stream' if self._types['payload'] == 'bytea' else 'json'}"

    # -- statements ---------------------------------------------------------------------------
    async def _rows(self, name: str, **values: Any) -> list[Any]:
        return await _rows(self._connection, self._sql[name], values)

    async def _run(self, name: str, **values: Any) -> int:
        cursor = await _execute(self._connection, self._sql[name], values)
        return cursor.rowcount

    def _compiled(self, prefix: str) -> dict[str, Query]:
        found = {}
        for name, text in sql_files.load_queries(_PACKAGE, prefix).items():
            if name == "replayed" or name.startswith("adopt"):
                for part, words in self._parts.items():
                    text = text.replace(f"{{{part}}}", words)  # noqa: PLW2901
                found[name] = compile_query(text, "numeric")
        return found

    def _written(self, zone: str) -> dict[str, str]:
        """Return the parts of the statements that are not values."""
        adoption, types = self._adoption, self._types
        name = {ours: _quoted_name(adoption.columns.get(ours, ours)) for ours in types}

        def text(ours: str, otherwise: str = "CAST(NULL AS text)") -> str:
            return f"CAST(t.{name[ours]} AS text)" if ours in types else otherwise

        binary = types["payload"] == "bytea"
        time = self._time(f"t.{name['created_at']}", zone) if "created_at" in types else None
        attempts = f"CAST(t.{name['attempts']} AS bigint)" if "attempts" in types else "0"
        number = f"t.{name['id']}"
        return {
            "table": _quoted(adoption.table),
            "id": name["id"],
            "id_type": types["id"],
            "place": number if self._integer else f"coalesce({time}, '-infinity')",
            "place_type": types["id"] if self._integer else "timestamptz",
            "number": "seq, " if self.keeps_numbers else "",
            "old_number": "a.place, " if self.keeps_numbers else "",
            "overriding": "OVERRIDING SYSTEM VALUE" if self.keeps_numbers else "",
            "too_low": f"{number} < 1" if self.keeps_numbers else "false",
            "highest": f"coalesce(max({number}), 0)" if self._integer else "0",
            "event_id": f'{text("event_id", text("id"))} COLLATE "C"',
            "event_type": text("event_type"),
            "aggregate_type": f"nullif({text('aggregate_type')}, '')",
            "aggregate_id": f"nullif({text('aggregate_id')}, '')",
            "row_topic": f"nullif({text('topic')}, '')",
            "payload": "CAST(NULL AS text)" if binary else text("payload"),
            "payload_bytes": f"t.{name['payload']}" if binary else "CAST(NULL AS bytea)",
            "status": self._status(text),
            "attempts": f"CAST(least(greatest(coalesce({attempts}, 0), 0), 999999) AS integer)",
            "created_at": f"coalesce({time}, clock_timestamp())" if time else "clock_timestamp()",
            "last_error": text("last_error"),
        }

    def _time(self, column: str, zone: str) -> str:
        if self._types["created_at"].endswith("without time zone"):
            quoted = zone.replace("'", "''")
            # An offset: +02:00 is east of Greenwich here, as in ISO 8601, and west of it in a name.
            at = f"interval '{quoted}'" if quoted[:1] in "+-" else f"'{quoted}'"
            return f"({column} AT TIME ZONE {at})"
        return column

    def _status(self, text: Callable[..., str]) -> str:
        if "status" in self._types:
            return f"coalesce({text('status')}, 'NULL')"
        if "sent_at" in self._types:
            return f"CASE WHEN {text('sent_at')} IS NULL THEN 'pending' ELSE 'sent' END"
        return "'NULL'"


def _named(adoption: PostgresAdoption, types: Mapping[str, str]) -> dict[str, str]:
    """Return the types of the columns by our names for them; refuse missing ones."""
    found = {}
    for ours in COLUMNS:
        theirs = adoption.columns.get(ours, ours)
        if theirs in types:
            found[ours] = types[theirs]
        elif ours in adoption.columns or ours in _REQUIRED:
            raise ConfigError(
                f"{adoption.table} has no column {theirs!r}; it has {', '.join(types)}. Name the "
                f"right one: --column {ours}=…"
            )
    if "status" not in found and "sent_at" not in found and "null" not in adoption.meanings:
        raise ConfigError(
            f"{adoption.table} has no column 'status'; it has {', '.join(types)}. Name the status "
            "(--column status=…) or the time of sending (--column sent_at=…); if no row was sent "
            "yet: --status NULL=pending"
        )
    return found


def _quoted(table: str) -> str:
    return ".".join(map(_quoted_name, table.split(".")))


def _quoted_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


async def _rows(
    connection: AsyncConnection[Any], query: Query, values: Mapping[str, Any]
) -> list[Any]:
    cursor = await _execute(connection, query, values)
    return await cursor.fetchall()


async def _execute(
    connection: AsyncConnection[Any], query: Query, values: Mapping[str, Any]
) -> AsyncRawCursor[Any]:
    cursor = AsyncRawCursor(connection)
    return await cursor.execute(query.sql, [values[name] for name in query.names] or None)
