"""The tables of the memory store, and the moves of a row between stages."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass, field

from postroom.commands import AuditEntry
from postroom.lookup import Details
from postroom.model.controls import Control
from postroom.model.dead_letters import DeadCause
from postroom.operation import Operation
from postroom.record import LANES, Record, Stage, State
from postroom.transaction import Row

ADVANCE_STEP = 500


@dataclass(slots=True)
class Stored:
    """A row of the outbox."""

    seq: int
    row: Row
    created_us: int
    state: str = State.PENDING
    stage: str = Stage.READY
    attempts: int = 0
    next_attempt_us: int | None = None
    last_error: str | None = None
    lease_owner: str | None = None
    lease_until_us: int | None = None
    settled_us: int | None = None
    history: str | None = None
    receipt: str | None = None
    replaced_by: str | None = None

    @property
    def is_delayed(self) -> bool:
        """Whether it waits for its first attempt: it was never ready."""
        return self.stage == Stage.WAITING and self.state == State.PENDING

    def record(self, barrier: int | None = None) -> Record:
        r = self.row
        body = r.payload.encode() if r.payload is not None else r.payload_bytes
        assert body is not None
        return Record(
            self.seq, r.id, r.stream, r.lane, r.key_hash, r.type, r.topic, r.key,
            r.aggregate_type, r.aggregate_id, body, r.content_type, r.headers, r.correlation_id,
            r.causation_path, r.schema_version, r.kseq, r.causation_id, r.options, r.expires_us,
            r.occurred_us, self.created_us,
            str(self.state), self.attempts, self.next_attempt_us, self.last_error, barrier,
        )  # fmt: skip


@dataclass(slots=True)
class LeaseRow:
    owner: str | None = None
    token: int = 0
    until_us: int = 0
    length_us: int = 0
    replayed_us: int = 0


@dataclass(slots=True)
class MemberRow:
    name: str
    healthy: bool
    until_us: int
    length_us: int


@dataclass(slots=True)
class BlockRow:
    lane: int
    barrier: int


@dataclass(slots=True)
class Tables:
    """Everything that is committed."""

    rows: dict[int, Stored] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    ready: defaultdict[tuple[str, int], list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )
    waiting: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    parked: defaultdict[tuple[str, bytes], list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )
    blocks: dict[tuple[str, bytes], BlockRow] = field(default_factory=dict)
    leases: dict[str, dict[int, LeaseRow]] = field(default_factory=dict)
    members: defaultdict[str, dict[str, MemberRow]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    counters: dict[tuple[str, bytes], int] = field(default_factory=dict)
    inbox: dict[tuple[str, str], str] = field(default_factory=dict)
    inbox_at: dict[tuple[str, str], int] = field(default_factory=dict)
    audit_log: list[AuditEntry] = field(default_factory=list)
    controls: dict[tuple[str, str], Control] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    unfinished: dict[str, str] = field(default_factory=dict)  # fingerprint → operation

    def put(self, stored: Stored) -> None:
        self.rows[stored.seq] = stored
        self.ids[stored.row.id] = stored.seq
        self._enter(stored)

    def find(self, record: Record) -> Stored | None:
        """Return the row of this event; None if another event has its number now."""
        stored = self.rows.get(record.seq)
        if stored is None or stored.row.id != record.id:
            return None
        same = (stored.row.stream, stored.row.lane) == (record.stream, record.lane)
        return stored if same else None

    def drop(self, stored: Stored) -> None:
        self._exit(stored)
        del self.rows[stored.seq]
        if self.ids.get(stored.row.id) == stored.seq:
            del self.ids[stored.row.id]

    def move(self, stored: Stored, stage: Stage) -> None:
        if stored.stage != stage:
            self._exit(stored)
            stored.stage = stage
            self._enter(stored)

    def cancel(self, stored: Stored, now_us: int) -> None:
        stored.state, stored.settled_us, stored.next_attempt_us = State.CANCELLED, now_us, None
        self.move(stored, Stage.OVER)

    def reschedule(self, stored: Stored, at_us: int) -> None:
        stored.row = stored.row._replace(available_us=at_us)
        stored.next_attempt_us = at_us

    def lane_leases(self, stream: str) -> dict[int, LeaseRow]:
        if stream not in self.leases:
            self.leases[stream] = {lane: LeaseRow() for lane in range(LANES)}
        return self.leases[stream]

    def block(self, record: Record) -> None:
        """Block a key at this event, unless an earlier one blocks it. A later barrier moves behind
        it; otherwise the key would be freed when this event ends, and overtake it.
        """
        name = (record.stream, record.key_hash)
        before = None if self.is_broken(*name) else self.blocks.get(name)
        if before is not None and before.barrier < record.seq:
            return
        self.blocks[name] = BlockRow(record.lane, record.seq)
        if before is not None and before.barrier > record.seq:
            held = self.rows.get(before.barrier)
            if held is not None and held.stage == Stage.WAITING:
                self.move(held, Stage.PARKED)

    def advance(self, stream: str, key_hash: bytes) -> None:
        """Let the next followers of a blocked key go on, or lift the block."""
        block = self.blocks.get((stream, key_hash))
        if block is None:
            return
        followers = self.parked.get((stream, key_hash), [])
        step = followers[:ADVANCE_STEP]
        if len(followers) <= ADVANCE_STEP:
            del self.blocks[stream, key_hash]
        else:
            block.barrier = step[-1]
        for seq in step:
            self.move(self.rows[seq], Stage.READY)

    def details(self, event_id: str) -> Details | None:
        seq = self.ids.get(event_id)
        if seq is None:
            return None
        stored = self.rows[seq]
        block = self.blocks.get((stored.row.stream, stored.row.key_hash))
        return Details(
            str(stored.stage), stored.row.available_us, stored.settled_us, stored.lease_owner,
            stored.lease_until_us, None if block is None else block.barrier, stored.history,
            stored.receipt, stored.replaced_by,
        )  # fmt: skip

    def dead_causes(self, stream: str | None) -> list[DeadCause]:
        died: dict[tuple[str, str], list[int]] = {}
        for stored in self.rows.values():
            if stored.state == State.DEAD and stream in (None, stored.row.stream):
                name = (stored.row.type, stored.last_error or "")
                died.setdefault(name, []).append(stored.settled_us or 0)
        return [DeadCause(*name, len(at), min(at), max(at)) for name, at in died.items()]

    def is_broken(self, stream: str, key_hash: bytes) -> bool:
        """Return whether the key is blocked by a barrier that is gone, finished or parked (B4)."""
        block = self.blocks.get((stream, key_hash))
        if block is None:
            return False
        head = self.rows.get(block.barrier)
        return head is None or head.stage in (Stage.OVER, Stage.PARKED)

    def broken_blocks(self, stream: str, lanes: set[int]) -> list[bytes]:
        """Return the keys in these lanes whose block needs repair."""
        return [
            key_hash
            for (of_stream, key_hash), block in self.blocks.items()
            if of_stream == stream and block.lane in lanes and self.is_broken(stream, key_hash)
        ]

    def _enter(self, stored: Stored) -> None:
        r = stored.row
        if stored.stage == Stage.READY:
            insort(self.ready[r.stream, r.lane], stored.seq)
        elif stored.stage == Stage.WAITING:
            self.waiting[r.stream].add(stored.seq)
        elif stored.stage == Stage.PARKED:
            insort(self.parked[r.stream, r.key_hash], stored.seq)

    def _exit(self, stored: Stored) -> None:
        r = stored.row
        if stored.stage == Stage.READY:
            _remove(self.ready[r.stream, r.lane], stored.seq)
        elif stored.stage == Stage.WAITING:
            self.waiting[r.stream].discard(stored.seq)
        elif stored.stage == Stage.PARKED:
            _remove(self.parked[r.stream, r.key_hash], stored.seq)


def _remove(seqs: list[int], seq: int) -> None:
    at = bisect_left(seqs, seq)
    if at < len(seqs) and seqs[at] == seq:
        del seqs[at]
