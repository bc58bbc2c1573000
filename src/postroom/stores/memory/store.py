"""The memory store: the Store port over plain dictionaries; each call is one atomic step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from itertools import islice
from typing import Any
from uuid import uuid4

from postroom.clock import host_microseconds
from postroom.codec import encode_json
from postroom.errors import ConfigError, NotFoundError, TransactionError
from postroom.event import MAX_ID_BYTES
from postroom.event import new_id as make_id
from postroom.record import Record, Stage, State, key_hash, lane_of
from postroom.store import (
    Capabilities,
    Cause,
    Deed,
    Details,
    Filter,
    Lease,
    Member,
    Read,
    Roster,
    Schema,
    Settlement,
    Staged,
    Stats,
    deed,
)
from postroom.stores.memory.tables import LeaseRow, MemberRow, Stored, Tables
from postroom.stores.memory.transaction import MemoryTransaction

SKIPPED = "postroom.skipped"
_SECOND = 1_000_000


class MemoryStore:
    """An outbox in memory. `now_us` is the store's clock."""

    capabilities = Capabilities(shared=False)

    def __init__(self, now_us: Callable[[], int] = host_microseconds) -> None:
        self.now_us = now_us
        self.tables = Tables()
        self.locks: dict[Hashable, asyncio.Future[None]] = {}
        self._seq = 0
        self._identity = str(uuid4())
        self._waiting: dict[asyncio.Future[None], None] = {}  # in a fixed order, for simulations

    @classmethod
    def from_url(cls, url: str) -> MemoryStore:
        if str(url).rstrip("/") not in ("memory:", "memory"):
            raise ConfigError("the memory store takes no host, path or options: memory://")
        return cls()

    # -- life ---------------------------------------------------------------------------------
    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def migrate(self) -> int:
        return 1

    async def schema(self) -> Schema:
        return Schema(1, 1)

    def migration_sql(self, after: int = 0) -> str:  # noqa: ARG002 - there are no tables
        return ""

    async def identity(self) -> str:
        return self._identity

    def begin(self) -> MemoryTransaction:
        """Begin a caller's transaction."""
        return MemoryTransaction(self)

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def unlock(self, what: Iterable[Hashable]) -> None:
        for name in what:
            holder = self.locks.pop(name)
            if not holder.done():
                holder.set_result(None)

    # -- lanes --------------------------------------------------------------------------------
    async def beat(
        self, stream: str, member: Member, lease_seconds: float, held: Mapping[int, int]
    ) -> Roster:
        until = self._end(lease_seconds)
        members = self.tables.members[stream]
        members[member.owner] = MemberRow(member.name, member.healthy, until)
        leases = self.tables.lane_leases(stream)
        for lane, token in held.items():
            lease = leases[lane]
            if lease.owner == member.owner and lease.token == token:
                lease.until_us = until
        long_gone = self.now_us() - int(10 * lease_seconds * _SECOND)
        for owner in [o for o, m in members.items() if m.until_us < long_gone]:
            del members[owner]
        return await self.leases(stream)

    async def leases(self, stream: str) -> Roster:
        now = self.now_us()
        return Roster(
            tuple(
                Member(owner, m.healthy, m.name)
                for owner, m in sorted(self.tables.members[stream].items())
                if m.until_us > now
            ),
            tuple(
                Lease(lane, row.owner, row.token, row.owner is not None and row.until_us > now)
                for lane, row in sorted(self.tables.lane_leases(stream).items())
            ),
        )

    async def take(
        self, stream: str, owner: str, lanes: Sequence[int], lease_seconds: float
    ) -> dict[int, int]:
        now, leases = self.now_us(), self.tables.lane_leases(stream)
        free = [n for n in lanes if leases[n].owner is None or leases[n].until_us <= now]
        return {lane: self._give(leases[lane], owner, lease_seconds) for lane in free}

    async def retake(
        self, stream: str, owner: str, held: Mapping[int, int], lease_seconds: float
    ) -> dict[int, int]:
        leases = self.tables.lane_leases(stream)
        mine = [n for n, t in held.items() if leases[n].owner == owner and leases[n].token == t]
        return {lane: self._give(leases[lane], owner, lease_seconds) for lane in mine}

    async def release(self, stream: str, owner: str, held: Mapping[int, int]) -> None:
        leases = self.tables.lane_leases(stream)
        for lane, token in held.items():
            if leases[lane].owner == owner and leases[lane].token == token:
                leases[lane].owner, leases[lane].until_us = None, 0

    async def leave(self, stream: str, owner: str) -> None:
        self.tables.members[stream].pop(owner, None)
        for lease in self.tables.lane_leases(stream).values():
            if lease.owner == owner:
                lease.owner, lease.until_us = None, 0

    def _give(self, lease: LeaseRow, owner: str, lease_seconds: float) -> int:
        lease.owner, lease.until_us = owner, self._end(lease_seconds)
        lease.token += 1
        return lease.token

    def _end(self, seconds: float) -> int:
        return self.now_us() + int(seconds * _SECOND)

    # -- events -------------------------------------------------------------------------------
    async def read(self, question: Read) -> list[Record]:
        exclude, tables = set(question.exclude), self.tables
        leases = tables.lane_leases(question.stream)
        heads: list[int] = []
        rest: list[int] = []
        for lane in question.lanes:
            held = (leases[lane].owner, leases[lane].token)
            if question.owner is not None and held != (question.owner, question.tokens.get(lane)):
                continue
            seqs = (
                seq
                for seq in tables.ready.get((question.stream, lane), ())
                if tables.rows[seq].row.key_hash not in exclude
            )
            chosen = list(islice(seqs, question.per_lane))
            heads += chosen[:1]
            rest += chosen[1:]
        rest.sort()
        found: list[Record] = []
        room = question.size
        for seq in sorted((heads + rest)[: question.rows]):
            stored = tables.rows[seq]
            room -= stored.row.size
            if room < 0 and found:
                break
            block = tables.blocks.get((question.stream, stored.row.key_hash))
            found.append(stored.record(None if block is None else block.barrier))
        return found

    async def settle(self, settlement: Settlement) -> set[int]:
        lanes = self.fence(settlement)
        now, tables = self.now_us(), self.tables

        def rows(records: Iterable[Record]) -> Iterator[Stored]:
            for record in records:
                stored = tables.rows.get(record.seq)
                if record.lane in lanes and stored is not None and stored.stage != Stage.OVER:
                    yield stored

        for record in settlement.starts:
            for stored in rows([record]):
                stored.state = State.PROCESSING
                stored.attempts = max(stored.attempts, record.attempts + 1)
                stored.lease_owner = settlement.owner
                stored.lease_until_us = self._end(settlement.lease_seconds)
        for stored in rows(settlement.returned):
            if stored.state == State.PROCESSING:
                self._clear(stored, State.PENDING)
                stored.attempts = max(stored.attempts - 1, 0)
        for stored in rows(settlement.done):
            if settlement.keep_done:
                self._clear(stored, State.DONE)
                stored.settled_us = now
                tables.move(stored, Stage.OVER)
            else:
                tables.drop(stored)
        for record, attempts, error in settlement.dead:
            for stored in rows([record]):
                stored.attempts = attempts
                self._bury(stored, error)
        for record, attempts, delay, error in settlement.failed:
            for stored in rows([record]):
                self._clear(stored, State.FAILED)
                stored.attempts, stored.last_error = attempts, error
                stored.next_attempt_us = self._end(delay)
                tables.move(stored, Stage.WAITING)
                if record.key is not None:
                    tables.block(record)
        for stored in rows(settlement.parked):
            block = tables.blocks.get((stored.row.stream, stored.row.key_hash))
            ready = stored.stage == Stage.READY and stored.state != State.PROCESSING
            if ready and block is not None and stored.seq > block.barrier:
                tables.move(stored, Stage.PARKED)
        for record in settlement.freed(lanes):
            if tables.is_broken(record.stream, record.key_hash):
                tables.advance(record.stream, record.key_hash)
        return lanes

    def fence(self, settlement: Settlement) -> set[int]:
        """Return the lanes of the settlement that its owner holds right now, by these tokens."""
        leases, now = self.tables.lane_leases(settlement.stream), self.now_us()
        return {
            lane
            for lane, token in settlement.leases.items()
            if leases[lane].owner == settlement.owner
            and leases[lane].token == token
            and leases[lane].until_us > now
        }

    async def stage(self, stream: str, lanes: Sequence[int], limit: int) -> Staged:
        now, owned = self.now_us(), set(lanes)
        waiting = sorted((self.tables.rows[seq] for seq in self.tables.waiting[stream]), key=_due)
        mine = [stored for stored in waiting if stored.row.lane in owned]
        due = [stored for stored in mine if _due(stored)[0] <= now][:limit]
        for stored in due:
            self.tables.move(stored, Stage.READY)
        later = mine[len(due) :]
        wait = max(0.0, (_due(later[0])[0] - now) / _SECOND) if later else None
        ready = any(self.tables.ready.get((stream, lane)) for lane in owned)
        return Staged(len(due), wait, ready)

    async def mend(self, stream: str, owner: str, leases: Mapping[int, int], limit: int) -> int:
        lanes = self.fence(Settlement(stream, owner, 0.0, dict(leases)))
        broken = list(self.tables.broken_blocks(stream, lanes))[:limit]
        for hashed in broken:
            self.tables.advance(stream, hashed)
        return len(broken)

    async def prune(self, older_than_seconds: float, limit: int) -> int:
        before = self.now_us() - int(older_than_seconds * _SECOND)
        old = sorted(
            (
                s
                for s in self.tables.rows.values()
                if s.state == State.DONE and (s.settled_us or 0) < before
            ),
            key=lambda s: s.settled_us or 0,
        )[:limit]
        for stored in old:
            self.tables.drop(stored)
        return len(old)

    # -- people -------------------------------------------------------------------------------
    async def get(self, event_id: str) -> Record | None:
        seq = self.tables.ids.get(event_id)
        return None if seq is None else self.tables.rows[seq].record()

    async def find(self, wanted: Filter) -> list[Record]:
        found = []
        for seq in sorted(self.tables.rows):
            stored = self.tables.rows[seq]
            r = stored.row
            if (
                seq > wanted.after_seq
                and all(
                    want is None or want == have
                    for want, have in (
                        (wanted.stream, r.stream),
                        (wanted.state, stored.state),
                        (wanted.type, r.type),
                        (wanted.topic, r.topic),
                        (wanted.key, r.key),
                    )
                )
                and _matches(stored, wanted)
            ):
                found.append(stored.record())
        return found[: wanted.limit]

    async def stats(self, stream: str | None = None) -> Stats:
        counts = dict.fromkeys(State, 0)
        oldest: int | None = None
        for stored in self.tables.rows.values():
            if stream in (None, stored.row.stream):
                counts[State(stored.state)] += 1
                if stored.stage == Stage.READY:
                    since = max(stored.created_us, stored.next_attempt_us or 0)
                    oldest = since if oldest is None else min(oldest, since)
        lag = 0.0 if oldest is None else max(0.0, (self.now_us() - oldest) / _SECOND)
        blocked = sum(stream in (None, of_stream) for of_stream, _ in self.tables.blocks)
        return Stats({str(k): n for k, n in counts.items()}, lag, blocked)

    async def streams(self) -> list[str]:
        return sorted({s.row.stream for s in self.tables.rows.values()} | set(self.tables.leases))

    async def details(self, event_id: str) -> Details | None:
        return self.tables.details(event_id)

    async def causes(self, stream: str | None = None) -> list[Cause]:
        return self.tables.causes(stream)

    async def note(self, deed: Deed) -> None:
        if deed.how_many:
            self.tables.deeds.append(deed._replace(at_us=self.now_us()))

    async def deeds(self, limit: int) -> list[Deed]:
        return self.tables.deeds[::-1][:limit]

    async def _note(self, by: str | None, what: str, ids: Sequence[str], reason: str = "") -> None:
        if by is not None:
            await self.note(deed(by, what, len(ids), ids, reason))

    async def replay(
        self, ids: Sequence[str], *, new_id: bool = False, by: str | None = None
    ) -> int:
        chosen = self._chosen(ids, over=True)
        self._depose(chosen)
        await self._note(by, "replay", [stored.row.id for stored in chosen])
        for stored in chosen:
            if new_id:
                row = stored.row._replace(id=make_id())
                hashed = key_hash(row.aggregate_type, row.key, row.id)
                row = row._replace(key_hash=hashed, lane=lane_of(hashed))
                fresh = Stored(self.next_seq(), row, self.now_us())
            elif stored.row.kseq == 0:
                self.tables.drop(stored)
                fresh = Stored(self.next_seq(), stored.row, stored.created_us)
            else:
                stored.state, stored.attempts = State.PENDING, 0
                stored.settled_us = stored.next_attempt_us = None
                self.tables.move(stored, Stage.READY)
                continue
            if fresh.row.kseq is not None:
                name = (fresh.row.topic, fresh.row.key_hash)
                self.tables.counters[name] = self.tables.counters.get(name, 0) + 1
                fresh.row = fresh.row._replace(kseq=self.tables.counters[name])
            self.tables.put(fresh)
        self.changed()
        return len(chosen)

    async def bury(self, ids: Sequence[str], reason: str, *, by: str | None = None) -> int:
        chosen = self._chosen(ids, over=False)
        self._depose(chosen)
        await self._note(by, "bury", [stored.row.id for stored in chosen], reason)
        for stored in chosen:
            self._bury(stored, reason)
        self._mend_keys(chosen)
        return len(chosen)

    async def skip(self, event_id: str, reason: str, *, by: str | None = None) -> None:
        chosen = self._chosen([event_id], over=False)
        if not chosen:
            raise NotFoundError(f"no unfinished event with id {event_id!r} to skip")
        self._depose(chosen)
        await self._note(by, "skip", [event_id], reason)
        stored = chosen[0]
        original = stored.row
        body = encode_json({"skipped": original.id, "reason": reason}).decode()
        del self.tables.ids[original.id]
        stored.row = original._replace(
            id=self._marker_id(stored),
            type=SKIPPED, payload=body, payload_bytes=None, content_type="application/json",
            size=len(body), headers=None,
        )  # fmt: skip
        self.tables.ids[stored.row.id] = stored.seq
        number = None if original.kseq is None else 0
        grave = Stored(
            self.next_seq(), original._replace(kseq=number), stored.created_us,
            attempts=stored.attempts,
        )  # fmt: skip
        stored.state, stored.attempts = State.PENDING, 0
        stored.next_attempt_us = stored.last_error = None
        self.tables.move(stored, Stage.READY)
        self.tables.put(grave)
        self._bury(grave, reason)
        self._mend_keys(chosen)
        self.changed()

    def _chosen(self, ids: Sequence[str], *, over: bool) -> list[Stored]:
        seqs = sorted(self.tables.ids[i] for i in dict.fromkeys(ids) if i in self.tables.ids)
        return [
            stored
            for stored in (self.tables.rows[seq] for seq in seqs)
            if (stored.stage == Stage.OVER) == over
        ]

    def _marker_id(self, stored: Stored) -> str:
        marker = f"skip:{stored.row.id}"
        if len(marker.encode()) > MAX_ID_BYTES or marker in self.tables.ids:
            return f"skip:{stored.seq}:{make_id()}"
        return marker

    def _depose(self, chosen: Iterable[Stored]) -> None:
        """Take the lanes of these events away, so that nothing in flight counts (L7)."""
        for stream, lane in {(s.row.stream, s.row.lane) for s in chosen}:
            lease = self.tables.lane_leases(stream)[lane]
            lease.owner, lease.until_us = None, 0
            lease.token += 1

    def _mend_keys(self, chosen: Iterable[Stored]) -> None:
        for stored in chosen:
            if self.tables.is_broken(stored.row.stream, stored.row.key_hash):
                self.tables.advance(stored.row.stream, stored.row.key_hash)

    def _bury(self, stored: Stored, error: str) -> None:
        self._clear(stored, State.DEAD)
        stored.last_error, stored.settled_us = error, self.now_us()
        self.tables.move(stored, Stage.OVER)

    @staticmethod
    def _clear(stored: Stored, state: State) -> None:
        stored.state = state
        stored.lease_owner = stored.lease_until_us = None

    # -- waking and handlers ------------------------------------------------------------------
    def changed(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def wait_for_change(self, timeout_seconds: float) -> bool:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = None
        try:
            async with asyncio.timeout(timeout_seconds):
                await waiting
        except TimeoutError:
            return False
        finally:
            del self._waiting[waiting]
        return True

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[MemoryTransaction]:
        async with self.begin() as tx:
            yield tx

    def sync_transaction(self) -> AbstractContextManager[Any]:
        raise TransactionError(
            "the memory store has no transactions for threads; use async handlers with it"
        )


def _matches(stored: Stored, wanted: Filter) -> bool:
    since, before = wanted.from_us, wanted.before_us
    return (
        (wanted.error is None or wanted.error in (stored.last_error or ""))
        and (since is None or stored.created_us >= since)
        and (before is None or stored.created_us < before)
    )


def _due(stored: Stored) -> tuple[int, int]:
    return (stored.next_attempt_us or 0, stored.seq)
