"""The memory store: the Store port over plain dictionaries; each call is one atomic step."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from itertools import islice
from typing import Any
from uuid import uuid4

from postroom.errors import ConfigError, TransactionError
from postroom.model.clock import host_microseconds
from postroom.model.diagnostics import Finding
from postroom.model.url import Url
from postroom.record import Record, Stage, State
from postroom.settlement import Settlement, new_history
from postroom.store import (
    Capabilities,
    Lease,
    Member,
    Membership,
    PrunedDead,
    ReadRequest,
    Schema,
    Staged,
    Tables,
)
from postroom.stores.memory.operations import Operations
from postroom.stores.memory.tables import LeaseRow, MemberRow, Stored
from postroom.stores.memory.transaction import MemoryTransaction
from postroom.stores.opening import ContextManager
from postroom.transaction import Proof, by_place
from postroom.transactions.acceptances import Acceptances, forget_old

_SECOND = 1_000_000

_PRUNED = (State.DONE, State.EXPIRED, State.CANCELLED)


class MemoryStore(ContextManager, Operations):
    """An outbox in memory. `now_us` is the store's clock."""

    capabilities = Capabilities(shared=False)
    tables = Tables()
    url = "memory:"

    def __init__(self, now_us: Callable[[], int] = host_microseconds) -> None:
        super().__init__(now_us)
        self.locks: dict[Hashable, asyncio.Future[None]] = {}
        self._identity = str(uuid4())
        self._waiting: dict[asyncio.Future[None], None] = {}  # in a fixed order, for simulations

    @classmethod
    def from_url(cls, url: str | Url, **options: object) -> MemoryStore:
        """Make one from `memory:`, which has no options."""
        if options or str(url).rstrip("/") not in ("memory:", "memory"):
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

    def migration_sql(self, after: int = 0, *, transaction: bool = True) -> str:  # noqa: ARG002
        return ""

    async def identity(self) -> str:
        return self._identity

    def begin(self) -> MemoryTransaction:
        """Begin a caller's transaction."""
        return MemoryTransaction(self)

    def unlock(self, what: Iterable[Hashable]) -> None:
        for name in what:
            holder = self.locks.pop(name)
            if not holder.done():
                holder.set_result(None)

    # -- lanes --------------------------------------------------------------------------------
    async def heartbeat(
        self, stream: str, member: Member, lease_seconds: float, held: Mapping[int, int]
    ) -> Membership:
        until = self._end(lease_seconds)
        members = self.data.members[stream]
        length = int(abs(lease_seconds) * _SECOND)
        members[member.owner] = MemberRow(member.name, member.healthy, until, length)
        leases = self.data.lane_leases(stream)
        renewed = set()
        for lane, token in held.items():
            lease = leases[lane]
            if lease.owner == member.owner and lease.token == token:
                lease.until_us, lease.length_us = until, length
                renewed.add(lane)
        now, long = self.now_us(), int(10 * abs(lease_seconds) * _SECOND)
        for owner, m in list(members.items()):
            if m.until_us < now - long or m.until_us > now + 10 * m.length_us:
                del members[owner]
        return (await self.leases(stream))._replace(renewed=frozenset(renewed))

    async def leases(self, stream: str) -> Membership:
        now = self.now_us()
        return Membership(
            tuple(
                Member(owner, m.healthy, m.name)
                for owner, m in sorted(self.data.members[stream].items())
                if _is_live(m, now)
            ),
            tuple(
                Lease(lane, row.owner, row.token, row.owner is not None and _is_live(row, now))
                for lane, row in sorted(self.data.lane_leases(stream).items())
            ),
        )

    async def take(
        self, stream: str, owner: str, lanes: Sequence[int], lease_seconds: float
    ) -> dict[int, int]:
        now, leases = self.now_us(), self.data.lane_leases(stream)
        free = [n for n in lanes if leases[n].owner is None or not _is_live(leases[n], now)]
        return {lane: self._give(leases[lane], owner, lease_seconds) for lane in free}

    async def retake(
        self,
        stream: str,
        owner: str,
        held: Mapping[int, int],
        lease_seconds: float,
        doubt_seconds: float = 0.0,
    ) -> dict[int, int]:
        leases = self.data.lane_leases(stream)
        since = self.now_us() - int(doubt_seconds * _SECOND)
        mine = [
            lane
            for lane, token in held.items()
            if (leases[lane].owner, leases[lane].token) == (owner, token)
            and leases[lane].replayed_us < since
        ]
        return {lane: self._give(leases[lane], owner, lease_seconds) for lane in mine}

    async def release(self, stream: str, owner: str, held: Mapping[int, int]) -> None:
        leases = self.data.lane_leases(stream)
        for lane, token in held.items():
            if leases[lane].owner == owner and leases[lane].token == token:
                leases[lane].owner, leases[lane].until_us = None, 0

    async def leave(self, stream: str, owner: str) -> None:
        self.data.members[stream].pop(owner, None)
        for lease in self.data.lane_leases(stream).values():
            if lease.owner == owner:
                lease.owner, lease.until_us = None, 0

    def _give(self, lease: LeaseRow, owner: str, lease_seconds: float) -> int:
        lease.owner, lease.until_us = owner, self._end(lease_seconds)
        lease.length_us = int(abs(lease_seconds) * _SECOND)
        lease.token += 1
        return lease.token

    def _end(self, seconds: float) -> int:
        return self.now_us() + int(seconds * _SECOND)

    # -- events -------------------------------------------------------------------------------
    async def read(self, request: ReadRequest) -> list[Record]:
        exclude, tables = set(request.exclude), self.data
        leases = tables.lane_leases(request.stream)
        heads: list[int] = []
        rest: list[int] = []
        for lane in request.lanes:
            held = (leases[lane].owner, leases[lane].token)
            if request.owner is not None and held != (request.owner, request.tokens.get(lane)):
                continue
            seqs = (
                seq
                for seq in tables.ready.get((request.stream, lane), ())
                if tables.rows[seq].row.key_hash not in exclude
            )
            chosen = list(islice(seqs, request.per_lane))
            heads += chosen[:1]
            rest += chosen[1:]
        rest.sort()
        found: list[Record] = []
        room = request.size
        for seq in sorted((heads + rest)[: request.rows]):
            stored = tables.rows[seq]
            room -= stored.row.size
            if room < 0 and found:
                break
            block = tables.blocks.get((request.stream, stored.row.key_hash))
            found.append(stored.record(None if block is None else block.barrier))
        return found

    async def settle(self, settlement: Settlement) -> set[int]:
        lanes = settlement.weigh(self.fence(settlement), await self.holds(settlement.proofs()))
        now, tables = self.now_us(), self.data
        there = [tables.rows[r.seq] for r in settlement.named() if r.seq in tables.rows]
        found = [(stored.seq, stored.row.id) for stored in there]
        settlement.missing = settlement.find_missing(lanes, found)
        settlement.keep([
            (r.seq, r.id) for r in settlement.expired
            if (stored := tables.find(r)) is not None and stored.stage != Stage.OVER
            and (stored.row.expires_us is None or stored.row.expires_us > now)
        ])  # fmt: skip

        def rows(records: Iterable[Record]) -> Iterator[Stored]:
            for record in records:
                stored = tables.find(record)
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
                stored.settled_us, stored.receipt = now, settlement.receipts.get(stored.row.id)
                tables.move(stored, Stage.OVER)
            else:
                tables.drop(stored)
        before: dict[int | str, object] = {
            record.seq: tables.rows[record.seq].history
            for record in settlement.told(lanes)
            if record.seq in tables.rows
        }
        histories = dict(settlement.expiries(lanes, before))
        for stored in rows(settlement.truly_expired(lanes)):
            stored.history = histories[stored.seq]
            self._clear(stored, State.EXPIRED)
            stored.settled_us = now
            tables.move(stored, Stage.OVER)
        for buried in settlement.dead:
            for stored in rows([buried.record]):
                stored.attempts = buried.attempts
                stored.history = new_history(buried, {stored.seq: stored.history}) or stored.history
                self._bury(stored, buried.last_error)
        for failure in settlement.failed:
            record, attempts, delay, error = *failure[:3], failure.last_error
            for stored in rows([record]):
                stored.history = (
                    new_history(failure, {stored.seq: stored.history}) or stored.history
                )
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

    async def holds(self, proofs: Sequence[Proof]) -> set[int]:
        tables, (acceptances, counters) = self.data, by_place(proofs)
        there = {
            n for n, m in acceptances.items() if tables.inbox.get((m.consumer, m.id)) == "done"
        }
        return there | {
            n
            for n, (topic, hashed, number) in counters.items()
            if tables.counters.get((topic, hashed), 0) >= number
        }

    def fence(self, settlement: Settlement) -> set[int]:
        """Return the settlement's lanes that its owner holds now, with these tokens."""
        leases, now = self.data.lane_leases(settlement.stream), self.now_us()
        return {
            lane
            for lane, token in settlement.leases.items()
            if leases[lane].owner == settlement.owner
            and leases[lane].token == token
            and leases[lane].until_us > now
        }

    async def stage(self, stream: str, lanes: Sequence[int], limit: int) -> Staged:
        now, owned = self.now_us(), set(lanes)
        waiting = sorted((self.data.rows[seq] for seq in self.data.waiting[stream]), key=_due)
        mine = [stored for stored in waiting if stored.row.lane in owned]
        rank, before = Counter[int](), dict[int, int]()  # a lane holds up no other
        for stored in mine:
            before[stored.seq] = rank[stored.row.lane]
            rank[stored.row.lane] += 1
        ripe = [
            stored
            for stored in mine
            if _due(stored)[0] <= now and ("waiting", stored.row.id) not in self.locks
        ]
        due = sorted(ripe, key=lambda stored: before[stored.seq])[:limit]
        for stored in due:
            self.data.move(stored, Stage.READY)
        moved = {stored.seq for stored in due}
        later = [stored for stored in mine if stored.seq not in moved]
        wait = max(0.0, (_due(later[0])[0] - now) / _SECOND) if later else None
        ready = any(self.data.ready.get((stream, lane)) for lane in owned)
        return Staged(len(due), wait, ready)

    async def repair_blocks(
        self, stream: str, owner: str, leases: Mapping[int, int], limit: int
    ) -> int:
        lanes = self.fence(Settlement(stream, owner, 0.0, dict(leases)))
        broken = list(self.data.broken_blocks(stream, lanes))[:limit]
        for hashed in broken:
            self.data.advance(stream, hashed)
        return len(broken)

    async def prune(self, older_than_seconds: float, limit: int) -> int:
        before = self.now_us() - int(older_than_seconds * _SECOND)
        old = sorted(
            (
                s
                for s in self.data.rows.values()
                if s.state in _PRUNED and (s.settled_us or 0) < before
            ),
            key=lambda s: s.settled_us or 0,
        )[:limit]
        for stored in old:
            self.data.drop(stored)
        return len(old)

    async def prune_dead(
        self, stream: str, older_than_seconds: float, after_seq: int, limit: int
    ) -> PrunedDead:
        before = self.now_us() - int(older_than_seconds * _SECOND)
        dead = sorted(
            seq
            for seq, s in self.data.rows.items()
            if seq > after_seq and s.row.stream == stream and s.state == State.DEAD
        )
        page = [self.data.rows[seq] for seq in dead[:limit]]
        old = [s for s in page if (s.settled_us or 0) < before and not s.row.kseq]
        for stored in old:
            self.data.drop(stored)
        return PrunedDead(len(old), page[-1].seq if len(dead) > limit else None)

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

    async def forget_accepted(
        self, consumer: str, older_than_seconds: float, kept_by: Sequence[str]
    ) -> int:
        rows = Acceptances.in_transactions(self.transaction, self.tables.qualified)
        return await forget_old(rows, consumer, older_than_seconds, self, kept_by)

    async def check(self) -> list[Finding]:
        return []

    def complaints(self) -> list[tuple[str, str]]:
        return []


def _is_live(row: LeaseRow | MemberRow, now: int) -> bool:
    """Return whether it ends in the future, but within the longest lease: the clock may be
    set back.
    """
    return now < row.until_us <= now + 2 * row.length_us


def _due(stored: Stored) -> tuple[int, int]:
    return (stored.next_attempt_us or 0, stored.seq)
