"""Searches by index, the bounds of other searches, and the optional indexes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from postroom.lookup import Filter
from postroom.record import Record
from postroom.search import (
    CORRELATION,
    OUT_OF_ORDER_US,
    Column,
    Outline,
    Reach,
    check_index,
    no_index,
    walk_by,
)
from postroom.stores.memory.tables import Stored, Tables

_MANY = 1 << 62


class Search:
    """The port `Search` in memory; its index exists only in name."""

    def __init__(
        self, data: Callable[[], Tables], find: Callable[[Filter], Awaitable[list[Record]]]
    ) -> None:
        self._data = data
        self._find = find
        self._indexed = False

    async def indexes(self) -> frozenset[str]:
        return self.names

    @property
    def names(self) -> frozenset[str]:
        return frozenset({CORRELATION} if self._indexed else ())

    async def set_index(self, name: str, *, present: bool) -> bool:
        check_index(name)
        changed, self._indexed = self._indexed != present, present
        return changed

    async def reach(self, wanted: Filter, rows: int) -> Reach:
        by = walk_by(wanted, self.names, bounded=True)
        end = _MANY if wanted.until_seq is None else wanted.until_seq
        walked = Filter(after_seq=wanted.after_seq, until_seq=end, limit=rows, newest=wanted.newest)
        if by == "state":
            walked = walked._replace(state=wanted.state, stream=wanted.stream)
        elif by is not None:
            walked = walked._replace(**{by: getattr(wanted, by)})
        found = await self._find(walked)
        return Reach(len(found), found[-1].seq if found else 0)

    async def position(self, at_us: int) -> int:
        rows = self._data().rows
        late = [seq for seq, row in rows.items() if row.created_us >= at_us - OUT_OF_ORDER_US]
        return min(late, default=max(rows, default=0) + 1)

    async def outline(self, by: Column, value: str, limit: int) -> list[Outline]:
        if by != "key" and not self._indexed:
            raise no_index(by)
        rows = self._data().rows
        found = [rows[seq] for seq in sorted(rows) if getattr(rows[seq].row, by) == value]
        return [_outline(one) for one in (found[::-1] if by == "key" else found)[:limit]]

    async def ids(self, beginning: str, limit: int) -> list[str]:
        return sorted(name for name in self._data().ids if name.startswith(beginning))[:limit]

    async def outlines(self, ids: Sequence[str]) -> list[Outline]:
        data = self._data()
        return [
            _outline(data.rows[seq]) for seq in sorted({data.ids[i] for i in ids if i in data.ids})
        ]

    async def newest(self, limit: int) -> list[Outline]:
        rows = self._data().rows
        return [_outline(rows[seq]) for seq in sorted(rows, reverse=True)[:limit]]


def _outline(stored: Stored) -> Outline:
    r = stored.row
    return Outline(
        stored.seq, r.id, r.stream, r.type, r.topic, r.key, r.aggregate_type, r.correlation_id,
        r.causation_id, str(stored.state), str(stored.stage), stored.attempts, stored.created_us,
        stored.next_attempt_us, stored.settled_us, stored.last_error,
    )  # fmt: skip
