"""A caller's transaction on the memory store; it is its own write-side adapter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from postroom.errors import AutocommitError
from postroom.record import Stage
from postroom.stores.memory.tables import Stored
from postroom.transaction import Acceptance, AsyncTransaction, Counter, Proof, Row, Standing

if TYPE_CHECKING:
    from postroom.stores.memory.store import MemoryStore


class MemoryTransaction(AsyncTransaction):
    """Rows written here are invisible to others before `commit`. Also an async context manager."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._rows: list[Stored] = []
        self._ids: set[str] = set()
        self._counters: dict[tuple[str, bytes], int] = {}
        self._inbox: dict[tuple[str, str], str] = {}
        self._changed: dict[int, int | None] = {}  # seq → new time; None: cancelled
        self._locked: list[Hashable] = []
        self._calls: list[Callable[[], None]] = []
        self._over = self._committed = False

    # -- the port -----------------------------------------------------------------------------
    def check(self) -> None:
        if self._over:
            raise AutocommitError(
                "this transaction has ended; begin a new one and add the event to it"
            )

    async def insert(self, rows: Sequence[Row], *, whole: bool = False) -> int:
        self.check()
        if whole and len(rows) > 1:
            return 0  # one by one
        added = 0
        now = self._store.now_us()
        for row in rows:
            await self._lock(("id", row.id))
            if row.id in self._ids or row.id in self._store.data.ids:
                continue
            stored = Stored(self._store.next_seq(), row, now)
            if row.available_us is not None and row.available_us > now:
                stored.stage = Stage.WAITING
                stored.next_attempt_us = row.available_us
            self._rows.append(stored)
            self._ids.add(row.id)
            added += 1
        return added

    async def count_up(self, counters: Sequence[Counter]) -> list[int]:
        self.check()
        values = []
        for counter in counters:
            name = (counter.topic, counter.key_hash)
            await self._lock(("counter", name))
            last = self._counters.get(name, self._store.data.counters.get(name, 0))
            self._counters[name] = last + counter.step
            values.append(last + counter.step)
        return values

    async def cancel(self, event_id: str) -> str | None:
        return await self._change_waiting(event_id, None)

    async def reschedule(self, event_id: str, at_us: int) -> str | None:
        return await self._change_waiting(event_id, at_us)

    async def _change_waiting(self, event_id: str, at_us: int | None) -> str | None:
        self.check()
        await self._lock(("waiting", event_id))
        own = [stored for stored in self._rows if stored.row.id == event_id]
        seq = self._store.data.ids.get(event_id)
        for stored in own or ([] if seq is None else [self._store.data.rows[seq]]):
            ends = stored.row.expires_us
            late = at_us is not None and ends is not None and ends <= at_us
            gone = self._changed.get(stored.seq, 0) is None
            if gone or late or not stored.is_delayed or stored.row.kseq is not None:
                continue
            self._changed[stored.seq] = at_us
            return stored.row.stream
        return None

    async def accept(self, acceptance: Acceptance) -> bool:
        self.check()
        name = (acceptance.consumer, acceptance.id)
        await self._lock(("inbox", name))
        if self._inbox.get(name, self._store.data.inbox.get(name)) == "done":
            return False
        self._inbox[name] = "done"
        return True

    async def count_done(self, acceptances: Sequence[Acceptance]) -> int:
        self.check()
        seen = {**self._store.data.inbox, **self._inbox}
        return sum(
            seen.get((acceptance.consumer, acceptance.id)) == "done" for acceptance in acceptances
        )

    async def done_before(self, consumer: str, seconds: float, limit: int, skip: int) -> list[str]:
        self.check()
        before = self._store.now_us() - int(seconds * 1_000_000)
        done = sorted(
            (at, message)
            for (of, message), at in self._store.data.inbox_at.items()
            if of == consumer and at < before
        )
        return [message for _, message in done[skip : skip + limit]]

    async def forget(self, consumer: str, ids: Sequence[str]) -> int:
        """Delete at once: pruning is never rolled back."""
        self.check()
        known = [(consumer, each) for each in ids if (consumer, each) in self._store.data.inbox_at]
        for name in known:
            del self._store.data.inbox[name], self._store.data.inbox_at[name]
        return len(known)

    async def hold(self, earlier: Sequence[Proof]) -> bool:  # noqa: ARG002
        return True

    async def is_open(self) -> bool:
        return not self._over

    async def standing(self, proofs: Sequence[Proof]) -> Standing:  # noqa: ARG002
        if not self._over:
            return Standing.HELD
        return Standing.COMMITTED if self._committed else Standing.LOST

    def after_commit(self, call: Callable[[], None]) -> bool:
        self._calls.append(call)
        return True

    # -- life ---------------------------------------------------------------------------------
    async def commit(self) -> None:
        self.check()
        self._over = self._committed = True
        tables = self._store.data
        for stored in self._rows:
            tables.put(stored)
        for seq, at_us in self._changed.items():
            waiting = tables.rows.get(seq)
            if waiting is None or not waiting.is_delayed:
                continue  # an operator was faster: commands take no locks here
            if at_us is None:
                tables.cancel(waiting, self._store.now_us())
            else:
                tables.reschedule(waiting, at_us)
        tables.counters.update(self._counters)
        tables.inbox.update(self._inbox)
        tables.inbox_at.update(dict.fromkeys(self._inbox, self._store.now_us()))
        self._store.unlock(self._locked)
        self._store.changed()
        for call in self._calls:
            call()

    async def rollback(self) -> None:
        self.abort()

    def abort(self) -> None:
        """Roll back, as a server does when the client has disconnected."""
        if not self._over:
            self._over = True
            self._store.unlock(self._locked)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._over:
            return
        if kind is None:
            await self.commit()
        else:
            await self.rollback()

    async def _lock(self, what: Hashable) -> None:
        if what in self._locked:
            return
        while (holder := self._store.locks.get(what)) is not None:
            await asyncio.shield(holder)
            self.check()  # it may have been aborted meanwhile, and would hold the lock for ever
        self._store.locks[what] = asyncio.get_running_loop().create_future()
        self._locked.append(what)
