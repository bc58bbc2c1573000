"""Read, settle, stage, repair blocks and prune (rules R and B)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from time import monotonic
from typing import Any

from postroom.errors import StoreError
from postroom.model.unreadable_rows import to_records
from postroom.record import Record, short_error
from postroom.store import ReadRequest, Settlement, Staged
from postroom.stores.postgres.database import Database, Session
from postroom.stores.postgres.floors import Floors
from postroom.stores.postgres.leases import fence
from postroom.stores.postgres.statements import hashes, numbers, texts
from postroom.transaction import Proof, by_place

ADVANCE_STEP = 500


async def read(db: Database, floors: Floors, request: ReadRequest) -> list[Record]:
    """Select and fetch in one statement, which is one snapshot."""
    lanes, began = request.lanes, monotonic()
    rows = await db.rows(
        "read",
        stream=request.stream,
        lanes=numbers(lanes),
        owner=request.owner,
        tokens=numbers(map(request.tokens.get, lanes)),
        floors=floors.under(request),
        epoch=floors.epoch,
        per_lane=request.per_lane,
        rows=max(request.rows, 1),
        size=request.size,
        exclude=hashes(request.exclude),
    )
    with suppress(StoreError):  # only makes the next reads slower
        await floors.noticed(db, request, monotonic() - began)
    return to_records(rows)


async def settle(db: Database, floors: Floors, settlement: Settlement) -> set[int]:
    """Write outcomes behind the fence: in one statement if all succeeded, which is the common case.

    Every change leaves finished events alone and sets absolute counts, so that repeating the
    settlement under a new token changes nothing more (L5). A row is identified by its number and
    its id, since a number may be assigned again after a failover.
    """
    s = settlement
    s.missing, s.lost = [], []
    plain = not (s.claims or s.starts or s.failed or s.dead or s.returned or s.parked)
    if plain and not any(record.barrier is not None for record in s.done):
        names = sorted([(record.seq, record.id) for record in s.done])
        seqs = [seq for seq, _ in names]
        if len(set(seqs)) == len(seqs):  # otherwise a number was assigned twice, and both are here
            return await _settle_done(db, s, seqs, [name for _, name in names])
    freeing = bool(s.freed(s.leases))
    with floors.moving(s.stream, s.leases) if freeing else nullcontext():
        async with db.change() as session:
            held = await fence(session, s.stream, s.owner, s.leases)
            if s.claims and held:
                held = s.weigh(held, await holds(session, s.proofs()))
            if held:
                changed, deleted = await _write(session, s, held)
                if changed < sum(record.lane in held for record in s.named()):
                    seqs = [record.seq for record in s.named()]
                    there = await session.rows("settle_missing", seqs=numbers(seqs))
                    s.missing = s.find_missing(held, [*there, *deleted])
                freed = {record.key_hash for record in s.freed(held)}
                # Before the commit: a read after it must not skip events that have come back.
                floors.lower(s.stream, await advance(session, s.stream, freed))
            return held


async def holds(session: Session | Database, proofs: Sequence[Proof]) -> set[int]:
    """Return the indexes of the proofs that exist."""
    acceptances, counters = by_place(proofs)
    there = set[int]()
    if acceptances:
        rows = await session.rows(
            "holds_acceptances",
            places=numbers(acceptances),
            consumers=texts(acceptance.consumer for acceptance in acceptances.values()),
            ids=texts(acceptance.id for acceptance in acceptances.values()),
        )
        there |= {place for (place,) in rows}
    if counters:
        rows = await session.rows(
            "holds_counters",
            places=numbers(counters),
            topics=texts(counter.topic for counter in counters.values()),
            keys=hashes([counter.key_hash for counter in counters.values()]),
            lasts=numbers(counter.step for counter in counters.values()),
        )
        there |= {place for (place,) in rows}
    return there


async def _settle_done(db: Database, s: Settlement, seqs: list[int], ids: list[str]) -> set[int]:
    """Settle done events with one statement; the numbers are sorted and unique."""
    ((lanes, unchanged),) = await db.rows(
        "settle",
        stream=s.stream,
        owner=s.owner,
        lanes=numbers(s.leases),
        tokens=numbers(s.leases.values()),
        seqs=numbers(seqs),
        ids=texts(ids),
        keep=s.keep_done,
    )
    held = set(lanes)
    if unchanged and held:
        left = set(unchanged)
        ended = [(record.seq, record.id) for record in s.done if record.seq not in left]
        with suppress(StoreError):  # the settle itself is committed
            there = await db.rows("settle_missing", seqs=numbers(unchanged))
            s.missing = s.find_missing(held, [*there, *ended])
    return held


async def _write(
    session: Session, s: Settlement, held: set[int]
) -> tuple[int, list[tuple[int, str]]]:
    """Write every kind of outcome.

    Returns how many events were changed, without parked ones, and which were deleted.
    """
    changed = 0
    deleted: list[tuple[int, str]] = []

    def name(records: Iterable[Record]) -> dict[str, str]:
        found = list(records)
        seqs, ids = numbers(r.seq for r in found), texts(r.id for r in found)
        return {"stream": s.stream, "lanes": numbers(held), "seqs": seqs, "ids": ids}

    async def change(statement: str, records: Iterable[Record], **more: Any) -> int:
        return await session.run(statement, **name(records), **more)

    def mine(records: Iterable[Record]) -> list[Record]:
        return [record for record in records if record.lane in held]

    if starts := mine(s.starts):
        attempts = numbers(record.attempts for record in starts)
        changed += await change(
            "settle_starts", starts, attempts=attempts, owner=s.owner, seconds=s.lease_seconds
        )
    if done := mine(s.done):
        if s.keep_done:
            changed += await change("settle_done", done)
        else:
            deleted = await session.rows("settle_delete", **name(done))
            changed += len(deleted)
    if dead := [buried for buried in s.dead if buried.record.lane in held]:
        changed += await change(
            "settle_dead",
            (buried.record for buried in dead),
            attempts=numbers(buried.attempts for buried in dead),
            errors=[short_error(buried.error) for buried in dead],
        )
    if failed := [failure for failure in s.failed if failure.record.lane in held]:
        heads = [failure.record for failure in failed]
        changed += await change(
            "settle_failed",
            heads,
            attempts=numbers(failure.attempts for failure in failed),
            delays=[float(failure.delay) for failure in failed],
            errors=[short_error(failure.error) for failure in failed],
        )
        if any(head.seq < (head.barrier or 0) for head in heads):
            await change("settle_behind", heads)
        await change("settle_block", heads)
    if returned := mine(s.returned):
        changed += await change("settle_returned", returned)
    if parked := mine(s.parked):
        await change("settle_parked", parked)
    return changed, deleted


async def advance(session: Session, stream: str, keys: Collection[bytes]) -> list[tuple[int, int]]:
    """Let keys whose barrier event has ended go on: their next followers, or all of them and the
    block is lifted.

    Does nothing for a key while its barrier's event is unfinished. Returns the lane of each key
    that went on, and the lowest number that came back there (0: none did). Call it inside a
    transaction that holds the lanes.
    """
    if not keys:
        return []
    rows = await session.rows("advance", stream=stream, keys=hashes(keys), step=ADVANCE_STEP)
    return [(lane, lowest or 0) for lane, lowest in rows]


async def stage(
    db: Database, floors: Floors, stream: str, lanes: Sequence[int], limit: int
) -> Staged:
    """Move due events and return whether there is work, in one statement."""
    owners, tokens = floors.holders(stream, lanes)
    with floors.moving(stream, lanes):
        ((moved, due, ready, where, lowest),) = await db.rows(
            "stage",
            stream=stream,
            lanes=numbers(lanes),
            owners=owners,
            tokens=numbers(tokens),
            floors=floors.of(stream, lanes),
            epoch=floors.epoch,
            limit=limit,
        )
        # After the commit: their order is kept by their key's block, or none is guaranteed.
        if moved:
            floors.lower(stream, zip(where, lowest, strict=True))
    return Staged(int(moved), due, ready)


async def repair_blocks(
    db: Database, floors: Floors, stream: str, owner: str, leases: Mapping[int, int], limit: int
) -> int:
    """Repair blocks from the stored state; opens a transaction only if one is broken."""
    if not await db.rows("repair_blocks", stream=stream, lanes=numbers(leases), limit=1):
        return 0
    with floors.moving(stream, leases):
        async with db.change() as session:
            held = await fence(session, stream, owner, leases)
            broken = await session.rows(
                "repair_blocks", stream=stream, lanes=numbers(held), limit=limit
            )
            lowest = await advance(session, stream, [key_hash for (key_hash,) in broken])
            floors.lower(stream, lowest)
            return len(lowest)


async def prune(db: Database, older_than_seconds: float, limit: int) -> int:
    """Delete old done events."""
    async with db.change() as session:
        return await session.run("prune", seconds=older_than_seconds, limit=limit)
